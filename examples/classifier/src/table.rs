//! Tables of features with a target column.

use crate::Samples;
use csv::{StringRecord, Trim};
use std::path::Path;
use unisono_nn::{Error, Result};
use unisono_trainer::data::Permutation;

/// Table of numbers whose last column is the target: a value or a class.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// Names of all columns; empty if the file has no header.
    pub names: Vec<String>,
    /// Number of features per row.
    pub columns: usize,
    /// Features in row-major order.
    pub features: Vec<f32>,
    /// Target of each row.
    pub targets: Vec<f32>,
}

impl Table {
    /// Reads comma-separated numbers. A first line with anything else is a header.
    ///
    /// # Errors
    /// Names the file and line.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|error| Error::file(path, error))?;
        Self::parse(&text).map_err(|what| Error::file(path, what))
    }

    /// Reads a table from text, as [`Table::read`] does.
    ///
    /// # Errors
    /// Names the line.
    pub fn parse(text: &str) -> std::result::Result<Self, String> {
        let mut table = Self::default();
        let mut builder = csv::ReaderBuilder::new();
        let mut reader =
            builder.has_headers(false).flexible(true).trim(Trim::All).from_reader(text.as_bytes());
        for (index, record) in reader.records().enumerate() {
            let record = record.map_err(|error| error.to_string())?;
            let located = |what| format!("line {}: {what}", line_of(text, &record));
            match cells(&record) {
                _ if record.iter().all(str::is_empty) && record.len() == 1 => {}
                Ok(row) => table.push(&row).map_err(located)?,
                Err(_) if index == 0 => table.names = names(&record),
                Err(what) => return Err(located(what)),
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

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.targets.len()
    }

    /// Returns the number of classes, if every target is a class: 0, 1, 2 and so on, below the
    /// number of rows.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the first row whose target is no class.
    pub fn classes(&self) -> Result<usize> {
        let rows = self.rows();
        let is_class = |target: f32| target >= 0.0 && target.fract() == 0.0;
        for (index, &target) in self.targets.iter().enumerate() {
            let row = index + 1;
            if !is_class(target) {
                let what = format!("the last column, {target} in row {row}, is not a class: 0, 1, 2 …");
                return Err(Error::invalid(what));
            }
            if target >= rows as f32 {
                let what = format!("class {target} in row {row} of {rows}: classes are numbered 0, 1, 2 …");
                return Err(Error::invalid(format!("{what}, below the number of rows")));
            }
        }
        Ok(self.targets.iter().copied().fold(0.0, f32::max) as usize + 1)
    }

    /// Returns the rows with these numbers, in this order.
    ///
    /// # Panics
    /// Panics if a row does not exist.
    pub fn select(&self, rows: &[u64]) -> Self {
        let row = |&row: &u64| &self.features[row as usize * self.columns..][..self.columns];
        Self {
            names: self.names.clone(),
            columns: self.columns,
            features: rows.iter().flat_map(row).copied().collect(),
            targets: rows.iter().map(|&row| self.targets[row as usize]).collect(),
        }
    }

    /// Returns all rows as a batch of samples. Targets are classes.
    pub fn samples(&self) -> Samples {
        let labels = self.targets.iter().map(|&target| target as u32).collect();
        Samples { features: self.features.clone(), labels }
    }

    /// Returns rows for training, and the fraction `validation` of the rows for validation, drawn
    /// by `seed`.
    pub fn split(&self, validation: f64, seed: u64) -> (Self, Self) {
        let order = Permutation::new(self.rows() as u64, seed);
        let rows: Vec<u64> = (0..self.rows() as u64).map(|index| order.at(index)).collect();
        let (validating, training) =
            rows.split_at((self.rows() as f64 * validation.clamp(0.0, 1.0)) as usize);
        (self.select(training), self.select(validating))
    }
}

/// Scales features to mean 0 and standard deviation 1, with the statistics of the training rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Standardizer {
    /// Mean and standard deviation of each column.
    columns: Vec<(f32, f32)>,
}

impl Standardizer {
    /// Computes the statistics of the rows of `table`.
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

/// Returns the mean and standard deviation of a column. A constant column has deviation 1.
fn moments(table: &Table, column: usize) -> (f32, f32) {
    let values = || table.features.iter().skip(column).step_by(table.columns).map(|&value| f64::from(value));
    let count = table.rows() as f64;
    let mean = values().sum::<f64>() / count;
    let variance = values().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
    (mean as f32, if variance > 0.0 { variance.sqrt() as f32 } else { 1.0 })
}

/// Parses the cells of a record as finite numbers.
fn cells(record: &StringRecord) -> std::result::Result<Vec<f32>, String> {
    let number = |cell: &str| match cell.parse::<f32>() {
        Ok(number) if number.is_finite() => Ok(number),
        _ => Err(format!("`{cell}` is not a number")),
    };
    record.iter().map(number).collect()
}

/// Returns the column names of a header record.
fn names(record: &StringRecord) -> Vec<String> {
    record.iter().map(|name| name.trim_matches('"').to_owned()).collect()
}

/// Returns the line of `text` on which `record` begins, from 1. The reader's own position is before
/// any empty lines that precede the record.
fn line_of(text: &str, record: &StringRecord) -> usize {
    let offset = record.position().map_or(0, |position| position.byte() as usize);
    let remainder = &text[offset.min(text.len())..];
    let start = text.len() - remainder.trim_start_matches(['\r', '\n']).len();
    text[..start].matches('\n').count() + 1
}
