//! Every parser of bytes from outside has a fuzz target.
//!
//! `tests/parsers.tsv` lists the files of the crates that read or decode such bytes: the number of
//! lines that do, and the targets that reach them, or the reason why none has to. A line more or
//! less fails here, so whoever adds a parser names its target.

use super::sources;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Calls by which bytes come in or become numbers and structures.
const MARKS: [&str; 17] = [
    "from_le_bytes(",
    "from_ne_bytes(",
    "from_be_bytes(",
    "from_str_radix(",
    ".parse()",
    ".parse::<",
    "serde_json::from_",
    "toml::from_str(",
    "postcard::Deserializer",
    "from_utf8",
    "fs::read(",
    "read_to_string(",
    "File::open(",
    "env::var(",
    "env::vars",
    ".all_gather(",
    ".all_to_all(",
];
/// Folders whose code runs in programs of users.
const ROOTS: [&str; 12] = [
    "adapters/",
    "capi/src/",
    "cli/src/",
    "cuda/src/",
    "python/src/",
    "reducers/",
    "src/",
    "trainer/nn/src/",
    "trainer/parallel/src/",
    "trainer/plan/src/",
    "trainer/src/",
    "transports/src/",
];

#[test]
fn parsers_of_outside_bytes_have_fuzz_targets() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let table = fs::read_to_string(root.join("tests/parsers.tsv")).expect("readable");
    let rows: BTreeMap<&str, (usize, &str)> = table.lines().map(row).collect();
    assert_eq!(rows.len(), table.lines().count(), "a file has two rows");
    assert!(table.lines().is_sorted(), "the rows are in the order of their files");

    let known: BTreeSet<String> = targets();
    let mut wrong = Vec::new();
    for (file, (_, covered)) in &rows {
        let has_reason = covered.strip_prefix("none: ").is_some_and(|reason| reason.len() > 10);
        if !has_reason && !covered.split(' ').all(|target| known.contains(target)) {
            wrong.push(format!("{file}: `{covered}` is neither a list of targets nor `none: ` and a reason"));
        }
    }
    let found: BTreeMap<String, usize> =
        sources().iter().filter_map(|(name, text)| Some((name.clone(), marked(name, text)?))).collect();
    for (file, lines) in &found {
        match rows.get(file.as_str()) {
            Some((listed, _)) if listed == lines => {}
            Some((listed, covered)) => wrong.push(format!(
                "{file}: {lines} lines take bytes, {listed} are listed: does {covered} reach them all?"
            )),
            None => wrong.push(format!("{file}: {lines} lines take bytes: which fuzz target reaches them?")),
        }
    }
    let left = rows.keys().filter(|file| !found.contains_key(**file));
    wrong.extend(left.map(|file| format!("{file}: no line takes bytes any more")));
    assert!(
        wrong.is_empty(),
        "tests/parsers.tsv, with the calls of tests/tidy/parsers.rs:\n{}",
        wrong.join("\n")
    );
}

/// Every folder of seeds is that of a target, and every target is fuzzed by its name.
#[test]
fn fuzz_targets_and_seeds_have_the_same_names() {
    let folders = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus")).expect("seeds");
    let seeds: BTreeSet<String> =
        folders.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    assert_eq!(targets(), seeds);
}

/// Returns the names of all targets: `("name", function),` in a list of them.
fn targets() -> BTreeSet<String> {
    let lists = sources().into_iter().filter(|(name, _)| name.ends_with("/fuzzing.rs"));
    let lists = lists.filter_map(|(_, text)| {
        let (_, list) = text.split_once("pub const TARGETS: &[")?;
        Some(list.split_once("];")?.0.to_owned())
    });
    let names = |list: String| {
        let names = list.lines().filter_map(|line| line.trim().strip_prefix("(\"")?.split_once('"'));
        names.map(|(name, _)| name.to_owned()).collect::<Vec<_>>()
    };
    let targets: Vec<String> = lists.flat_map(names).collect();
    let distinct: BTreeSet<String> = targets.iter().cloned().collect();
    assert_eq!(distinct.len(), targets.len(), "two targets have one name");
    distinct
}

/// Splits a row of the table into the file, and the number of lines with what covers them.
fn row(line: &str) -> (&str, (usize, &str)) {
    let mut cells = line.split('\t');
    let (Some(file), Some(lines), Some(covered), None) =
        (cells.next(), cells.next(), cells.next(), cells.next())
    else {
        panic!("tests/parsers.tsv has three columns: {line}")
    };
    (file, (lines.parse().expect("a number of lines"), covered))
}

/// Returns the number of lines of a file that take bytes, outside of comments and tests.
fn marked(name: &str, text: &str) -> Option<usize> {
    let is_of_tests =
        ["tests.rs", "fuzzing.rs", "testing.rs", "test_gpu.rs"].iter().any(|end| name.ends_with(end))
            || ["/tests/", "/testing/", "/fuzzing/", "/examples/", "/emulator/"]
                .iter()
                .any(|part| name.contains(part));
    if is_of_tests || !ROOTS.iter().any(|root| name.starts_with(root)) {
        return None;
    }
    let code = text.split("\nmod tests {").next().unwrap_or(text).lines();
    let takes =
        |line: &&str| !line.trim_start().starts_with("//") && MARKS.iter().any(|mark| line.contains(mark));
    Some(code.filter(takes).count()).filter(|&lines| lines > 0)
}
