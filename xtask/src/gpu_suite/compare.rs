//! Cells that unisono and another library have both measured, with their ratio.

use super::rows::{Row, is, number, text};
use std::fmt::Write;

/// Returns a table of all such cells, or nothing if there is none.
///
/// The ratio is the other library's time over that of unisono: below 1, unisono is slower.
pub(super) fn table(rows: &[Row]) -> String {
    let (ours, others): (Vec<&Row>, Vec<&Row>) =
        rows.iter().filter(|row| time(row).is_some()).partition(|row| text(row, "library") == "unisono");
    let mut out = String::new();
    for other in others {
        let Some(our_row) = ours.iter().find(|row| cell(row) == cell(other)) else { continue };
        let (Some(our_time), Some(time)) = (time(our_row), time(other)) else { continue };
        let cell: Vec<String> = cell(other).into();
        let library = text(other, "library");
        let _ = writeln!(
            out,
            "| {} | {our_time:.2} | {library} | {time:.2} | {:.2} |",
            cell.join(" | "),
            time / our_time
        );
    }
    if out.is_empty() {
        return out;
    }
    let head =
        "| collective | ranks | bytes | type | memory | replayed | unisono, us | library | us | ratio |\n";
    format!("\n## Beside other libraries\n\n{head}|{}\n{out}", "---|".repeat(10))
}

/// The time of the GPU where there is one.
fn time(row: &Row) -> Option<f64> {
    if !row.contains_key("collective") || is(row, "in_place") {
        return None;
    }
    number(row, "gpu_us").or_else(|| number(row, "us"))
}

/// The fields in which both must agree. A measurement that counts has right results.
fn cell(row: &Row) -> [String; 6] {
    ["collective", "ranks", "bytes", "type", "memory", "replayed"].map(|name| {
        row.get(name).map_or(String::new(), |value| value.to_string().trim_matches('"').to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu_suite::rows::row;
    use serde_json::json;

    #[test]
    fn table_pairs_equal_cells_and_shows_the_ratio() {
        let measured = |library: &str, bytes: u64, us: f64| {
            row(json!({
                "library": library, "collective": "all_reduce", "ranks": 2, "bytes": bytes, "type": "float",
                "memory": "ordinary", "replayed": false, "in_place": false, "us": us,
            }))
        };
        let mut rows = vec![measured("unisono", 8, 4.0), measured("nccl", 8, 6.0), measured("nccl", 16, 1.0)];
        rows[0].insert("gpu_us".to_owned(), 3.0.into());
        let shown = table(&rows);
        assert_eq!(shown.lines().count(), 6, "{shown}");
        assert!(
            shown
                .ends_with("| all_reduce | 2 | 8 | float | ordinary | false | 3.00 | nccl | 6.00 | 2.00 |\n")
        );
        assert_eq!(table(&rows[..1]), "");
    }
}
