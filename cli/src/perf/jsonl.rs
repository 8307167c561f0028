//! Rows as JSON Lines. Each measured half of a row is one object, which is printed at once.
//!
//! If a benchmark is killed at its time limit, the rows that it has printed are not lost.

use super::args::Arguments;
use super::bench::{Row, Timing};
use super::device::Device;
use super::table::bandwidths;
use serde_json::{Value, json};
use std::io::Write;

/// Prints rows to standard output.
pub(super) struct Writer<'a> {
    pub(super) arguments: &'a Arguments,
    /// The kind of the paths between GPUs; `None` for ranks on CPUs.
    pub(super) path: Option<&'static str>,
}

impl Writer<'_> {
    /// Prints a row: a line for each half that was measured.
    pub(super) fn row(&self, row: &Row) -> Result<(), String> {
        for (in_place, timing) in [(false, row.out_of_place), (true, row.in_place)] {
            if let Some(timing) = timing {
                write_line(&self.object(row, in_place, &timing))?;
            }
        }
        Ok(())
    }

    fn object(&self, row: &Row, in_place: bool, timing: &Timing) -> Value {
        let (algorithm, bus) = bandwidths(row, timing);
        json!({
            "library": "unisono",
            "collective": row.test.kind.name(),
            "ranks": row.ranks,
            "bytes": row.size,
            "type": row.dtype.name(),
            "redop": if row.test.kind.reduces() { row.test.op.name() } else { "none" },
            "in_place": in_place,
            "memory": self.memory(),
            "replayed": self.arguments.graphs > 0,
            "us": timing.micros,
            "gpu_us": timing.gpu_micros,
            "alg_gbs": algorithm,
            "bus_gbs": bus,
            "wrong": timing.wrong,
            "out_of_bounds": row.out_of_bounds,
            "algo": row.algorithm,
            "path": self.path,
        })
    }

    fn memory(&self) -> &'static str {
        match self.arguments.device {
            _ if self.arguments.register == 2 => "symmetric",
            Device::Cpu => "host",
            _ => "ordinary",
        }
    }
}

/// Prints an object on a line of its own, at once.
pub(super) fn write_line(object: &Value) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    let written = writeln!(out, "{object}").and_then(|()| out.flush());
    written.map_err(|error| format!("standard output: {error}"))
}
