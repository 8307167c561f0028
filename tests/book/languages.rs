//! The page with the calls of Rust, C and Python, read from their sources. A call that one of them
//! lacks has a reason here.

use super::{GENERATED, read, require, root};
use Language::{C, Python, Rust};
use std::collections::BTreeMap;
use std::fmt::Write;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Language {
    Rust,
    C,
    Python,
}

const LANGUAGES: [Language; 3] = [Rust, C, Python];

/// Calls of each language by the name that they have in common.
type Calls = BTreeMap<String, [Vec<String>; 3]>;

/// Calls whose name differs from that of the other languages: here, and in common.
const OTHER_NAMES: &[(Language, &str, &str)] = &[
    (Rust, "spawn", "start_operation"),
    (Rust, "Work::wait_timeout", "wait"),
    (C, "unisono_test", "is_finished"),
    (C, "unisono_request_on_complete", "add_done_callback"),
    (C, "unisono_comm_error", "error"),
    (Python, "__version__", "version"),
    (Python, "close", "destroy"),
    (Python, "Message.source", "request_info"),
    (Python, "Message.tag", "request_info"),
    (Python, "Message.bytes", "request_info"),
    (Python, "Work.exception", "last_error"),
];

/// Calls that languages lack, and the reason.
const GAPS: &[(&[&str], &[Language], &str)] = &[
    (&["add_done_callback"], &[Rust], "`Work` is a future, and `map` runs a function on the result"),
    (&["destroy"], &[Rust], "a communicator ends with its last handle"),
    (&["last_error"], &[Rust], "each call returns its `Error`"),
    (
        &["last_error_is_recoverable", "last_error_peer"],
        &[Rust, Python],
        "the error of a call has `is_recoverable` and `peer`",
    ),
    (&["request_free"], &[Rust, Python], "a `Work` may be dropped at any time"),
    (&["request_info"], &[Rust], "the result of `irecv` has this information"),
    (&["unique_id"], &[Rust], "`UniqueId::new` makes one"),
    (&["version"], &[Rust], "cargo knows the version"),
    (
        &["builder", "child"],
        &[C, Python],
        "settings are arguments of `join`, and groups inherit them; in Python, `split` can change them",
    ),
    (&["transport"], &[C], "`flight_record` names the transport"),
    (&["config", "epoch"], &[C, Python], "only programs in Rust report these values"),
    (&["memory_stats", "traffic_stats"], &[C, Python], "only Rust programs read these counters"),
    (&["is_poisoned"], &[C, Python], "`error` returns the reason, or nothing"),
    (&["is_terminated", "map", "and_then"], &[C, Python], "only futures of Rust need these methods"),
    (
        &["set_algorithm", "select_algorithm", "last_algorithm"],
        &[C, Python],
        "the setting `algo` of `join` and the variable `UNISONO_ALGO` choose for a communicator",
    ),
    (
        &["set_custom_algorithm", "set_custom_algorithm_unchecked"],
        &[C, Python],
        "an algorithm is a function of Rust",
    ),
    (&["all_reduce_value"], &[C, Python], "`all_reduce` of one element in place does the same"),
    (
        &["gather_vec", "all_gather_vec", "scatter_vec"],
        &[C, Python],
        "gather or scatter the counts with one call, and then the elements with `gather_v` or `scatter_v`",
    ),
    (
        &["run_with_recovery"],
        &[C, Python],
        "call `shrink_and_agree` in a loop, as the page on errors does in Rust",
    ),
    (
        &["from_env_or_alone"],
        &[C, Python],
        "if the environment has no `RANK`, call `local` for a single rank instead of `from_env`",
    ),
    (&["with_options"], &[C, Python], "settings hold for all calls on a communicator"),
    (
        &["broadcast_object", "all_gather_object", "gather_object", "scatter_object"],
        &[C, Python],
        "objects are encoded by serde; encode them yourself and send bytes, or use torch's calls",
    ),
    (
        &["scope"],
        &[C, Python],
        "the Rust compiler checks the buffers of a `scope`; start asynchronous operations instead",
    ),
    (
        &["alloc_symmetric"],
        &[C, Python],
        "Rust frees a symmetric buffer after the last operation that borrows it",
    ),
    (&["run_list_operation"], &[C, Python], "a `group` has a buffer for each send and receive"),
    (&["run_uneven_operation"], &[C, Python], "calls that end in `_v` take the element type as a value"),
    (&["run_operation"], &[Python], "every call takes arrays of all element types"),
    (&["start_operation"], &[Python], "every call has the argument `async_op`"),
];

/// Returns the part of a Rust name that all forms of a call have.
fn without_form(name: &str) -> &str {
    ["_into", "_in_place", "_async"].iter().find_map(|form| name.strip_suffix(form)).unwrap_or(name)
}

/// Adds a call under the name that languages have in common.
fn add(calls: &mut Calls, language: Language, name: &str) {
    let common_name = OTHER_NAMES.iter().find(|(owner, here, _)| *owner == language && *here == name);
    let last = name.rsplit([':', '.']).next().unwrap_or(name);
    let usual = match language {
        Rust => without_form(last),
        C => last.trim_start_matches("unisono_").trim_start_matches("comm_"),
        Python => last,
    };
    let common = common_name.map_or(usual, |(_, _, common)| common);
    let names = &mut calls.entry(common.to_owned()).or_default()[language as usize];
    if !names.iter().any(|known| known == name) {
        names.push(name.to_owned());
    }
}

/// Adds the public methods of communicators and of handles.
fn add_rust(calls: &mut Calls) {
    let folder = root().join("src/communicator");
    let folders = [folder.clone(), folder.join("api"), folder.join("calls"), folder.join("lifecycle")];
    let entries = folders.iter().flat_map(|folder| std::fs::read_dir(folder).expect("a folder").flatten());
    let mut files: Vec<_> = entries.map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "rs"));
    files.sort();
    for path in files {
        let source = std::fs::read_to_string(&path).expect("readable");
        let mut container = None;
        for line in source.lines() {
            if line.starts_with("impl") {
                container = match line.trim_end_matches(" {") {
                    "impl Communicator" => Some(""),
                    inherent if inherent.ends_with(" Work<R>") && !inherent.contains(" for ") => {
                        Some("Work::")
                    }
                    _ => None,
                };
            }
            let (Some(prefix), Some(signature)) = (container, line.strip_prefix("    pub fn ")) else {
                continue;
            };
            let name = signature.split(['(', '<']).next().unwrap_or(signature);
            add(calls, Rust, &format!("{prefix}{name}"));
        }
    }
}

/// Adds the functions of the header.
fn add_c(calls: &mut Calls) {
    for line in read("capi/include/unisono.h").lines().filter(|line| !line.starts_with([' ', '/', '#'])) {
        let names = line.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        for name in names.filter(|name| name.starts_with("unisono_") && line.contains(&format!("{name}("))) {
            add(calls, C, name);
        }
    }
}

/// Adds the public functions and methods of the stub.
fn add_python(calls: &mut Calls) {
    let mut class = "";
    for line in read("python/unisono/communicator.pyi").lines() {
        if let Some(name) = line.strip_prefix("class ") {
            class = name.split(['(', ':']).next().unwrap_or(name);
        }
        let Some(signature) = line.trim_start().strip_prefix("def ") else { continue };
        let name = signature.split('(').next().unwrap_or(signature);
        if !name.starts_with('_') {
            let prefix =
                if ["", "Communicator"].contains(&class) { String::new() } else { format!("{class}.") };
            add(calls, Python, &format!("{prefix}{name}"));
        }
    }
    assert!(read("python/unisono/__init__.py").contains("__version__"));
    add(calls, Python, "__version__");
}

/// Returns the reason why a language lacks a call.
fn reason(common: &str, language: Language) -> Option<&'static str> {
    let row = GAPS.iter().find(|(names, lacking, _)| names.contains(&common) && lacking.contains(&language));
    row.map(|(_, _, reason)| *reason)
}

/// Returns gaps without a reason, and reasons without a gap.
fn unexplained(calls: &Calls) -> Vec<String> {
    let mut found = Vec::new();
    for (common, names) in calls {
        for language in LANGUAGES {
            match (names[language as usize].is_empty(), reason(common, language)) {
                (true, None) => found.push(format!("{language:?} has no `{common}`, and no reason is given")),
                (false, Some(_)) => found.push(format!("{language:?} has `{common}`, which a reason denies")),
                _ => {}
            }
        }
    }
    let unknown = GAPS.iter().flat_map(|(names, ..)| *names).filter(|name| !calls.contains_key(**name));
    found.extend(unknown.map(|name| format!("no language has `{name}`, which a reason is given for")));
    found
}

fn calls() -> Calls {
    let mut calls = Calls::new();
    add_rust(&mut calls);
    add_c(&mut calls);
    add_python(&mut calls);
    calls
}

#[test]
fn languages_page_matches_the_sources() {
    let calls = calls();
    let counts =
        LANGUAGES.map(|language| calls.values().filter(|names| !names[language as usize].is_empty()).count());
    assert!(counts.iter().all(|&count| count > 40), "{counts:?}");
    let found = unexplained(&calls);
    assert!(
        found.is_empty(),
        "add the calls, or rows to GAPS in tests/book/languages.rs:\n{}",
        found.join("\n")
    );
    let mut page = format!("# What each language has\n\n{GENERATED}");
    page.push_str("A call has one name in all languages, and all its forms share a row. In Rust, a form in `_into` writes to a\n");
    page.push_str("separate output, a form in `_in_place` has one buffer for both, and a form in `_async` starts the operation. In C, the\n");
    page.push_str("same buffer can be given as input and output, and `unisono_start_operation` starts an asynchronous operation. In\n");
    page.push_str("Python, an argument selects the form. `send` and `recv` move elements in order, without a tag. `isend` and `irecv`\n");
    page.push_str("move messages with tags, and can run at the same time as all other calls.\n\n");
    page.push_str("| call | Rust | C | Python |\n|---|---|---|---|\n");
    for (common, names) in &calls {
        write!(page, "| {common} |").expect("memory");
        for names in names {
            let mut names = names.clone();
            names.sort_by_key(String::len);
            let spans: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
            write!(page, " {} |", if spans.is_empty() { "no".to_owned() } else { spans.join(" ") })
                .expect("memory");
        }
        page.push('\n');
    }
    page.push_str("\n## Why some are missing\n\n| call | not in | reason |\n|---|---|---|\n");
    for (names, lacking, reason) in GAPS {
        let lacking: Vec<String> = lacking.iter().map(|language| format!("{language:?}")).collect();
        writeln!(page, "| {} | {} | {reason} |", names.join(", "), lacking.join(", ")).expect("memory");
    }
    page.push_str(
        "\nIn Rust, ranks on GPUs have a separate type, `DeviceCommunicator`. C and Python have none.\n",
    );
    require("languages.md", &page);
}

#[test]
fn call_without_a_reason_is_found() {
    let mut calls = calls();
    add(&mut calls, Rust, "all_reduce_twice_async");
    add(&mut calls, C, "unisono_comm_scope");
    let expected = [
        "C has no `all_reduce_twice`, and no reason is given",
        "Python has no `all_reduce_twice`, and no reason is given",
        "C has `scope`, which a reason denies",
    ];
    assert_eq!(unexplained(&calls), expected);
}
