//! Layers inside `src`: which top-level module may use which. `LAYERS` lists modules from the
//! bottom up; a module uses modules of its own line or of lines above it in the list, and those of
//! one line do not use each other.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Modules from the bottom up. A new module gets a place here.
const LAYERS: &[&[&str]] = &[
    &["sync", "log", "hash", "schedule"],
    &["op_desc"],
    &["error", "flight"],
    &["tuning", "reduce_op"],
    &["config"],
    &["select"],
    &["engine", "bootstrap"],
    &["status"],
    &["communicator"],
    &["device"],
    &["fuzzing", "doctests"],
];

/// Source of one file: its top-level module, its path, its text.
struct Source {
    module: String,
    path: String,
    text: String,
}

/// A use of one top-level module in a file of another.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Arrow {
    from: String,
    to: String,
    place: String,
}

#[test]
fn modules_use_only_lower_layers() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut sources = Vec::new();
    read_below(&src, &src, &mut sources);
    assert!(sources.len() > 40, "only {} files found", sources.len());
    let library = fs::read_to_string(src.join("lib.rs")).expect("readable");
    let found = violations(LAYERS, &library, &sources);
    assert!(found.is_empty(), "arrows up, or modules without a layer:\n{}", found.join("\n"));
}

fn read_below(src: &Path, folder: &Path, sources: &mut Vec<Source>) {
    for entry in fs::read_dir(folder).expect("readable").flatten() {
        let path = entry.path();
        if path.is_dir() {
            read_below(src, &path, sources);
        } else if path != src.join("lib.rs") && path.extension().is_some_and(|extension| extension == "rs") {
            let below = path.strip_prefix(src).expect("below src").display().to_string();
            let module = below.split(['/', '.']).next().unwrap_or("").to_owned();
            sources.push(Source { module, path: below, text: fs::read_to_string(&path).expect("readable") });
        }
    }
}

/// Arrows that do not go down, and modules that have no layer.
fn violations(layers: &[&[&str]], library: &str, sources: &[Source]) -> Vec<String> {
    let layer_of = |module: &str| layers.iter().position(|layer| layer.contains(&module));
    let modules: BTreeSet<&str> = sources.iter().map(|source| source.module.as_str()).collect();
    let mut found: Vec<String> = modules
        .iter()
        .filter(|module| layer_of(module).is_none())
        .map(|module| format!("{module} has no layer"))
        .collect();
    for Arrow { from, to, place } in arrows(library, sources) {
        if layer_of(&from) <= layer_of(&to) {
            found.push(format!("{place}: {from} uses {to}"));
        }
    }
    found
}

/// Every use of another top-level module in code, outside of comments and test modules.
fn arrows(library: &str, sources: &[Source]) -> BTreeSet<Arrow> {
    let exports = exports(library);
    let mut arrows = BTreeSet::new();
    for Source { module, path, text } in sources {
        if path.ends_with("tests.rs") || path.contains("/tests/") {
            continue;
        }
        for (number, line) in code(text) {
            for name in names_after_crate(line) {
                let to = exports.get(name).map_or(name, String::as_str);
                if to != module {
                    let place = format!("src/{path}:{}", number + 1);
                    arrows.insert(Arrow { from: module.clone(), to: to.to_owned(), place });
                }
            }
        }
    }
    arrows
}

/// Numbered lines of code: comments are empty, and the text ends at the test module.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let end = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    let lines = text[..end].lines().map(|line| if line.trim_start().starts_with("//") { "" } else { line });
    lines.enumerate()
}

/// Names behind `crate::` in a line, those of a braced list included.
fn names_after_crate(line: &str) -> Vec<&str> {
    let mut names = Vec::new();
    for (at, found) in line.match_indices("crate::") {
        if line[..at].ends_with(|letter: char| letter.is_alphanumeric() || letter == '_' || letter == '$') {
            continue;
        }
        let rest = &line[at + found.len()..];
        let is_name = |letter: char| letter.is_alphanumeric() || letter == '_';
        let list = rest.strip_prefix('{').map_or(rest, |list| list.split('}').next().unwrap_or(list));
        let items = if rest.starts_with('{') { list.split(',').collect() } else { vec![list] };
        let heads = items.into_iter().map(|item| item.trim().split(|c| !is_name(c)).next().unwrap_or(""));
        names.extend(heads.filter(|name| !name.is_empty()));
    }
    names
}

/// Names that `lib.rs` exports from a module. `pub use config::{Config, …}` makes `crate::Config` a
/// use of `config`.
fn exports(library: &str) -> BTreeMap<String, String> {
    let mut exports = BTreeMap::new();
    for statement in library.split(';') {
        let Some((_, path)) = statement.rsplit_once("pub use ") else { continue };
        let path = path.trim().trim_start_matches("crate::");
        let Some((module, names)) = path.split_once("::") else { continue };
        let names = names.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
        exports
            .extend(names.filter(|name| !name.is_empty()).map(|name| (name.to_owned(), module.to_owned())));
    }
    exports
}

#[cfg(test)]
fn tree(files: &[(&str, &str)]) -> Vec<Source> {
    let source = |(path, text): &(&str, &str)| Source {
        module: path.split(['/', '.']).next().unwrap_or("").to_owned(),
        path: (*path).to_owned(),
        text: (*text).to_owned(),
    };
    files.iter().map(source).collect()
}

#[test]
fn arrow_up_is_found_in_a_small_tree() {
    let layers: &[&[&str]] = &[&["low"], &["middle", "beside"], &["high"]];
    let library = "mod low;\npub use high::{High, Other};\n";
    let sound = [
        (
            "low.rs",
            "//! See [`crate::high`].\nfn nothing() {}\n#[cfg(test)]\nmod tests {\n use crate::high::High;\n}\n",
        ),
        ("middle/mod.rs", "use crate::low::nothing;\n"),
        ("high.rs", "use crate::{low, middle::deep};\nfn f() { crate::low::nothing() }\n"),
    ];
    assert_eq!(violations(layers, library, &tree(&sound)), Vec::<String>::new());

    let mut with_arrow = sound.to_vec();
    with_arrow.push(("middle/deep.rs", "\nfn f(_: crate::High) {}\n"));
    assert_eq!(violations(layers, library, &tree(&with_arrow)), ["src/middle/deep.rs:2: middle uses high"]);

    let mut beside = sound.to_vec();
    beside.push(("beside.rs", "use crate::{low, middle};\n"));
    assert_eq!(violations(layers, library, &tree(&beside)), ["src/beside.rs:1: beside uses middle"]);

    let mut new = sound.to_vec();
    new.push(("surprise.rs", ""));
    assert_eq!(violations(layers, library, &tree(&new)), ["surprise has no layer"]);
}
