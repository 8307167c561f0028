//! Statements of the pages about the code: links, paths, settings, commands, counts and lists.
//!
//! A statement that can be computed is compared with its source, so that a change of the code and a
//! stale page cannot both pass. Here are the rules for all pages; `pages/single.rs` has the
//! statements of single ones.

#[path = "pages/single.rs"]
mod single;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Folders below which pages are checked. Records and generated pages are made from what they say.
const FOLDERS: [&str; 11] = [
    ".github",
    "adapters",
    "benches/compare",
    "capi",
    "cuda",
    "docs",
    "examples",
    "python",
    "reducers",
    "trainer",
    "transports",
];
const EXEMPT: [&str; 4] = [
    "docs/notebook/performance.md",
    "docs/notebook/trainer.md",
    "docs/features.md",
    "docs/book/src/algorithms/",
];
/// Folders that hold what was built or installed.
const BUILT: [&str; 3] = ["target", "node_modules", ".venv"];

/// (path from the root, text) of every page.
fn pages() -> Vec<(String, String)> {
    let mut files = Vec::new();
    collect(root(), "md", false, &mut files);
    for folder in FOLDERS {
        collect(&root().join(folder), "md", true, &mut files);
    }
    let named =
        files.iter().map(|file| file.strip_prefix(root()).expect("below the root").display().to_string());
    let named: Vec<String> =
        named.filter(|name| !EXEMPT.iter().any(|exempt| name.starts_with(exempt))).collect();
    assert!(named.len() > 40, "{named:?}");
    named.into_iter().map(|name| (name.clone(), read(&name))).collect()
}

/// Adds the files with this ending in a folder, and below it if `deep`.
fn collect(folder: &Path, ending: &str, deep: bool, files: &mut Vec<PathBuf>) {
    for path in fs::read_dir(folder).expect("a folder").flatten().map(|entry| entry.path()) {
        let is_built = BUILT.iter().any(|built| path.ends_with(built));
        if path.is_dir() && deep && !is_built {
            collect(&path, ending, deep, files);
        } else if path.extension().is_some_and(|extension| extension == ending) {
            files.push(path);
        }
    }
}

/// The text outside of fenced blocks.
fn prose(text: &str) -> String {
    text.split("```").step_by(2).collect::<Vec<_>>().join("\n")
}

/// The text inside of fenced blocks.
fn blocks(text: &str) -> String {
    text.split("```").skip(1).step_by(2).collect::<Vec<_>>().join("\n")
}

fn code_spans(text: &str) -> Vec<String> {
    let prose = prose(text);
    let lines = prose.lines().filter(|line| line.matches('`').count() % 2 == 0);
    lines.flat_map(|line| line.split('`').skip(1).step_by(2)).map(str::to_owned).collect()
}

/// Targets of links and pictures.
fn links(text: &str) -> Vec<String> {
    let prose = prose(text);
    let tails = prose.split("](").skip(1);
    tails.filter_map(|tail| tail.split_once(')')).map(|(target, _)| target.to_owned()).collect()
}

const REPOSITORY: &str = "https://github.com/unisono-rs/unisono/blob/main/";

/// The path from the root of what a link of `page` names in this repository, and its anchor.
fn target_of(page: &str, link: &str) -> Option<(PathBuf, String)> {
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let full = match path.strip_prefix(REPOSITORY) {
        Some(path) => PathBuf::from(path),
        None if path.contains("://") => return None,
        None if path.is_empty() => PathBuf::from(page),
        None => Path::new(page).parent().expect("a folder").join(path),
    };
    Some((normal(&full), anchor.to_owned()))
}

/// The path without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}

/// Anchors of the headings of a page, as GitHub and mdBook make them.
fn anchors(text: &str) -> Vec<String> {
    let headings = prose(text);
    let headings = headings.lines().filter(|line| line.starts_with('#'));
    let plain = headings.map(|line| line.trim_start_matches('#').trim().to_lowercase());
    let is_kept = |letter: &char| letter.is_alphanumeric() || [' ', '-', '_'].contains(letter);
    plain.map(|line| line.chars().filter(is_kept).collect::<String>().replace(' ', "-")).collect()
}

#[test]
fn links_lead_to_files_and_headings() {
    let mut broken = Vec::new();
    for (page, text) in pages() {
        for link in links(&text) {
            let Some((path, anchor)) = target_of(&page, &link) else { continue };
            let file = root().join(&path);
            let is_page = path.extension().is_some_and(|extension| extension == "md");
            let text = if is_page { fs::read_to_string(&file).unwrap_or_default() } else { String::new() };
            let has_anchor = anchor.is_empty()
                || !is_page
                || text.contains("{{#include")
                || anchors(&text).contains(&anchor);
            if !file.exists() || !has_anchor {
                broken.push(format!("{page}: {link}"));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// Folders from which pages name files: the root, and those that a page is about.
const BASES: [&str; 11] = [
    "",
    "src",
    "transports/src",
    "trainer",
    "trainer/src",
    "trainer/nn/src",
    "trainer/parallel/src",
    "trainer/plan/src",
    "cuda",
    "reducers",
    "docs",
];

#[test]
fn paths_in_code_spans_exist() {
    let is_path = |span: &str| {
        let letters = |letter: char| letter.is_ascii_alphanumeric() || ['_', '-', '.', '/'].contains(&letter);
        span.contains('/')
            && !span.starts_with('/')
            && !span.starts_with("target/")
            && span.chars().all(letters)
    };
    let mut missing = Vec::new();
    for (page, text) in pages() {
        let folder = Path::new(&page).parent().expect("a folder").to_owned();
        for span in code_spans(&text).into_iter().filter(|span| is_path(span)) {
            let mut bases = BASES.iter().map(PathBuf::from).chain([folder.clone()]);
            // A module is named without its ending.
            let exists = |path: PathBuf| path.exists() || path.with_extension("rs").exists();
            if !bases.any(|base| exists(root().join(base).join(&span))) {
                missing.push(format!("{page}: {span}"));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

/// Words of a text: letters, digits and underscores.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')
}

#[test]
fn settings_on_pages_exist() {
    let settings = read("src/config/env.rs");
    let header = read("capi/include/unisono.h");
    let exists = |name: &str| {
        let setting = name.trim_start_matches("UNISONO_");
        // The first are read by tests that write pages, the second are left to wrappers.
        setting.is_empty()
            || setting.starts_with("WRITE_")
            || setting == "EXT_"
            || settings.contains(&format!("\"{setting}\""))
            || words(&header).any(|word| word == name)
    };
    let mut unknown = Vec::new();
    for (page, text) in pages().into_iter().filter(|(page, _)| page != "CHANGELOG.md") {
        let named = words(&text).filter(|word| word.starts_with("UNISONO_") && !exists(word));
        unknown.extend(named.map(|name| format!("{page}: {name}")));
    }
    assert!(unknown.is_empty(), "{unknown:#?}");
}

/// Names of the variants of an enum of subcommands, as a user types them.
fn subcommands(path: &str, name: &str) -> BTreeSet<String> {
    let source = read(path);
    let (_, body) = source.split_once(&format!("enum {name} {{")).expect("the enum");
    let body = body.split("\n}").next().unwrap_or(body);
    let variants = body
        .lines()
        .filter_map(|line| line.strip_prefix("    "))
        .filter(|line| line.starts_with(char::is_uppercase));
    variants
        .map(|line| kebab(line.split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or(line)))
        .collect()
}

/// `GpuSuite` as `gpu-suite`.
fn kebab(name: &str) -> String {
    let mut text = String::new();
    for (index, letter) in name.chars().enumerate() {
        if letter.is_uppercase() && index > 0 {
            text.push('-');
        }
        text.extend(letter.to_lowercase());
    }
    text
}

/// Names of the lanes of `.ci/run`.
fn lanes() -> BTreeSet<String> {
    let script = read(".ci/run");
    let calls = script.lines().filter_map(|line| {
        ["lane ", "long_lane ", "named_lane "].iter().find_map(|start| line.strip_prefix(start))
    });
    calls.filter_map(|call| call.split(' ').next()).map(str::to_owned).collect()
}

/// The word after every occurrence of `command`, where it begins a word itself.
fn words_after<'a>(text: &'a str, command: &str) -> Vec<&'a str> {
    let begins = |offset: usize| {
        !text[..offset]
            .ends_with(|letter: char| letter.is_alphanumeric() || ['-', '_', '/'].contains(&letter))
    };
    let found = text.match_indices(command).filter(|(offset, _)| begins(*offset));
    found
        .filter_map(|(offset, _)| {
            text[offset + command.len()..].split([' ', '\n', '`', ',', ';', ')', '.']).next()
        })
        .collect()
}

/// Returns true if a package has a file or a folder of tests with this name.
fn is_test(name: &str) -> bool {
    let folders = ["", "transports", "cuda", "reducers", "cli", "capi", "trainer"]
        .map(|package| root().join(package).join("tests"));
    folders.iter().any(|folder| folder.join(format!("{name}.rs")).exists() || folder.join(name).is_dir())
}

#[test]
fn commands_on_pages_exist() {
    let known = [
        ("cargo xtask ", subcommands("xtask/src/main.rs", "Task")),
        ("unisono-train ", subcommands("trainer/src/main.rs", "Command")),
        ("unisono ", subcommands("cli/src/lib.rs", "Command")),
        ("cargo run --release -- ", subcommands("cli/src/lib.rs", "Command")),
        (".ci/run ", lanes()),
    ];
    let mut unknown = Vec::new();
    for (page, text) in pages() {
        let code = format!("{}\n{}", code_spans(&text).join("\n"), blocks(&text));
        let lines = code.lines().filter(|line| !line.contains("cargo add") && !line.contains("pip install"));
        let code = lines.collect::<Vec<_>>().join("\n");
        for (command, names) in &known {
            let typed = words_after(&code, command).into_iter();
            let typed = typed.filter(|word| word.starts_with(|letter: char| letter.is_ascii_lowercase()));
            let wrong = typed.filter(|word| !names.contains(*word));
            unknown.extend(wrong.map(|word| format!("{page}: {command}{word}")));
        }
        let tests = words_after(&code, "--test ").into_iter();
        unknown.extend(tests.filter(|test| !is_test(test)).map(|test| format!("{page}: --test {test}")));
    }
    assert!(unknown.is_empty(), "{unknown:#?}");
}

#[test]
fn checks_find_what_is_wrong() {
    let page =
        "See [a](b.md#c), `x/y.rs`, `UNISONO_A`.\n```console\nunisono rnu -n 4\n```\n## One `two`: three\n";
    assert_eq!(links(page), ["b.md#c"]);
    assert_eq!(code_spans(page), ["x/y.rs", "UNISONO_A", "two"]);
    assert_eq!(words_after(&blocks(page), "unisono "), ["rnu"]);
    assert_eq!(anchors(page), ["one-two-three"]);
    assert_eq!(target_of("docs/a.md", "../b.md#c"), Some((PathBuf::from("b.md"), "c".to_owned())));
    assert_eq!(target_of("docs/a.md", "https://example.org/x"), None);
    assert_eq!(kebab("ExecRank"), "exec-rank");
}
