//! The cells of the stages 4 to 8 with their predictions: a table that is committed before a run.

use super::predictions::predict;
use super::rows::{Row, number, row, text};
use super::steps::{ALL_REDUCE_LARGE, ALL_REDUCE_SMALL, OTHER_LARGE, OTHER_SMALL, OTHERS, RANKS};
use serde_json::json;
use std::fmt::Write;

/// Returns the predictions for one H100 as tab-separated values.
pub(crate) fn table() -> String {
    let columns = ["library", "collective", "ranks", "bytes", "type", "memory", "replayed"];
    let mut out = format!("{}\tfield\tpredicted\n", columns.join("\t"));
    for cell in collectives() {
        let values: Vec<String> = columns.iter().map(|name| value(&cell, name)).collect();
        let _ = writeln!(out, "{}\t{}", values.join("\t"), predicted(&cell));
    }
    let columns = ["experiment", "peer", "case", "memory", "sources", "blocks", "bytes", "threads"];
    let _ = write!(out, "\n{}\tfield\tpredicted\n", columns.join("\t"));
    for cell in experiments() {
        let values: Vec<String> = columns.iter().map(|name| value(&cell, name)).collect();
        let _ = writeln!(out, "{}\t{}", values.join("\t"), predicted(&cell));
    }
    out
}

/// The field and its value.
fn predicted(cell: &Row) -> String {
    let mut cell = cell.clone();
    if let Some(prediction) = predict(&cell) {
        prediction.add_to(&mut cell);
    }
    format!("{}\t{:.2}", text(&cell, "predicted_field"), number(&cell, "predicted").unwrap_or(f64::NAN))
}

fn value(cell: &Row, name: &str) -> String {
    cell.get(name)
        .map_or(String::new(), |value| value.as_str().map_or_else(|| value.to_string(), str::to_owned))
}

fn collectives() -> Vec<Row> {
    let mut cells = Vec::new();
    let mut cell =
        |library: &str, name: &str, ranks: usize, bytes: u64, dtype: &str, memory: &str, replayed: bool| {
            cells.push(row(json!({
                "library": library, "collective": name, "ranks": ranks, "bytes": bytes, "type": dtype,
                "memory": memory, "replayed": replayed,
            })));
        };
    let large = |bytes: u64| bytes > 16 << 20;
    for ranks in RANKS {
        for bytes in sizes(ALL_REDUCE_SMALL).chain(sizes(ALL_REDUCE_LARGE)) {
            for memory in ["ordinary", "symmetric"] {
                cell("unisono", "all_reduce", ranks, bytes, "float", memory, false);
                if !large(bytes) {
                    cell("unisono", "all_reduce", ranks, bytes, "float", memory, true);
                }
            }
            cell("nccl", "all_reduce", ranks, bytes, "float", "ordinary", false);
        }
        for (library, dtype) in [("unisono", "bfloat16"), ("unisono", "fp8_e4m3"), ("nccl", "bfloat16")] {
            cell(library, "all_reduce", ranks, 64 << 20, dtype, "ordinary", false);
        }
        for name in OTHERS {
            for bytes in sizes(OTHER_SMALL).chain(sizes(OTHER_LARGE)) {
                cell("unisono", name, ranks, bytes, "float", "ordinary", false);
                cell("nccl", name, ranks, bytes, "float", "ordinary", false);
            }
        }
    }
    cells
}

fn experiments() -> Vec<Row> {
    let mut cells = Vec::new();
    let mut cell = |object| cells.push(row(object));
    for threads in [32, 256, 512] {
        for kernel in [
            "exchange",
            "reduce_copy_float_sum",
            "reduce_copy_bfloat16_sum",
            "schedule_float",
            "one_shot_float",
        ] {
            cell(json!({"experiment": "residents", "case": kernel, "threads": threads}));
        }
    }
    for case in [
        "plain",
        "cooperative",
        "remote domain",
        "programmatic",
        "plain, in a graph of all",
        "cooperative, in a graph of all",
    ] {
        cell(json!({"experiment": "launches", "case": case}));
    }
    for memory in ["device", "host", "device, loaded"] {
        cell(json!({"experiment": "handover", "memory": memory}));
    }
    for bytes in [256 << 20, 8 << 20] {
        cell(json!({"experiment": "copies", "case": "the driver's copy", "bytes": bytes}));
        for blocks in [1, 2, 4, 8, 16, 32, 64, 128, 132, 264] {
            cell(json!({"experiment": "copies", "case": "copy by blocks", "blocks": blocks, "bytes": bytes}));
        }
    }
    for sources in [1, 2, 3, 4, 6, 8] {
        cell(json!({"experiment": "reductions", "sources": sources, "bytes": 128 << 20}));
    }
    for case in ["record", "query", "create, record and destroy"] {
        cell(json!({"experiment": "events", "case": case}));
    }
    cell(json!({"experiment": "page-locked"}));
    for bytes in [16 << 20, 256 << 20] {
        for sources in [1, 2, 4, 8] {
            cell(json!({"peer": "any", "sources": sources, "bytes": bytes}));
        }
    }
    cells
}

/// Returns the sizes of a list such as `8,64K`.
fn sizes(list: &str) -> impl Iterator<Item = u64> + '_ {
    list.split(',').map(|size| {
        let (digits, factor) = match size.chars().last() {
            Some('K') => (&size[..size.len() - 1], 1 << 10),
            Some('M') => (&size[..size.len() - 1], 1 << 20),
            _ => (size, 1),
        };
        digits.parse::<u64>().expect("a number") * factor
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn committed_predictions_are_those_of_the_model() {
        let path = crate::cargo::root().join("benches/predictions-h100.tsv");
        let committed = std::fs::read_to_string(&path).expect("a table");
        assert!(
            committed == table(),
            "write it again: cargo xtask gpu-suite predictions > {}",
            path.display()
        );
        assert!(!committed.contains("NaN"), "a cell has no prediction");
    }

    #[test]
    fn sizes_have_binary_factors() {
        assert_eq!(sizes("8,64K,16M").collect::<Vec<_>>(), [8, 65_536, 16_777_216]);
    }
}
