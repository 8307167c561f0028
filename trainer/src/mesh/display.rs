//! Text picture of a mesh: a row per data rank, a column per stage, and tensor parallel ranks in
//! each field. Large meshes show the first and last data ranks only.

use crate::mesh::{Coordinates, Mesh};
use std::fmt;

impl fmt::Display for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.summary())?;
        let rows = self.rows();
        let head = self.header();
        let widths: Vec<usize> = (0..head.len())
            .map(|column| {
                rows.iter()
                    .chain([&head])
                    .map(|row| row.get(column).map_or(0, String::len))
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        for row in [&head].into_iter().chain(&rows) {
            let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}"));
            writeln!(f, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        Ok(())
    }
}

/// Maximum number of rows.
const MAX_ROWS: usize = 18;

impl Mesh {
    fn rows(&self) -> Vec<Vec<String>> {
        let row = |data| self.row(data);
        let data = self.data_size();
        if data <= MAX_ROWS {
            return (0..data).map(row).collect();
        }
        let between = vec!["...".to_owned()];
        (0..MAX_ROWS - 2).map(row).chain([between, self.row(data - 1)]).collect()
    }

    /// Returns the number of ranks and the degrees, in one line.
    pub(crate) fn summary(&self) -> String {
        let (degrees, data, batch) = (self.degrees(), self.data_size(), self.batch_data_size());
        let cut = format!("tensor {} x data {data} x pipeline {}", degrees.tensor, degrees.pipeline);
        let data = match degrees.sequence_data {
            1 => String::new(),
            sequence => format!(" (data: sequence {sequence} x batch {batch})"),
        };
        let experts = match (degrees.expert, degrees.expert_folded) {
            (1, _) => String::new(),
            (expert, true) => format!(", expert {expert} within data"),
            (expert, false) => format!(", expert {expert} within batch"),
        };
        format!("{} ranks = {cut}{data}{experts}", self.world_size())
    }

    fn header(&self) -> Vec<String> {
        let stages = (0..self.degrees().pipeline).map(|stage| format!("stage {stage}"));
        [String::new()].into_iter().chain(stages).collect()
    }

    fn row(&self, data: usize) -> Vec<String> {
        let sequence = self.degrees().sequence_data;
        let place =
            Coordinates { batch_data: data / sequence, sequence_data: data % sequence, ..Default::default() };
        let name = match sequence {
            1 => format!("data {data}"),
            _ => format!("batch {} sequence {}", place.batch_data, place.sequence_data),
        };
        let cells = (0..self.degrees().pipeline).map(|pipeline| self.cell(Coordinates { pipeline, ..place }));
        [name].into_iter().chain(cells).collect()
    }

    fn cell(&self, at: Coordinates) -> String {
        let ranks =
            (0..self.degrees().tensor).map(|tensor| self.rank(Coordinates { tensor, ..at }).to_string());
        format!("[{}]", ranks.collect::<Vec<_>>().join(" "))
    }
}
