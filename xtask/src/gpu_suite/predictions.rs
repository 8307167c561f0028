//! Predictions of measurements on one H100, made before there was one.
//!
//! The model has few constants and no exceptions, so that a wrong constant shows in many rows. A
//! time is the sum of a start, of hand-overs between ranks, and of bytes over a rate. Rates count
//! bytes read plus bytes written.

use super::rows::{Row, is, number, round, text};
use serde_json::Value;

/// GB/s of a copy of large buffers. The memory moves 3.35 TB/s at most.
const COPY_GBS: f64 = 3000.0;
/// GB/s of buffers that fit into the L2 cache, of which half serves a kernel well.
const L2_GBS: f64 = 5500.0;
const L2_BYTES: f64 = 25e6;
/// GB/s of one block of 512 threads with four loads of 16 bytes in flight in each.
const BLOCK_GBS: f64 = 50.0;
const MULTIPROCESSORS: f64 = 132.0;
const REGISTERS_OF_MULTIPROCESSOR: f64 = 65_536.0;
/// A plain launch, from the call to the first instruction.
const LAUNCH_US: f64 = 2.2;
/// Time by which a cooperative launch is longer.
const COOPERATIVE_US: f64 = 1.5;
/// A launch that begins before the results of the launch before it are visible.
const PROGRAMMATIC_US: f64 = 1.2;
/// A launch that a graph replays.
const REPLAYED_US: f64 = 1.4;
/// The calls of the driver for an operation, besides its launch.
const CALLS_US: f64 = 2.5;
/// Part of a call of the driver that holds the context's lock, so that ranks of a process wait.
const LOCKED_US: f64 = 1.2;
/// A counter from one block to another through the L2 cache, and through page-locked memory.
const HANDOVER_US: f64 = 0.8;
const FAR_HANDOVER_US: f64 = 2.0;
/// The memory is busy with copies, so that a fence waits for what is in flight.
const LOADED_HANDOVER_US: f64 = 1.6;
/// A read over PCIe, of which each launch makes one before its first useful load.
const PCIE_READ_US: f64 = 1.3;
/// An event that is recorded, one with its creation and destruction, and one that is asked for.
const RECORD_US: f64 = 0.6;
const EVENT_US: f64 = 1.6;
const QUERY_US: f64 = 0.4;
/// Channels of a collective: blocks of each rank.
const CHANNELS: f64 = 8.0;
/// NCCL's least time by its own model, for LL over direct pointers.
const NCCL_START_US: f64 = 6.6;
const NCCL_STEP_US: f64 = 0.6;
const NCCL_CTAS: f64 = 16.0;

/// A predicted value of one field of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Prediction {
    field: &'static str,
    value: f64,
    measured: Option<f64>,
}

impl Prediction {
    /// Adds the prediction to a row, and the ratio of the measurement to it.
    pub(super) fn add_to(self, row: &mut Row) {
        row.insert("predicted".to_owned(), round(self.value).into());
        row.insert("predicted_field".to_owned(), self.field.into());
        let ratio = self.measured.map(|measured| round(measured / self.value));
        row.insert("ratio".to_owned(), ratio.map_or(Value::Null, Value::from));
    }
}

/// Returns the prediction for a row, or `None` for a row that is no cell of the stages 4 to 8.
pub(super) fn predict(row: &Row) -> Option<Prediction> {
    if row.contains_key("collective") && text(row, "memory") == "host" {
        // Ranks on processors are no part of the model.
        return None;
    }
    let (field, value) = match () {
        () if row.contains_key("collective") => collective(row)?,
        () if row.contains_key("peer") => ("us", local_peer(row)?),
        () if row.contains_key("experiment") => experiment(row)?,
        () => return None,
    };
    Some(Prediction { field, value, measured: number(row, field) })
}

/// Returns true if a row of the stages 4 to 8 needs a prediction: it is a measurement.
pub(super) fn is_cell(row: &Row) -> bool {
    let measured = ["collective", "peer", "experiment"].iter().any(|field| row.contains_key(*field));
    measured && !row.contains_key("error")
}

/// Microseconds of a collective of ranks on one GPU: start, hand-overs, and memory traffic.
fn collective(row: &Row) -> Option<(&'static str, f64)> {
    let (ranks, bytes) = (number(row, "ranks")?, number(row, "bytes")?);
    let nccl = text(row, "library") == "nccl";
    let field = if row.get("gpu_us").is_some_and(Value::is_number) { "gpu_us" } else { "us" };
    let floor = floor_bytes(text(row, "collective"), ranks, bytes);
    // Through windows and FIFOs, data is written and read once more; zero-copy programs do not.
    let passes = if text(row, "memory") == "symmetric" { 1.0 } else { 2.0 };
    let blocks = ranks * if nccl { NCCL_CTAS } else { CHANNELS };
    let moving = us(floor * passes, rate(floor * passes, blocks));
    let steps = if bytes <= 65536.0 { 2.0 } else { 2.0 * (ranks - 1.0) };
    let start = match (nccl, is(row, "replayed")) {
        (true, _) => NCCL_START_US + steps * NCCL_STEP_US,
        (false, true) => REPLAYED_US + COOPERATIVE_US + PCIE_READ_US + steps * HANDOVER_US,
        (false, false) => {
            let host = CALLS_US + ranks * (LOCKED_US + LAUNCH_US);
            host + COOPERATIVE_US + PCIE_READ_US + steps * HANDOVER_US
        }
    };
    Some((field, start + moving))
}

/// Bytes that all ranks read and write at least.
fn floor_bytes(collective: &str, ranks: f64, bytes: f64) -> f64 {
    match collective {
        "all_gather" | "reduce_scatter" | "broadcast" => (ranks + 1.0) * bytes,
        // all_reduce, all_to_all, and rings of send and receive.
        _ => 2.0 * ranks * bytes,
    }
}

/// GB/s for so many bytes by so many blocks.
fn rate(bytes: f64, blocks: f64) -> f64 {
    let memory = if bytes <= L2_BYTES { L2_GBS } else { COPY_GBS };
    memory.min(blocks * BLOCK_GBS)
}

/// Microseconds of so many bytes.
fn us(bytes: f64, gbs: f64) -> f64 {
    bytes / gbs / 1e3
}

/// Microseconds of a copy or sum by another library.
fn local_peer(row: &Row) -> Option<f64> {
    let (bytes, sources) = (number(row, "bytes")?, number(row, "sources")?);
    Some(LAUNCH_US + us((sources + 1.0) * bytes, COPY_GBS))
}

fn experiment(row: &Row) -> Option<(&'static str, f64)> {
    let case = text(row, "case");
    Some(match text(row, "experiment") {
        "residents" => ("blocks", residents(case, number(row, "threads")?)),
        "handover" => match text(row, "memory") {
            "host" => ("us", FAR_HANDOVER_US),
            "device, loaded" => ("us", LOADED_HANDOVER_US),
            _ => ("us", HANDOVER_US),
        },
        "copies" => {
            let bytes = 2.0 * number(row, "bytes")?;
            ("gbs", rate(bytes, number(row, "blocks").unwrap_or(f64::MAX)))
        }
        "reductions" => ("gbs", 0.9 * COPY_GBS),
        "launches" if case.contains("graph") => ("gpu_us", REPLAYED_US),
        "launches" if case.contains("cooperative") => ("gpu_us", LAUNCH_US + COOPERATIVE_US),
        "launches" if case == "programmatic" => ("gpu_us", PROGRAMMATIC_US),
        "launches" => ("gpu_us", LAUNCH_US),
        "events" if case.contains("create") => ("us", EVENT_US),
        "events" if case == "query" => ("us", QUERY_US),
        "events" => ("us", RECORD_US),
        "page-locked" => ("us", PCIE_READ_US),
        _ => return None,
    })
}

/// Blocks of a kernel that run at once: registers and threads of a multiprocessor are shared.
fn residents(kernel: &str, threads: f64) -> f64 {
    let by_registers = REGISTERS_OF_MULTIPROCESSOR / (registers(kernel) * threads);
    MULTIPROCESSORS * by_registers.floor().min(2048.0 / threads).min(32.0)
}

/// Registers of a thread, from the compiler's report for this architecture.
fn registers(kernel: &str) -> f64 {
    match kernel {
        "schedule_float" => 120.0,
        "reduce_copy_bfloat16_sum" => 115.0,
        "one_shot_float" => 84.0,
        "reduce_copy_float_sum" => 70.0,
        _ => 48.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu_suite::rows::row;
    use serde_json::json;

    fn all_reduce(ranks: usize, bytes: usize, memory: &str, replayed: bool) -> f64 {
        let row = row(json!({
            "library": "unisono", "collective": "all_reduce", "ranks": ranks, "bytes": bytes,
            "memory": memory, "replayed": replayed, "us": 1.0,
        }));
        predict(&row).expect("a cell").value
    }

    #[test]
    fn all_reduce_is_never_below_its_floor() {
        for ranks in [2, 4, 8] {
            for bytes in (3..29).map(|power| 1usize << power) {
                let floor = 2.0 * (ranks * bytes) as f64 / L2_GBS / 1e3;
                for (memory, replayed) in [("ordinary", false), ("symmetric", false), ("ordinary", true)] {
                    assert!(all_reduce(ranks, bytes, memory, replayed) > floor, "{ranks} ranks, {bytes} B");
                }
                // Zero-copy moves less, and a replay starts sooner.
                assert!(
                    all_reduce(ranks, bytes, "symmetric", false)
                        < all_reduce(ranks, bytes, "ordinary", false)
                );
                assert!(
                    all_reduce(ranks, bytes, "ordinary", true) < all_reduce(ranks, bytes, "ordinary", false)
                );
            }
        }
    }

    #[test]
    fn prediction_and_ratio_become_columns() {
        let mut measured = row(json!({"experiment": "handover", "memory": "device", "us": 1.6}));
        predict(&measured).expect("a cell").add_to(&mut measured);
        assert_eq!((number(&measured, "predicted"), number(&measured, "ratio")), (Some(0.8), Some(2.0)));
        assert_eq!(predict(&row(json!({"skipped": "NCCL"}))), None);
        assert_eq!(predict(&row(json!({"collective": "broadcast", "memory": "host"}))), None);
    }
}
