//! README.md of a run: the machine, the stages, the rows beside their predictions, and what failed.

use super::rows::{Row, Rows, text};
use super::tests::is_failed;
use super::{StageResult, compare, predictions};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::Write;

/// Columns that come first, in this order; the others follow by name.
const FIRST: [&str; 18] = [
    "experiment",
    "rule",
    "skipped",
    "machine",
    "peer",
    "library",
    "collective",
    "ranks",
    "bytes",
    "type",
    "memory",
    "replayed",
    "in_place",
    "case",
    "launch",
    "grids",
    "call",
    "sources",
];
/// Columns that come last.
const LAST: [&str; 6] = ["us", "gpu_us", "gbs", "predicted", "predicted_field", "ratio"];
/// Columns that every row of a stage has.
const LEFT_OUT: [&str; 2] = ["stage", "at_s"];

/// Returns the text of README.md.
pub(super) fn text_of(title: &str, stages: &[StageResult], rows: &Rows) -> String {
    let mut out = format!(
        "# {title}\n\nWritten by `cargo xtask gpu-suite`. results.jsonl has all rows, log.txt all other output.\n\n"
    );
    out += "| stage | question | outcome | seconds | of | rows |\n|---|---|---|--:|--:|--:|\n";
    for stage in stages {
        let count = measured(rows, stage).count();
        let StageResult { name, question, outcome, seconds, limit, .. } = stage;
        let _ = writeln!(out, "| {name} | {question} | {outcome} | {seconds:.1} | {limit:.0} | {count} |");
    }
    out += &failures(stages, rows);
    out += &compare::table(rows.all());
    for stage in stages {
        let measurements: Vec<&Row> = measured(rows, stage).filter(|row| !row.contains_key("test")).collect();
        let _ = write!(out, "\n## {}\n\n{}?\n", stage.name, capitalized(stage.question));
        out += &tests(rows.of(stage.name));
        for group in by_kind(&measurements) {
            out += &table(&group);
        }
    }
    out
}

/// Returns the rows of a stage without the one about the stage itself.
fn measured<'a>(rows: &'a Rows, stage: &'a StageResult) -> impl Iterator<Item = &'a Row> + 'a {
    rows.of(stage.name).filter(|row| !row.contains_key("outcome_of_stage"))
}

/// Lists tests and commands that failed.
fn failures(stages: &[StageResult], rows: &Rows) -> String {
    let mut out = String::new();
    for row in rows.all().iter().filter(|row| is_failed(row)) {
        let _ =
            writeln!(out, "- {}: test `{}`: {}", text(row, "stage"), text(row, "test"), text(row, "outcome"));
    }
    for row in rows.all().iter().filter(|row| row.contains_key("error")) {
        let _ = writeln!(out, "- {}: {}: {}", text(row, "stage"), kind(row), text(row, "error"));
    }
    for stage in stages {
        for failed in &stage.failed_steps {
            let _ = writeln!(out, "- {}: {failed}", stage.name);
        }
    }
    if out.is_empty() { out } else { format!("\n## What failed\n\n{out}") }
}

/// Counts tests by their outcome.
fn tests<'a>(rows: impl Iterator<Item = &'a Row>) -> String {
    let rows: Vec<&Row> = rows.filter(|row| row.contains_key("test")).collect();
    let count = |outcome: &str| rows.iter().filter(|row| text(row, "outcome") == outcome).count();
    let failed: Vec<String> =
        rows.iter().filter(|row| is_failed(row)).map(|row| format!("`{}`", text(row, "test"))).collect();
    match rows.len() {
        0 => String::new(),
        all => {
            let (passed, skipped) = (count("passed"), count("skipped"));
            let list = if failed.is_empty() { String::new() } else { format!(": {}", failed.join(", ")) };
            format!(
                "\n{all} tests: {passed} passed, {skipped} skipped by name, {} failed{list}.\n",
                failed.len()
            )
        }
    }
}

/// Groups rows by their kind, in the order in which kinds appear.
fn by_kind<'a>(rows: &[&'a Row]) -> Vec<Vec<&'a Row>> {
    let mut groups: Vec<(String, Vec<&Row>)> = Vec::new();
    for row in rows {
        let kind = kind(row);
        match groups.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, group)) => group.push(row),
            None => groups.push((kind, vec![row])),
        }
    }
    groups.into_iter().map(|(_, group)| group).collect()
}

/// The field that says what a row is about, with its value where rows of a value belong together.
fn kind(row: &Row) -> String {
    let by_value = ["experiment", "rule"].iter().find(|field| row.contains_key(**field));
    let by_name = FIRST.iter().find(|field| row.contains_key(**field));
    by_value.map_or_else(
        || by_name.map_or(String::new(), |name| (*name).to_owned()),
        |field| text(row, field).to_owned(),
    )
}

/// Returns rows as a Markdown table.
fn table(rows: &[&Row]) -> String {
    let names: BTreeSet<&str> = rows.iter().flat_map(|row| row.keys()).map(String::as_str).collect();
    let middle = names
        .iter()
        .copied()
        .filter(|name| !FIRST.contains(name) && !LAST.contains(name) && !LEFT_OUT.contains(name));
    let there = |name: &&str| names.contains(name);
    let columns: Vec<&str> =
        FIRST.into_iter().filter(there).chain(middle).chain(LAST.into_iter().filter(there)).collect();
    let mut out = format!("\n| {} |\n|{}\n", columns.join(" | "), "---|".repeat(columns.len()));
    for row in rows {
        let cells: Vec<String> =
            columns.iter().map(|name| row.get(*name).map_or(String::new(), cell)).collect();
        let _ = writeln!(out, "| {} |", cells.join(" | "));
    }
    out
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.replace('|', "\\|").replace('\n', " "),
        Value::Number(number) if number.is_f64() => short(number.as_f64().unwrap_or_default()),
        other => other.to_string(),
    }
}

/// Three digits that count.
fn short(figure: f64) -> String {
    match figure.abs() {
        size if size >= 100.0 => format!("{figure:.0}"),
        size if size >= 10.0 => format!("{figure:.1}"),
        size if size >= 1.0 => format!("{figure:.2}"),
        _ => format!("{figure:.3}"),
    }
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

/// Returns what must not happen in a rehearsal: failures, stages without rows, wrong results, and
/// cells without a prediction.
pub(super) fn complaints(stages: &[StageResult], rows: &Rows) -> Vec<String> {
    let mut found: Vec<String> =
        failures(stages, rows).lines().filter(|line| line.starts_with("- ")).map(str::to_owned).collect();
    for stage in stages.iter().filter(|stage| measured(rows, stage).next().is_none()) {
        found.push(format!("- {}: no rows", stage.name));
    }
    for row in rows.all() {
        let described = || format!("{}: {}", text(row, "stage"), Value::Object(row.clone()));
        if row.get("wrong").and_then(Value::as_u64).is_some_and(|wrong| wrong > 0) {
            found.push(format!("- wrong results: {}", described()));
        }
        let predicted =
            ["4", "5", "6", "7", "8"].contains(&text(row, "stage").split(' ').next().unwrap_or_default());
        if predicted && predictions::is_cell(row) && !row.contains_key("predicted") {
            found.push(format!("- no prediction: {}", described()));
        }
    }
    found
}

#[cfg(test)]
mod unit_tests {
    use super::*;
    use crate::gpu_suite::rows::row;
    use serde_json::json;

    #[test]
    fn table_orders_columns_and_leaves_gaps() {
        let rows =
            [json!({"us": 1.5, "zero": true, "collective": "a|b", "stage": "5"}), json!({"collective": "c"})];
        let rows: Vec<Row> = rows.into_iter().map(row).collect();
        let shown = table(&rows.iter().collect::<Vec<_>>());
        assert_eq!(
            shown,
            "\n| collective | zero | us |\n|---|---|---|\n| a\\|b | true | 1.50 |\n| c |  |  |\n"
        );
    }

    #[test]
    fn complaints_name_all_that_must_not_be() {
        let path = std::env::temp_dir().join(format!("unisono-complaints-{}", std::process::id()));
        let mut rows = Rows::create(&path).expect("a file");
        for (stage, object) in [
            ("3 smoke", json!({"test": "a", "outcome": "failed"})),
            ("3 smoke", json!({"test": "b", "outcome": "skipped"})),
            ("4 primitives", json!({"experiment": "unheard of", "us": 1.0})),
            (
                "5 all_reduce",
                json!({"collective": "all_reduce", "ranks": 2, "bytes": 8, "us": 1.0, "wrong": 1}),
            ),
        ] {
            rows.add(stage, 0.0, row(object)).expect("written");
        }
        let stage = |name| StageResult { name, question: "q", ..StageResult::default() };
        let found = complaints(&["3 smoke", "4 primitives", "5 all_reduce", "6 NCCL"].map(stage), &rows);
        let begins = ["- 3 smoke: test `a`", "- 6 NCCL: no rows", "- no prediction", "- wrong results"];
        assert_eq!(found.len(), begins.len(), "{found:#?}");
        for begin in begins {
            assert!(found.iter().any(|line| line.starts_with(begin)), "{begin}: {found:#?}");
        }
        std::fs::remove_file(path).expect("removed");
    }
}
