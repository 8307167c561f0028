//! Rows of numbers: features, and what to predict from them.

use super::Permutation;
use crate::error::{Error, Result};
use std::path::Path;

/// A table whose last column is the target, a value or a class.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// Names of all columns; none if the file has no head.
    pub names: Vec<String>,
    /// Features of each row.
    pub columns: usize,
    /// All features, row after row.
    pub features: Vec<f32>,
    /// The target of each row.
    pub targets: Vec<f32>,
}

impl Table {
    /// Reads comma-separated numbers. A first line that holds anything else is a head.
    ///
    /// # Errors
    /// Names file and line.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|error| Error::file(path, error))?;
        Self::parse(&text).map_err(|what| Error::file(path, what))
    }

    /// As [`Table::read`], from the text of a file.
    ///
    /// # Errors
    /// Names the line.
    pub fn parse(text: &str) -> std::result::Result<Self, String> {
        let mut table = Self::default();
        for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let at = |what| format!("line {}: {what}", index + 1);
            match cells(line) {
                Ok(row) => table.push(&row).map_err(at)?,
                Err(_) if index == 0 => table.names = names(line),
                Err(what) => return Err(at(what)),
            }
        }
        if table.targets.is_empty() { Err("no rows".to_owned()) } else { Ok(table) }
    }

    fn push(&mut self, row: &[f32]) -> std::result::Result<(), String> {
        let (&target, features) = row.split_last().ok_or("no cells")?;
        if self.targets.is_empty() {
            self.columns = features.len();
        }
        if features.len() != self.columns || self.columns == 0 {
            return Err(format!("{} cells instead of {}", row.len(), self.columns.max(1) + 1));
        }
        self.features.extend(features);
        self.targets.push(target);
        Ok(())
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.targets.len()
    }

    /// Number of classes, where every target is one: 0, 1, 2 and so on, fewer than rows.
    ///
    /// # Errors
    /// [`Error::Illegal`] names the first row whose target is none.
    pub fn classes(&self) -> Result<usize> {
        let rows = self.rows();
        let is_class = |target: f32| target >= 0.0 && target.fract() == 0.0;
        for (index, &target) in self.targets.iter().enumerate() {
            let row = index + 1;
            if !is_class(target) {
                let what = format!("the last column, {target} in row {row}, is no class: 0, 1, 2 …");
                return Err(Error::invalid(what));
            }
            if target >= rows as f32 {
                let what = format!("class {target} in row {row} of {rows}: classes are numbered 0, 1, 2 …");
                return Err(Error::invalid(format!("{what}, below the number of rows")));
            }
        }
        Ok(self.targets.iter().copied().fold(0.0, f32::max) as usize + 1)
    }

    /// The rows of these numbers, in this order.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn select(&self, rows: &[u64]) -> Self {
        let row = |&row: &u64| &self.features[row as usize * self.columns..][..self.columns];
        Self {
            names: self.names.clone(),
            columns: self.columns,
            features: rows.iter().flat_map(row).copied().collect(),
            targets: rows.iter().map(|&row| self.targets[row as usize]).collect(),
        }
    }

    /// Rows for training and for validation, the share `validation` of them; drawn by `seed`.
    pub fn split(&self, validation: f64, seed: u64) -> (Self, Self) {
        let order = Permutation::new(self.rows() as u64, seed);
        let rows: Vec<u64> = (0..self.rows() as u64).map(|index| order.at(index)).collect();
        let (validating, training) =
            rows.split_at((self.rows() as f64 * validation.clamp(0.0, 1.0)) as usize);
        (self.select(training), self.select(validating))
    }
}

/// How to bring features to mean 0 and deviation 1: what the training rows say, for all rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Standardizer {
    /// Mean and deviation of each column.
    columns: Vec<(f32, f32)>,
}

impl Standardizer {
    /// Of the rows of `table`.
    pub fn fit(table: &Table) -> Self {
        Self { columns: (0..table.columns).map(|column| moments(table, column)).collect() }
    }

    /// Scales all rows of `table`.
    pub fn apply(&self, table: &mut Table) {
        for row in table.features.chunks_exact_mut(self.columns.len()) {
            for (feature, (mean, deviation)) in row.iter_mut().zip(&self.columns) {
                *feature = (*feature - mean) / deviation;
            }
        }
    }
}

/// Mean and deviation of a column; a constant has deviation 1.
fn moments(table: &Table, column: usize) -> (f32, f32) {
    let values = || table.features.iter().skip(column).step_by(table.columns).map(|&value| f64::from(value));
    let count = table.rows() as f64;
    let mean = values().sum::<f64>() / count;
    let variance = values().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
    (mean as f32, if variance > 0.0 { variance.sqrt() as f32 } else { 1.0 })
}

fn cells(line: &str) -> std::result::Result<Vec<f32>, String> {
    let number = |cell: &str| match cell.trim().parse::<f32>() {
        Ok(number) if number.is_finite() => Ok(number),
        _ => Err(format!("`{}` is no number", cell.trim())),
    };
    line.split(',').map(number).collect()
}

fn names(line: &str) -> Vec<String> {
    line.split(',').map(|name| name.trim().trim_matches('"').to_owned()).collect()
}
