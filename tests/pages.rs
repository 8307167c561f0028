//! Statements of the pages about the code: links, paths, settings, commands, counts and lists.
//!
//! A statement that can be computed is compared with its source here, so that a change of the code
//! and a stale page cannot both pass.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};
use unisono::DType;
use unisono::schedule::Algorithm;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Folders below which pages are checked. Records and generated pages are made from what they say.
const FOLDERS: [&str; 10] = [
    ".github",
    "adapters",
    "benches/compare",
    "capi",
    "cuda",
    "docs",
    "examples",
    "python",
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
    let rest = prose.split("](").skip(1);
    rest.filter_map(|rest| rest.split_once(')')).map(|(target, _)| target.to_owned()).collect()
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
const BASES: [&str; 6] = ["", "src", "transports/src", "trainer/src", "cuda", "docs"];

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
        let own = Path::new(&page).parent().expect("a folder").to_owned();
        for span in code_spans(&text).into_iter().filter(|span| is_path(span)) {
            let mut bases = BASES.iter().map(PathBuf::from).chain([own.clone()]);
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
    for (at, letter) in name.chars().enumerate() {
        if letter.is_uppercase() && at > 0 {
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
    let begins = |at: usize| {
        !text[..at].ends_with(|letter: char| letter.is_alphanumeric() || ['-', '_', '/'].contains(&letter))
    };
    let found = text.match_indices(command).filter(|(at, _)| begins(*at));
    found
        .filter_map(|(at, _)| text[at + command.len()..].split([' ', '\n', '`', ',', ';', ')', '.']).next())
        .collect()
}

/// Returns true if a package has a file or a folder of tests with this name.
fn is_test(name: &str) -> bool {
    let folders = ["", "transports", "cuda", "cli", "capi", "trainer"]
        .map(|package| root().join(package).join("tests"));
    folders.iter().any(|folder| folder.join(format!("{name}.rs")).exists() || folder.join(name).is_dir())
}

#[test]
fn commands_on_pages_exist() {
    let known = [
        ("cargo xtask ", subcommands("xtask/src/main.rs", "Task")),
        ("unisono-train ", subcommands("trainer/src/main.rs", "Command")),
        ("unisono ", subcommands("cli/src/main.rs", "Command")),
        ("cargo run --release -- ", subcommands("cli/src/main.rs", "Command")),
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
fn tools_of_the_command_are_listed() {
    let mut tools = subcommands("cli/src/main.rs", "Command");
    assert!(tools.remove("exec-rank") && tools.len() > 8, "{tools:?}");
    let readme = read("README.md");
    let row = readme.lines().find(|line| line.starts_with("| tools |")).expect("a row of tools");
    let listed: BTreeSet<String> = code_spans(row).iter().map(|span| span.replace("unisono ", "")).collect();
    assert_eq!(listed, tools, "README.md");
    let page = read("docs/book/src/tools.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split([' ', '`']).next());
    assert_eq!(rows.map(str::to_owned).collect::<BTreeSet<_>>(), tools, "tools.md");
}

#[test]
fn counts_on_pages_are_those_of_the_code() {
    let readme = read("README.md");
    let manifest = read("Cargo.toml");
    let rust = manifest.lines().find_map(|line| line.strip_prefix("rust-version = \"")).expect("a version");
    let rust = format!("Rust {} or newer", rust.trim_end_matches('"'));
    for text in [
        format!("| algorithms | {}, ", Algorithm::ALL.len()),
        format!("| types and reductions | {} types", DType::ALL.len()),
        rust.clone(),
    ] {
        assert!(readme.contains(&text), "README.md does not say `{text}`");
    }
    for page in ["CONTRIBUTING.md", "docs/book/src/installation.md"] {
        assert!(read(page).contains(&rust), "{page} does not say `{rust}`");
    }
    let targets: BTreeSet<String> = names_in("fuzz/corpus").into_iter().collect();
    let security = read("SECURITY.md");
    let (_, table) = security.split_once("## Fuzzing").expect("a section");
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    assert_eq!(rows.map(str::to_owned).collect::<BTreeSet<_>>(), targets, "targets in SECURITY.md");
}

fn names_in(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(root().join(folder)).expect("a folder").flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn indexes_list_every_page() {
    let mut missing = Vec::new();
    for (folder, index) in [
        ("docs/notebook", "docs/notebook/README.md"),
        ("docs/decisions", "docs/decisions/README.md"),
        ("docs/decisions", "docs/book/src/decisions.md"),
        ("docs/book/src", "docs/book/src/SUMMARY.md"),
    ] {
        let text = read(index);
        let pages = names_in(folder).into_iter().filter(|name| name.ends_with(".md"));
        let pages = pages.filter(|name| !["README.md", "SUMMARY.md"].contains(&name.as_str()));
        let unlisted = pages.filter(|name| !text.contains(&format!("{name})")));
        missing.extend(unlisted.map(|name| format!("{index}: {name}")));
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

/// Names of the modules that a crate declares, without those of tests.
fn modules(path: &str) -> BTreeSet<String> {
    let source = read(path);
    let mut found = BTreeSet::new();
    let mut previous = "";
    for line in source.lines() {
        let is_of_tests = previous.starts_with("#[cfg(") && previous.contains("test");
        let declared = line.strip_prefix("pub mod ").or_else(|| line.strip_prefix("mod "));
        if let Some(name) = declared.and_then(|name| name.strip_suffix(';')).filter(|_| !is_of_tests) {
            found.insert(name.to_owned());
        }
        previous = if line.starts_with("#[doc(hidden)]") { previous } else { line };
    }
    found
}

#[test]
fn module_tables_list_every_module() {
    for (page, start, source, small) in [
        ("ARCHITECTURE.md", "| module of `src` |", "src/lib.rs", &["hash", "log", "sync"][..]),
        (
            "trainer/README.md",
            "| module |",
            "trainer/src/lib.rs",
            &["allocator", "device", "error", "parameter", "pass", "random", "tensor"][..],
        ),
    ] {
        let text = read(page);
        let (_, table) = text.split_once(start).expect("the table");
        let table = table.split("\n\n").next().unwrap_or(table);
        let first_cells = table.lines().filter_map(|line| line.strip_prefix("| `")?.split(" |").next());
        let names = first_cells.flat_map(words).filter(|word| !word.is_empty() && *word != "experts");
        let listed: BTreeSet<String> = names.map(str::to_owned).collect();
        let mut declared = modules(source);
        declared.retain(|name| !small.contains(&name.as_str()));
        assert_eq!(listed, declared, "modules of {source} in {page}");
    }
}

#[test]
fn workflows_run_every_lane() {
    let known = lanes();
    let mut run = BTreeSet::new();
    for file in names_in(".github/workflows") {
        let text = read(&format!(".github/workflows/{file}"));
        let named = text.lines().filter_map(|line| line.trim().strip_prefix("lanes: "));
        for lane in named.filter(|named| !named.starts_with("${{")).flat_map(str::split_whitespace) {
            assert!(known.contains(lane), "{file} names the lane {lane}, which .ci/run does not have");
            run.insert(lane.to_owned());
        }
    }
    assert_eq!(run, known, "lanes that no workflow runs, or the other way round");
}

#[test]
fn calls_of_the_migration_page_exist() {
    let mut source = String::new();
    let mut files = Vec::new();
    collect(&root().join("src"), "rs", true, &mut files);
    files.iter().for_each(|file| source += &fs::read_to_string(file).expect("readable"));
    let page = read("docs/book/src/migration.md");
    let rows = page
        .lines()
        .filter(|line| line.starts_with("| "))
        .filter_map(|line| line.trim_end_matches(" |").rsplit_once(" | "));
    let calls: BTreeSet<&str> = rows.flat_map(|(_, last)| words_after(last, "comm.")).collect();
    assert!(calls.len() > 40, "{calls:?}");
    let name = |call: &str| call.split(['(', '<', ':']).next().unwrap_or_default().to_owned();
    let defined = |name: &str| ["<", "("].iter().any(|next| source.contains(&format!("pub fn {name}{next}")));
    let missing: Vec<String> = calls.into_iter().map(name).filter(|name| !defined(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn functions_of_the_c_interface_are_on_its_page() {
    let (page, header) = (read("capi/README.md"), read("capi/include/unisono.h"));
    let spans = code_spans(&page);
    let named = spans.iter().filter(|span| span.starts_with("unisono_") || span.starts_with('_'));
    let missing: Vec<&String> = named.filter(|span| !header.contains(&format!("{span}("))).collect();
    assert!(missing.is_empty(), "not in unisono.h: {missing:?}");
    let collectives = read("src/schedule/mod.rs");
    let is_collective = |name: &str| collectives.contains(&format!("=> \"{name}\""));
    let functions = words(&header)
        .filter(|word| header.contains(&format!("{word}(")))
        .filter_map(|word| word.strip_prefix("unisono_"));
    let on_page = |name: &str| {
        spans.iter().any(|span| format!("unisono_{name}").ends_with(span.as_str()) && span.contains('_'))
    };
    let unnamed: BTreeSet<&str> = functions.filter(|name| !is_collective(name) && !on_page(name)).collect();
    assert!(unnamed.is_empty(), "not in capi/README.md: {unnamed:?}");
}

#[test]
fn every_kind_of_error_is_explained() {
    let kinds = read("src/error/kind.rs");
    let (_, body) = kinds.split_once("pub enum ErrorKind {").expect("the kinds");
    let body = body.split("\n}").next().unwrap_or(body);
    let variants = body
        .lines()
        .filter_map(|line| line.strip_prefix("    "))
        .filter(|line| line.starts_with(char::is_uppercase));
    let variants: Vec<&str> = variants.filter_map(|line| words(line).next()).collect();
    let page = read("docs/book/src/errors.md");
    let rows = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .map(|row| row.split(" | ").next().unwrap_or(row));
    let explained: BTreeSet<&str> = rows.flat_map(words).collect();
    let missing: Vec<&&str> = variants.iter().filter(|kind| !explained.contains(*kind)).collect();
    assert!(variants.len() > 15 && missing.is_empty(), "{missing:?}");
}

/// Each name is what a flag of other libraries is needed for: docs/book/src/not_needed.md.
#[test]
fn what_is_not_needed_is_not_used() {
    for lock in ["Cargo.lock", "python/Cargo.lock"] {
        let packages = read(lock);
        for name in ["bindgen", "clang-sys"] {
            assert!(!packages.contains(&format!("name = \"{name}\"")), "{lock} has {name}");
        }
    }
    let unused = ["shm_open", "/dev/shm", "process_vm_readv", "mlock", "gethostname", "getifaddrs"];
    let never_bound = ["sched_setaffinity", "pin_near"];
    for (folder, names) in [
        ("src", &unused[..]),
        ("transports/src", &unused[..]),
        ("cli/src", &unused[..]),
        ("cli/src/launch", &never_bound[..]),
        ("src/engine", &never_bound[..]),
        ("src/bootstrap", &never_bound[..]),
    ] {
        let mut files = Vec::new();
        collect(&root().join(folder), "rs", true, &mut files);
        assert!(!files.is_empty(), "{folder}");
        for file in files {
            let text = fs::read_to_string(&file).expect("readable");
            let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            let code = code.collect::<Vec<_>>().join("\n");
            for name in names {
                assert!(
                    !words(&code).any(|word| word == *name) && !code.contains(&format!("\"{name}")),
                    "{} uses {name}",
                    file.display()
                );
            }
        }
    }
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
