//! The output of a measurement on rank 0, which consists of rows, the summary and the file.

use super::args::Arguments;
use super::bench::Row;
use super::roofline::Roofline;
use super::{json, jsonl, table};
use unisono::Communicator;

/// The rows of one rank so far.
pub(super) struct Report<'a> {
    arguments: &'a Arguments,
    comm: &'a Communicator,
    roofline: Option<Roofline>,
    writer: jsonl::Writer<'a>,
    /// True on the rank that prints.
    speaks: bool,
    rows: Vec<Row>,
}

impl<'a> Report<'a> {
    /// A report without rows. `path` is the kind of the paths between GPUs.
    pub(super) fn new(
        arguments: &'a Arguments,
        comm: &'a Communicator,
        roofline: Option<Roofline>,
        path: Option<&'static str>,
    ) -> Self {
        let writer = jsonl::Writer { arguments, path };
        Self { arguments, comm, roofline, writer, speaks: comm.rank() == 0, rows: Vec::new() }
    }

    /// Prints the head of the table.
    pub(super) fn head(&self) {
        if self.speaks && !self.arguments.jsonl {
            table::head(self.arguments, self.comm, self.roofline.as_ref());
        }
    }

    /// Prints a row and keeps it.
    pub(super) fn add(&mut self, row: Row) -> Result<(), String> {
        match self.speaks {
            true if self.arguments.jsonl => self.writer.row(&row)?,
            true => table::row(self.arguments, &row, self.roofline.as_ref()),
            false => {}
        }
        self.rows.push(row);
        Ok(())
    }

    /// Prints the summary and writes the file. Returns the exit code, 1 if a result was wrong.
    pub(super) fn finish(self) -> Result<u8, String> {
        let Self { arguments, comm, roofline, rows, .. } = &self;
        let summary = table::Summary::of(rows);
        if self.speaks {
            summary.print(arguments.jsonl);
            if let Some(path) = &arguments.json {
                json::write(path, arguments, comm, rows, &summary, roofline.as_ref())?;
            }
        }
        Ok(u8::from(!summary.is_ok()))
    }
}
