//! Layers inside crates: which top-level module may use which. `layers` lists modules from the
//! bottom up; a module uses modules of lines above its own in the list, and those of one line do
//! not use each other.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The layers of one crate.
struct Crate {
    /// Folder of its sources.
    folder: &'static str,
    /// Modules from the bottom up. A new module gets a place here.
    layers: &'static [&'static [&'static str]],
}

const CRATES: [Crate; 6] = [
    Crate {
        folder: "src",
        layers: &[
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
        ],
    },
    Crate {
        folder: "transports/src",
        layers: &[
            &["interface", "rng", "text"],
            &["sync"],
            &["sys"],
            &["secure"],
            &["net", "shm"],
            &["fabric"],
            &["gpu", "sim", "wait"],
            &["tcp"],
            &["control", "threads"],
            &["loopback"],
            &["testing"],
        ],
    },
    Crate {
        folder: "trainer/nn/src",
        layers: &[
            &["counted", "error", "random"],
            &["batch", "gpu_timeline", "process_group"],
            &["allocator"],
            &["ops"],
            &["parameter", "tensor"],
            &["device", "step_plan"],
            &["strategy"],
            &["pass"],
            &["modules"],
            &["model"],
            &["testing"],
        ],
    },
    Crate {
        folder: "trainer/parallel/src",
        layers: &[
            &["bucket", "context_parallel", "mesh", "optimizer"],
            &["data_parallel"],
            &["tensor_parallel"],
            &["experts"],
            &["pipeline"],
            &["testing"],
        ],
    },
    Crate {
        folder: "trainer/plan/src",
        layers: &[&["batch_plan", "shapes"], &["stages"], &["cost"], &["planner"]],
    },
    Crate {
        folder: "trainer/src",
        layers: &[
            &["available_memory", "file_kind", "output_file", "progress"],
            &["data", "machine"],
            &["checkpoint"],
            &["models"],
            &["config"],
            &["train"],
            &["plan_command"],
            &["fuzzing"],
        ],
    },
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
    let mut wrong = Vec::new();
    for Crate { folder, layers } in CRATES {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        let mut sources = Vec::new();
        read_below(&root, &root, &mut sources);
        assert!(sources.len() > 30, "only {} files found in {folder}", sources.len());
        let library = fs::read_to_string(root.join("lib.rs")).expect("readable");
        let found = violations(layers, &library, &sources);
        wrong.extend(found.into_iter().map(|violation| format!("{folder}: {violation}")));
    }
    let wrong = wrong.join("\n");
    assert!(wrong.is_empty(), "arrows up, or modules without a layer:\n{wrong}");
}

fn read_below(src: &Path, folder: &Path, sources: &mut Vec<Source>) {
    for entry in fs::read_dir(folder).expect("readable").flatten() {
        let path = entry.path();
        if path.is_dir() {
            read_below(src, &path, sources);
        } else if !["lib.rs", "main.rs"].map(|name| src.join(name)).contains(&path)
            && path.extension().is_some_and(|extension| extension == "rs")
        {
            let relative = path.strip_prefix(src).expect("below src").display().to_string();
            let module = relative.split(['/', '.']).next().unwrap_or("").to_owned();
            let text = fs::read_to_string(&path).expect("readable");
            sources.push(Source { module, path: relative, text });
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
    let arrows = arrows(library, sources);
    let up = arrows.iter().filter(|arrow| layer_of(&arrow.from) <= layer_of(&arrow.to));
    found.extend(up.map(|arrow| format!("{}: {} uses {}", arrow.place, arrow.from, arrow.to)));
    found
}

/// Every use of another top-level module in code, outside of comments and test modules.
fn arrows(library: &str, sources: &[Source]) -> BTreeSet<Arrow> {
    let exports = exports(library, sources);
    let mut arrows = BTreeSet::new();
    for Source { module, path, text } in sources {
        if path.ends_with("tests.rs") || path.contains("/tests/") {
            continue;
        }
        for (number, line) in code(text) {
            for name in names_after_crate(line) {
                let used = exports.get(name).map_or(name, String::as_str);
                if used != module {
                    let place = format!("{path}:{}", number + 1);
                    arrows.insert(Arrow { from: module.clone(), to: used.to_owned(), place });
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
    for (offset, found) in line.match_indices("crate::") {
        if line[..offset].ends_with(|letter: char| letter.is_alphanumeric() || letter == '_' || letter == '$')
        {
            continue;
        }
        let path = &line[offset + found.len()..];
        let is_name = |letter: char| letter.is_alphanumeric() || letter == '_';
        let list = path.strip_prefix('{').map_or(path, |list| list.split('}').next().unwrap_or(list));
        let items = if path.starts_with('{') { list.split(',').collect() } else { vec![list] };
        let heads = items.into_iter().map(|item| item.trim().split(|c| !is_name(c)).next().unwrap_or(""));
        names.extend(heads.filter(|name| !name.is_empty()));
    }
    names
}

/// Names that `lib.rs` exports from a module. `pub use config::{Config, …}` makes `crate::Config` a
/// use of `config`, and `pub use fabric::*` does so with all public names of its root file.
fn exports(library: &str, sources: &[Source]) -> BTreeMap<String, String> {
    let mut exports = BTreeMap::new();
    for (module, names) in public_uses(library) {
        let names = if names.trim() == "*" { public_names(&module, sources) } else { words(&names) };
        exports.extend(names.into_iter().map(|name| (name, module.clone())));
    }
    exports
}

/// First module and rest of each `pub use` of a text.
fn public_uses(text: &str) -> Vec<(String, String)> {
    let uses = text.split(';').filter_map(|statement| statement.rsplit_once("pub use "));
    uses.filter_map(|(_, path)| path.trim().trim_start_matches("crate::").split_once("::"))
        .map(|(module, names)| (module.to_owned(), names.to_owned()))
        .collect()
}

/// Public names of the root file of a module: those that it uses in public, and those of its items.
fn public_names(module: &str, sources: &[Source]) -> Vec<String> {
    let roots = [format!("{module}.rs"), format!("{module}/mod.rs")];
    let mut names = Vec::new();
    for source in sources.iter().filter(|source| roots.contains(&source.path)) {
        names.extend(public_uses(&source.text).iter().flat_map(|(_, names)| words(names)));
        let items = source.text.lines().filter_map(|line| line.strip_prefix("pub "));
        names.extend(items.filter_map(|item| words(item).into_iter().nth(1)));
    }
    names
}

/// Words of letters, digits and underscores.
fn words(text: &str) -> Vec<String> {
    let words = text.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
    words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
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
    assert_eq!(violations(layers, library, &tree(&with_arrow)), ["middle/deep.rs:2: middle uses high"]);

    let mut in_one_layer = sound.to_vec();
    in_one_layer.push(("beside.rs", "use crate::{low, middle};\n"));
    assert_eq!(violations(layers, library, &tree(&in_one_layer)), ["beside.rs:1: beside uses middle"]);

    let mut new = sound.to_vec();
    new.push(("surprise.rs", ""));
    assert_eq!(violations(layers, library, &tree(&new)), ["surprise has no layer"]);

    let mut all_exported = sound.to_vec();
    all_exported.extend([("high/mod.rs", "pub struct Deep;\n"), ("low/other.rs", "use crate::Deep;\n")]);
    let found = violations(layers, "pub use high::*;\n", &tree(&all_exported));
    assert_eq!(found, ["low/other.rs:1: low uses high"]);
}
