//! Rows of JSON Lines: each is printed as soon as it is measured, so that a program that is killed
//! loses nothing.

use serde_json::Value;
use std::io::Write;

/// Prints a row.
pub(crate) fn print(row: &Value) {
    let mut out = std::io::stdout().lock();
    // A reader that has gone needs no rows.
    let _ = writeln!(out, "{row}").and_then(|()| out.flush());
}

/// The median.
pub(crate) fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}
