//! Statements of single pages: counts, figures, tables, indexes, and what CI runs.

use super::{code_spans, collect, lanes, read, root, subcommands, words, words_after};
use std::collections::BTreeSet;
use std::fs;
use unisono::DType;
use unisono::schedule::Algorithm;

#[test]
fn tools_of_the_command_are_listed() {
    let mut tools = subcommands("cli/src/lib.rs", "Command");
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
    let report = read("benches/instructions/src/report.rs");
    let (_, tolerance) = report.split_once("const TOLERANCE: f64 = ").expect("a tolerance");
    let tolerance = tolerance.split('.').next().unwrap_or(tolerance);
    let contributing = read("CONTRIBUTING.md");
    assert!(
        contributing.contains(&format!("grow by more than {tolerance} %")),
        "CONTRIBUTING.md on {tolerance} %"
    );
    let locked = read(".ci/pip/jax.in");
    let jax = format!("`pip install {}", locked.lines().next().expect("a version of JAX"));
    assert!(read("docs/book/src/jax.md").contains(&jax), "jax.md does not say {jax}");
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
        ("trainer/README.md", "| module |", "trainer/src/lib.rs", &[]),
        ("trainer/nn/README.md", "| module |", "trainer/nn/src/lib.rs", &["testing"]),
        ("trainer/parallel/README.md", "| module |", "trainer/parallel/src/lib.rs", &["testing"]),
        ("trainer/plan/README.md", "| module |", "trainer/plan/src/lib.rs", &[]),
    ] {
        let text = read(page);
        let (_, table) = text.split_once(start).expect("the table");
        let table = table.split("\n\n").next().unwrap_or(table);
        let first_cells = table.lines().filter_map(|line| line.strip_prefix("| `")?.split(" |").next());
        let names = first_cells.flat_map(words).filter(|word| !word.is_empty());
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

/// Others cannot change afterwards what CI runs of them, and locked versions are kept up to date.
#[test]
fn ci_runs_no_code_that_others_can_change() {
    for file in names_in(".github/workflows") {
        let text = read(&format!(".github/workflows/{file}"));
        for action in text.lines().filter_map(|line| line.split_once("uses: ")).map(|(_, action)| action) {
            let commit = action.split_once('@').map_or("", |(_, commit)| commit);
            let is_commit = commit.split_once(" # v").is_some_and(|(commit, _)| {
                commit.len() == 40 && commit.bytes().all(|digit| digit.is_ascii_hexdigit())
            });
            assert!(action.starts_with("./") || is_commit, "{file}: `{action}` names no commit and version");
        }
    }
    for names in names_in(".ci/pip").iter().filter_map(|file| file.strip_suffix(".in")) {
        let locked = read(&format!(".ci/pip/{names}.txt"));
        let is_name = |line: &&str| line.starts_with(|first: char| first.is_ascii_alphanumeric());
        let packages = locked.lines().filter(is_name).count();
        let digests = locked.matches("--hash=sha256:").count();
        assert!(0 < packages && packages <= digests, "{names}: {digests} digests of {packages} packages");
    }
    let watched = read(".github/dependabot.yml");
    let adapters = names_in("adapters").into_iter().map(|name| format!("adapters/{name}"));
    let folders = names_in(".").into_iter().chain(adapters);
    for folder in folders.filter(|folder| root().join(folder).join("Cargo.lock").is_file()) {
        let named = format!("/{folder}");
        assert!(watched.contains(&named), "dependabot does not watch {named}");
    }
}

/// Cells of the rows of a table that begins with this line.
fn table<'a>(text: &'a str, head: &str) -> Vec<Vec<&'a str>> {
    let (_, tail) = text.split_once(head).unwrap_or_else(|| panic!("no table {head}"));
    let rows = tail.lines().skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| row.trim_matches(['|', ' ']).split(" | ").map(str::trim).collect()).collect()
}

/// A figure without the commas between its thousands.
fn number(text: &str) -> f64 {
    text.replace(',', "").parse().unwrap_or_else(|_| panic!("{text} is no number"))
}

#[test]
fn figures_of_the_readme_are_those_of_the_record() {
    let readme = read("README.md");
    let (_, link) = readme.split_once("[the record](").expect("a link");
    let record = read(link.split(')').next().expect("a path"));
    let means = table(&record, "| transport | collective | data points |");
    let sum = |column: usize| means.iter().map(|row| number(row[column])).sum::<f64>();
    let mean = |transport| {
        let row = means.iter().find(|row| row[..2] == [transport, "all_reduce"]).expect("a row");
        format!("{:.1} times", number(row[4]))
    };
    for text in [
        format!("slower in {} of {} configurations", sum(3), sum(2)),
        format!(
            "{} as fast as the best other library over shared memory and {} over TCP",
            mean("shm"),
            mean("tcp")
        ),
    ] {
        let readme = readme.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(readme.contains(&text), "README.md does not say: {text}");
    }
    let (_, of_shm) = record.split_once("## all_reduce, shm").expect("a section");
    let measured = table(of_shm, "| ranks | size |");
    let shown = table(&readme, "| ranks | bytes | unisono");
    assert!(shown.len() > 3, "{shown:?}");
    for row in shown {
        let size = if row[1] == "8" { "8 B" } else { row[1] };
        let is_it = |found: &&Vec<&str>| found[0].starts_with(&format!("{}, ", row[0])) && found[1] == size;
        let found = measured.iter().find(is_it).unwrap_or_else(|| panic!("{row:?} is not in the record"));
        let of_record = [found[2], found[3], found[4]].map(number);
        assert_eq!([row[2], row[3], row[4]].map(number), of_record, "{row:?}");
        assert!((number(row[5]) - number(found[6])).abs() < 0.051, "{row:?} beside {found:?}");
    }
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
