//! Results as JSON, with the fields of nccl-tests' `-J` and further fields.

use super::args::Arguments;
use super::bench::{Row, Timing};
use super::table::{Summary, bandwidths};
use crate::perf::roofline::Roofline;
use serde_json::{Value, json};
use std::fs::File;
use std::path::Path;
use unisono::Communicator;

/// Writes the file.
pub(super) fn write(
    path: &Path,
    arguments: &Arguments,
    comm: &Communicator,
    rows: &[Row],
    summary: &Summary,
    roofline: Option<&Roofline>,
) -> Result<(), String> {
    let results: Vec<Value> = rows.iter().map(|row| result(row, comm.transport(), roofline)).collect();
    let document = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "collective": arguments.collective.name(),
        "ranks": comm.size(),
        "transport": comm.transport(),
        "encryption": comm.config().encryption,
        "algo": arguments.algo,
        "results": results,
        "out_of_bounds": { "count": summary.out_of_bounds, "okay": summary.out_of_bounds == 0 },
        "average_bus_bandwidth": { "bandwidth": summary.average_bus_bandwidth, "okay": summary.is_ok() },
        "roofline": roofline,
    });
    let text = serde_json::to_string_pretty(&document).map_err(|error| error.to_string())?;
    std::fs::write(path, text + "\n").map_err(|error| format!("{}: {error}", path.display()))
}

/// Checks that the file can be written.
pub(super) fn check_writable(path: &Path) -> Result<(), String> {
    let was_there = path.exists();
    let opened = File::options().create(true).append(true).open(path);
    opened.map(drop).map_err(|error| format!("{}: {error}", path.display()))?;
    if !was_there {
        // The check must not leave an empty file, because it would look like results.
        let _ = std::fs::remove_file(path);
    }
    Ok(())
}

fn result(row: &Row, transport: &str, roofline: Option<&Roofline>) -> Value {
    let spread = row.timing().spread;
    json!({
        "size": row.size,
        "count": row.count,
        "type": row.dtype.name(),
        "redop": if row.test.kind.reduces() { row.test.op.name() } else { "none" },
        "root": if row.test.kind.has_root() { row.test.root as i64 } else { -1 },
        "out_of_place": half_json(row, row.out_of_place.as_ref()),
        "in_place": half_json(row, row.in_place.as_ref()),
        "algo": row.algorithm,
        "transport": transport,
        "ranks": row.ranks,
        "p50_us": spread.map(|spread| spread.p50),
        "p99_us": spread.map(|spread| spread.p99),
        "flag_latency_us": row.timing().flag_latency,
        "roofline_us": roofline.map(|roofline| row.roofline_micros(roofline)),
    })
}

fn half_json(row: &Row, timing: Option<&Timing>) -> Value {
    timing.map_or(Value::Null, |timing| {
        let (algorithm, bus) = bandwidths(row, timing);
        json!({ "time": timing.micros, "alg_bw": algorithm, "bus_bw": bus, "nwrong": timing.wrong })
    })
}
