//! docs/features.md lists the features and the test that shows each. It is made from
//! docs/features.tsv: one line a feature, with its number, its name, its effect and its evidence,
//! separated by tabs.
//!
//! The evidence is `path/of/file.rs::test`, `example:name` or `ci:command`, and has to exist. After
//! a change of the table, `UNISONO_WRITE_FEATURES=1 cargo test --test features` writes the page.

use std::collections::HashSet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

const ABSENT_MARK: &str = "not part of this build";

/// One line of the table.
struct Feature {
    id: String,
    name: String,
    does: String,
    shown_by: Vec<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_default()
}

/// Titles, each with its features.
fn table() -> Vec<(String, Vec<Feature>)> {
    let mut groups: Vec<(String, Vec<Feature>)> = Vec::new();
    for line in read("docs/features.tsv").lines() {
        match line.strip_prefix("# ") {
            Some(title) => groups.push((title.to_owned(), Vec::new())),
            None => groups.last_mut().expect("a title comes first").1.push(feature(line)),
        }
    }
    groups
}

fn feature(line: &str) -> Feature {
    let fields: Vec<&str> = line.split('\t').collect();
    let [id, name, does, shown_by] = fields[..] else { panic!("four fields, not: {line}") };
    let shown_by = if shown_by == "-" { Vec::new() } else { evidence(shown_by) };
    Feature { id: id.to_owned(), name: name.to_owned(), does: does.to_owned(), shown_by }
}

/// Parts that spaces separate; a command has some itself, and stands last.
fn evidence(text: &str) -> Vec<String> {
    let (parts, command) = text.split_once("ci:").unwrap_or((text, ""));
    let parts = parts.split_whitespace().map(str::to_owned);
    parts.chain((!command.is_empty()).then(|| format!("ci:{command}"))).collect()
}

/// Returns true if the evidence of a feature exists and is run.
fn evidence_exists(shown_by: &str) -> bool {
    if let Some(command) = shown_by.strip_prefix("ci:") {
        return [read(".ci/run"), read("README.md")].iter().any(|text| text.contains(command));
    }
    if let Some(name) = shown_by.strip_prefix("example:") {
        let paths = [format!("examples/{name}.rs"), format!("trainer/examples/{name}.rs")];
        let runs = |line: &str| {
            line.trim_start().starts_with("for example in") && line.split([' ', ';']).any(|word| word == name)
        };
        return paths.iter().any(|path| root().join(path).is_file()) && read(".ci/run").lines().any(runs);
    }
    shown_by.split_once("::").is_some_and(|(path, name)| has_test(&read(path), name))
}

/// Returns true if `source` has the test `name`, written out or stamped by a macro as `name: …`.
fn has_test(source: &str, name: &str) -> bool {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let is_test = |index: usize| lines[index.saturating_sub(4)..index].contains(&"#[test]");
    let written = lines.iter().position(|line| line.starts_with(&format!("fn {name}(")));
    let stamped =
        source.contains("fn $name()") && lines.iter().any(|line| line.starts_with(&format!("{name}: ")));
    written.is_some_and(is_test) || stamped
}

#[test]
fn feature_evidence_exists() {
    let (mut wrong, mut ids) = (Vec::new(), HashSet::new());
    for feature in table().into_iter().flat_map(|(_, features)| features) {
        if feature.shown_by.is_empty() && !feature.does.starts_with(ABSENT_MARK) {
            wrong.push(format!("{}: nothing shows it, and it is not said to be absent", feature.id));
        }
        let missing = feature.shown_by.iter().filter(|shown_by| !evidence_exists(shown_by));
        wrong.extend(missing.map(|shown_by| format!("{}: there is no {shown_by}", feature.id)));
        if !ids.insert(feature.id.clone()) {
            wrong.push(format!("{} is there twice", feature.id));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn missing_evidence_is_detected() {
    for shown_by in [
        "tests/features.rs::no_test",
        "tests/features.rs::is_there",
        "nowhere.rs::a",
        "example:a",
        "ci:make me",
    ] {
        assert!(!evidence_exists(shown_by), "{shown_by}");
    }
    assert!(
        evidence_exists("tests/features.rs::missing_evidence_is_detected")
            && evidence_exists("example:01_all_reduce")
    );
}

/// The page that the table makes.
fn page() -> String {
    let mut page = "# What there is, and which test shows it\n\nMade from [features.tsv](features.tsv) by `tests/features.rs`, which checks that every test \
                    named here is one.\n"
        .to_owned();
    for (title, features) in table() {
        let _ = write!(page, "\n## {title}\n\n| | feature | what it does | shown by |\n|---|---|---|---|\n");
        for Feature { id, name, does, shown_by } in features {
            let shown: Vec<_> = shown_by.iter().map(|shown_by| link(shown_by)).collect();
            let _ = writeln!(page, "| {id} | {name} | {does} | {} |", shown.join("<br>"));
        }
    }
    page
}

/// Returns a link to a test, an example or a command.
fn link(shown_by: &str) -> String {
    if let Some(command) = shown_by.strip_prefix("ci:") {
        return format!("`{command}`");
    }
    if let Some(name) = shown_by.strip_prefix("example:") {
        let path = format!("examples/{name}.rs");
        let path = if root().join(&path).is_file() { path } else { format!("trainer/{path}") };
        return format!("[example {name}](../{path})");
    }
    let (path, name) = shown_by.split_once("::").unwrap_or((shown_by, ""));
    format!("[{name}](../{path})")
}

#[test]
fn page_matches_table() {
    let path = root().join("docs/features.md");
    if std::env::var_os("UNISONO_WRITE_FEATURES").is_some() {
        fs::write(&path, page()).expect("docs can be written");
    }
    let found = fs::read_to_string(&path).expect("docs/features.md");
    assert!(
        found == page(),
        "docs/features.md is not what the table makes: UNISONO_WRITE_FEATURES=1 cargo test --test features"
    );
}
