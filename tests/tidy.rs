//! The shape of the source: short files, short functions, `unsafe` where it belongs, no leftovers,
//! the language of identifiers, comments and Markdown (`tidy/language.rs`), and fuzz targets for
//! parsers (`tidy/parsers.rs`).

#[path = "tidy/language.rs"]
mod language;
#[path = "tidy/parsers.rs"]
mod parsers;

use std::fs;
use std::path::{Path, PathBuf};

const LINES_PER_FILE_MAX: usize = 500;
const LINES_PER_FUNCTION_MAX: usize = 70;
/// Crates that may contain `unsafe`.
const UNSAFE_ROOTS: [&str; 6] = ["adapters/", "capi/", "cuda/", "python/", "reducers/", "transports/"];

fn sources() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for folder in [
        "src",
        "adapters",
        "capi",
        "cuda",
        "reducers",
        "python",
        "transports",
        "trainer",
        "cli",
        "tests",
        "examples",
        "benches",
        "xtask",
        "fuzz/src",
    ] {
        collect(&root.join(folder), "rs", &mut files);
    }
    assert!(files.len() > 40, "only {} files found", files.len());
    let name = |path: &Path| path.strip_prefix(root).expect("below the root").display().to_string();
    files.iter().map(|path| (name(path), fs::read_to_string(path).expect("readable"))).collect()
}

#[test]
fn pages_state_the_limits_that_are_checked() {
    let read = |page: &str| {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
        let text = fs::read_to_string(page).expect("readable");
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let (contributing, security) = (read("CONTRIBUTING.md"), read("SECURITY.md"));
    for text in [
        format!(
            "lines, at most {LINES_PER_FILE_MAX}. A function has a few lines, at most {LINES_PER_FUNCTION_MAX}."
        ),
        format!("and never more than {} words.", language::SENTENCE_WORDS_MAX),
        format!("Comments wrap at {} columns.", language::COMMENT_WIDTH_MAX),
        format!("in at most {} characters.", language::TEST_NAME_MAX),
        format!("`{}`", language::BANNED_OPENINGS.join(", ")),
    ] {
        assert!(contributing.contains(&text), "CONTRIBUTING.md does not say: {text}");
    }
    for (page, text, start) in [
        ("CONTRIBUTING.md", &contributing, "- `unsafe` code is allowed in"),
        ("SECURITY.md", &security, "| `unsafe` code is in"),
    ] {
        let (_, tail) = text.split_once(start).expect("a sentence about it");
        let sentence =
            tail.split_once(", and each").or_else(|| tail.split_once(". Every")).expect("its end").0;
        let mut named: Vec<&str> = sentence.split('`').filter(|word| word.ends_with('/')).collect();
        named.sort_unstable();
        assert_eq!(named, UNSAFE_ROOTS, "{page}");
    }
}

/// Adds the files with this extension below a folder.
fn collect(folder: &Path, extension: &str, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && !path.ends_with("target") {
            collect(&path, extension, files);
        } else if path.extension().is_some_and(|found| found == extension) {
            files.push(path);
        }
    }
}

#[test]
fn files_and_functions_are_short() {
    let mut long = Vec::new();
    for (name, text) in sources() {
        let lines: Vec<&str> = text.lines().collect();
        if lines.len() > LINES_PER_FILE_MAX {
            long.push(format!("{name} has {} lines", lines.len()));
        }
        for (start, length) in functions(&lines) {
            if length > LINES_PER_FUNCTION_MAX {
                long.push(format!("{name}:{} is a function of {length} lines", start + 1));
            }
        }
    }
    assert!(long.is_empty(), "{long:#?}");
}

/// A busy machine may take any time, so a limit only ends a hang. Virtual time is no such limit.
#[test]
fn assertions_hold_no_short_wall_clock_limits() {
    let mut short = Vec::new();
    for (name, text) in sources() {
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.contains(".now()")) {
            let Some((condition, limit)) = line.split_once(concat!("< Duration", "::from_")) else {
                continue;
            };
            let Some((unit, argument)) = limit.split_once('(') else { continue };
            let digits: String = argument.chars().take_while(char::is_ascii_digit).collect();
            let seconds = digits.parse::<u64>().unwrap_or(0);
            if condition.contains("assert") && (unit != "secs" || seconds < SECONDS_OF_A_HANG) {
                short.push(format!("{name}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    assert!(short.is_empty(), "assert an event; a limit of a minute may end a hang: {short:#?}");
}

const SECONDS_OF_A_HANG: u64 = 60;

/// (first line, number of lines) of every function, by its indentation: rustfmt keeps that honest.
fn functions(lines: &[&str]) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let indent = line.len() - line.trim_start().len();
        let head = line.trim_start().trim_start_matches("pub ").trim_start_matches("pub(crate) ");
        let head = head
            .trim_start_matches("pub(super) ")
            .trim_start_matches("const ")
            .trim_start_matches(concat!("unsafe", " "));
        if !head.starts_with("fn ") {
            continue;
        }
        let closes = |line: &&str| line.trim_end() == format!("{}}}", " ".repeat(indent));
        let length = lines[start..]
            .iter()
            .position(|line| closes(line) || line.ends_with(';') && line.contains("fn "));
        found.push((start, length.map_or(0, |length| length + 1)));
    }
    found
}

#[test]
fn unsafe_code_is_confined() {
    for (name, text) in sources() {
        let allowed = UNSAFE_ROOTS.iter().any(|root| name.starts_with(root));
        let code = text.lines().map(|line| line.split("//").next().unwrap_or(""));
        let found = code.filter(|line| line.contains(concat!("unsafe", " "))).count();
        assert!(allowed || found == 0, "{name} is no place for it");
    }
}

/// These macros panic if nobody reads what they print. In a function that C calls, that ends the
/// program. `unisono_transports::sys::stderr` prints without.
#[test]
fn library_code_prints_by_no_macro_that_panics() {
    let macros = [concat!("print", "!("), concat!("println", "!("), concat!("dbg", "!(")];
    let mut found = Vec::new();
    let is_of_library = |name: &str| {
        let is_program =
            ["benches/", "cli/", "examples/", "xtask/"].iter().any(|root| name.starts_with(root));
        !is_program && (name.starts_with("src/") || name.contains("/src/")) && !name.contains("test")
    };
    for (name, text) in sources().into_iter().filter(|(name, _)| is_of_library(name)) {
        let code = text.lines().take_while(|line| !line.starts_with("#[cfg(") || !line.contains("test"));
        for (number, line) in code.enumerate() {
            let line = line.split("//").next().unwrap_or("");
            if macros.iter().any(|name| line.contains(name)) {
                found.push(format!("{name}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn no_leftovers() {
    let marks =
        [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("todo", "!("), concat!("unimplemented", "!(")];
    for (name, text) in sources() {
        for mark in marks {
            assert!(!text.contains(mark), "{name} contains {mark}");
        }
        assert!(!text.contains(concat!("#[ig", "nore")), "{name} switches a test off");
    }
}
