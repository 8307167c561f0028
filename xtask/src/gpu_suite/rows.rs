//! results.jsonl: every row as soon as it is measured, one JSON object a line.

use super::predictions;
use crate::Result;
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// One JSON object.
pub(super) type Row = Map<String, Value>;

/// The file, and the rows that are in it.
pub(super) struct Rows {
    file: File,
    all: Vec<Row>,
}

impl Rows {
    /// Creates the file, empty.
    pub(super) fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self { file, all: Vec::new() })
    }

    /// Adds a row, with the name of its stage and the seconds since the start.
    ///
    /// The row is on the disk before the next one is read: a machine that is taken away keeps all
    /// rows but the last.
    pub(super) fn add(&mut self, stage: &str, seconds: f64, mut row: Row) -> Result {
        use_common_names(&mut row);
        row.insert("stage".to_owned(), stage.into());
        row.insert("at_s".to_owned(), round(seconds).into());
        if let Some(prediction) = predictions::predict(&row) {
            prediction.add_to(&mut row);
        }
        let line = format!("{}\n", Value::Object(row.clone()));
        let written = self.file.write_all(line.as_bytes()).and_then(|()| self.file.sync_data());
        written.map_err(|error| format!("results.jsonl: {error}"))?;
        self.all.push(row);
        Ok(())
    }

    /// Returns all rows, in order.
    pub(super) fn all(&self) -> &[Row] {
        &self.all
    }

    /// Returns the rows of a stage.
    pub(super) fn of<'a>(&'a self, stage: &'a str) -> impl Iterator<Item = &'a Row> + 'a {
        self.all.iter().filter(move |row| text(row, "stage") == stage)
    }
}

/// Gives fields of other libraries' benchmarks the names of `unisono perf --jsonl`.
fn use_common_names(row: &mut Row) {
    if let Some(dtype) = row.remove("dtype") {
        row.insert("type".to_owned(), dtype);
    }
    if let Some(mode) = row.remove("mode") {
        row.insert("replayed".to_owned(), (mode == "graph").into());
    }
    if let Some(registered) = row.remove("registered") {
        let memory = if registered == true { "symmetric" } else { "ordinary" };
        row.insert("memory".to_owned(), memory.into());
    }
}

/// Returns the row that a line of output is, or `None` for any other text.
pub(super) fn parse(line: &str) -> Option<Row> {
    let object = line.trim_end().strip_prefix('{').is_some();
    object.then(|| serde_json::from_str(line).ok()).flatten()
}

/// Returns a row from the fields of an object.
pub(super) fn row(object: Value) -> Row {
    match object {
        Value::Object(row) => row,
        other => row(json!({ "value": other })),
    }
}

/// Returns a field that is a text, or an empty text.
pub(super) fn text<'a>(row: &'a Row, field: &str) -> &'a str {
    row.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// Returns a field that is a number.
pub(super) fn number(row: &Row, field: &str) -> Option<f64> {
    row.get(field).and_then(Value::as_f64)
}

/// Returns true for a field that is `true`.
pub(super) fn is(row: &Row, field: &str) -> bool {
    row.get(field).and_then(Value::as_bool).unwrap_or_default()
}

/// Returns a number with three digits behind the point.
pub(super) fn round(number: f64) -> f64 {
    (number * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_takes_objects_only() {
        assert_eq!(parse("{\"a\":1}\n"), Some(row(json!({"a": 1}))));
        assert!(parse("{not json}").is_none() && parse("# head").is_none() && parse("[1]").is_none());
    }

    #[test]
    fn rows_of_other_libraries_get_common_names() {
        let mut row = row(json!({"library": "nccl", "dtype": "float", "mode": "graph", "registered": false}));
        use_common_names(&mut row);
        let expected = json!({"library": "nccl", "type": "float", "replayed": true, "memory": "ordinary"});
        assert_eq!(Value::Object(row), expected);
    }

    #[test]
    fn rows_are_on_disk_as_soon_as_added() {
        let path = std::env::temp_dir().join(format!("unisono-rows-{}.jsonl", std::process::id()));
        let mut rows = Rows::create(&path).expect("a file");
        rows.add("one", 0.5, row(json!({"a": 1}))).expect("written");
        let written = std::fs::read_to_string(&path).expect("a file");
        assert_eq!(parse(&written).as_ref(), rows.of("one").next());
        assert!(written.contains("\"at_s\":0.5") && rows.of("two").next().is_none());
        std::fs::remove_file(path).expect("removed");
    }
}
