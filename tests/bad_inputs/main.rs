//! Forty-six bad inputs, and the error of every rank for each: the rank, the operation, and both
//! values, within two seconds. Legal inputs must work.
//!
//! `BAD_INPUTS_REPORT=target/bad_inputs.md` writes the table to that file.

mod bootstrap;
mod call_order;
mod calls;
mod drop_and_fork;
mod environment;
mod misuse;
mod table;

#[path = "../support/mod.rs"]
mod support;

use table::{Evidence, Row};

/// All rows, by number.
fn rows() -> Vec<Row> {
    let groups = [
        calls::ROWS,
        call_order::ROWS,
        misuse::ROWS,
        drop_and_fork::ROWS,
        bootstrap::ROWS,
        environment::ROWS,
    ];
    let mut rows: Vec<Row> = groups.into_iter().flatten().copied().collect();
    rows.sort_by_key(|row| row.number);
    rows
}

#[test]
fn bad_inputs_are_errors_on_every_rank() {
    let rows = rows();
    let numbers: Vec<u8> = rows.iter().map(|row| row.number).collect();
    assert_eq!(numbers, (1..=46).collect::<Vec<_>>(), "a row for each");
    let answers: Vec<_> = rows.iter().map(Row::run).collect();
    let report = table::report(&rows, &answers);
    println!("{report}");
    if let Some(file) = std::env::var_os("BAD_INPUTS_REPORT") {
        std::fs::write(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(file), &report).unwrap();
    }
    let failed: Vec<u8> =
        rows.iter().zip(&answers).filter(|(_, a)| a.is_err()).map(|(r, _)| r.number).collect();
    assert!(failed.is_empty(), "rows {failed:?}");
}

#[test]
fn referenced_tests_exist() {
    for row in rows() {
        let Evidence::There(proofs) = row.evidence else { continue };
        for (file, mark) in proofs {
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(text.contains(mark), "row {}: no `{mark}` in {file}", row.number);
        }
    }
}
