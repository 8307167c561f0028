//! Language: one term for one concept, plain sentences, lines that fit.
//!
//! Every check counts its findings by folder. `tests/tidy.baseline.tsv` holds the accepted counts,
//! which may only fall: a higher count fails and prints the findings.
//! `UNISONO_WRITE_TIDY=1 cargo test --test tidy` lowers the baseline and never raises it. Only the
//! names of locals have no baseline: a folder may have none of the banned ones, or is not checked.

use super::{collect, sources};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// Words that the glossary replaced. As words of identifiers they are banned everywhere.
const RETIRED_IN_IDENTIFIERS: &[&str] = &[
    "doorman",
    "porch",
    "guest",
    "stranger",
    "strangers",
    "knock",
    "knocking",
    "lobby",
    "bell",
    "lent",
    "lend",
    "lending",
    "loan",
    "grasp",
    "vigil",
    "spots",
    "weather",
    "crowd",
    "crowded",
    "company",
    "nursery",
    "turnstile",
    "asked",
    "siblings",
    "sibling",
    "census",
    "rumoured",
    "desk",
    "doer",
    "hush",
    "neighbourhood",
    "venue",
    "gathering",
    "seats",
    "colour",
    "normalise",
    "optimiser",
    "rendezvous",
    "behaviour",
    "initialise",
];

/// Words of the list above that have no ordinary sense in this project: banned in prose, too.
const RETIRED_IN_PROSE: &[&str] = &[
    "doorman",
    "porch",
    "knock",
    "knocks",
    "lobby",
    "lent",
    "lends",
    "vigil",
    "crowded",
    "nursery",
    "turnstile",
    "rumoured",
    "neighbourhood",
    "venue",
    "whoever",
    "colour",
    "normalise",
    "optimiser",
    "behaviour",
    "initialise",
    "licence",
    "honour",
    "favour",
    "grey",
    "neighbour",
    "neighbours",
    "recognise",
];

/// Names of settings and flags that have new names.
const RETIRED_SETTINGS: &[&str] = &[
    "UNISONO_TABLE",
    "UNISONO_HEAP_BYTES",
    "UNISONO_SLOTS",
    "UNISONO_SLOT_BYTES",
    "UNISONO_WINDOW_BYTES",
    "UNISONO_STREAM_FROM_BYTES",
    "UNISONO_SOCKETS",
    "UNISONO_BIND",
    "UNISONO_ORDER",
    "UNISONO_DUMP",
    "UNISONO_TRACE",
    "UNISONO_DEBUG",
    "UNISONO_GPU_WIDE_LINES",
    "UNISONO_STATUS",
    "--keep-going",
    "--report-floor",
];

/// Names that no local variable and no parameter has, because they do not say what the value is.
const BANNED_LOCALS: &[&str] = &[
    "above", "after", "all", "around", "at", "before", "behind", "below", "beside", "between", "both", "by",
    "from", "inside", "into", "it", "near", "of", "on", "one", "onto", "outside", "over", "own", "rest",
    "since", "some", "that", "this_one", "to", "under", "until", "whole", "with", "within", "without",
];

/// Beginnings of the paths of files whose locals are not checked: texts in the tests of this file
/// have such names.
const UNCHECKED_LOCALS: &[&str] = &["tests/tidy/language.rs"];

/// Words with which no sentence of a comment or a page begins, unless it is a question.
pub(super) const BANNED_OPENINGS: &[&str] = &["What", "Whether", "Who", "Whoever", "Of", "Which", "Where"];

pub(super) const SENTENCE_WORDS_MAX: usize = 35;
pub(super) const COMMENT_WIDTH_MAX: usize = 100;
pub(super) const TEST_NAME_MAX: usize = 60;

/// Pages that keep the words of their time, lists of retired names, and this file.
const EXEMPT: &[&str] = &[
    "docs/notebook/",
    "docs/features",
    "benches/record/",
    "CHANGELOG.md",
    "tests/tidy",
    "docs/book/src/algorithms/",
];

/// One finding: the rule, the folder it counts for, and the place.
struct Finding {
    rule: &'static str,
    folder: String,
    place: String,
}

#[test]
fn language_findings_only_fall() {
    let mut findings = Vec::new();
    for (name, text) in sources() {
        if !EXEMPT.iter().any(|exempt| name.starts_with(exempt)) {
            check_source(&name, &text, &mut findings);
        }
    }
    for (name, text) in pages() {
        check_page(&name, &text, &mut findings);
    }
    compare(&findings);
}

#[test]
fn locals_are_named_by_their_values() {
    let mut findings = Vec::new();
    for (name, text) in sources() {
        if !UNCHECKED_LOCALS.iter().any(|start| name.starts_with(start)) {
            findings.extend(banned_locals(&text).iter().map(|finding| format!("{name}:{finding}")));
        }
    }
    assert!(findings.is_empty(), "locals with names that are banned:\n{}", findings.join("\n"));
}

fn pages() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files: Vec<PathBuf> =
        fs::read_dir(root).expect("readable").flatten().map(|entry| entry.path()).collect();
    for folder in ["docs", "benches", "examples", "cuda", "reducers", "transports", "trainer", "cli", "fuzz"]
    {
        collect(&root.join(folder), "md", &mut files);
    }
    files.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    let named = files.iter().map(|path| {
        let name = path.strip_prefix(root).expect("below the root").display().to_string();
        (name, fs::read_to_string(path).expect("readable"))
    });
    named.filter(|(name, _)| !EXEMPT.iter().any(|exempt| name.starts_with(exempt))).collect()
}

/// The folder for which a file counts: two levels are fine enough.
fn folder_of(name: &str) -> String {
    let parts: Vec<&str> = name.split('/').collect();
    parts[..(parts.len() - 1).min(2)].join("/")
}

fn check_source(name: &str, text: &str, findings: &mut Vec<Finding>) {
    let mut report = |rule, line: usize, what: &str| {
        let place = format!("{name}:{}: {what}", line + 1);
        findings.push(Finding { rule, folder: folder_of(name), place });
    };
    let (mut comment, mut comment_start) = (String::new(), 0);
    let mut is_test = false;
    for (number, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        if let Some(prose) = comment_text(trimmed) {
            if line.chars().count() > COMMENT_WIDTH_MAX && prose.contains(' ') {
                report("comment_width", number, &format!("{} columns", line.chars().count()));
            }
            if comment.is_empty() {
                comment_start = number;
            }
            if !prose.trim_start().starts_with('|') {
                comment.push_str(if starts_item(prose) { "\n\n" } else { "" });
                comment.push_str(prose.trim_start().trim_start_matches(['-', '*']));
                comment.push('\n');
            }
            continue;
        }
        check_prose(&std::mem::take(&mut comment), &mut |rule, what| report(rule, comment_start, what));
        let code = trimmed.split(" // ").next().unwrap_or("");
        for word in retired_words(code) {
            report("retired_identifier", number, &word);
        }
        for setting in RETIRED_SETTINGS.iter().filter(|setting| contains_word(line, setting)) {
            report("retired_setting", number, setting);
        }
        if let Some(test) = trimmed.strip_prefix("fn ").filter(|_| is_test) {
            let test = test.split('(').next().unwrap_or(test);
            if test.len() > TEST_NAME_MAX {
                report("test_name", number, test);
            }
        }
        is_test = trimmed.starts_with("#[test]") || is_test && trimmed.starts_with("#[");
    }
    check_prose(&comment, &mut |rule, what| report(rule, comment_start, what));
}

fn comment_text(line: &str) -> Option<&str> {
    let text = line.strip_prefix("//")?;
    Some(text.trim_start_matches(['/', '!']))
}

/// Returns true if the line starts an item of a list, which is a paragraph of its own.
fn starts_item(line: &str) -> bool {
    line.trim_start().starts_with(['-', '*'])
}

fn check_page(name: &str, text: &str, findings: &mut Vec<Finding>) {
    let mut prose = String::new();
    let mut in_code = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
            prose.push_str("\n\n");
        } else if !in_code && !line.trim_start().starts_with(['|', '#', '!', '[', '<']) {
            let is_item = starts_item(line) || line.trim_start().starts_with(|c: char| c.is_ascii_digit());
            prose.push_str(if is_item { "\n\n" } else { "" });
            prose.push_str(line.trim_start().trim_start_matches(['-', '*']));
            prose.push('\n');
        }
    }
    let mut report = |rule, what: &str| {
        findings.push(Finding { rule, folder: folder_of(name), place: format!("{name}: {what}") });
    };
    check_prose(&prose, &mut report);
    for setting in RETIRED_SETTINGS.iter().filter(|setting| contains_word(text, setting)) {
        report("retired_setting", setting);
    }
}

/// Checks openings, words and the length of sentences. For the length, a semicolon ends a sentence.
fn check_prose(prose: &str, report: &mut dyn FnMut(&'static str, &str)) {
    for paragraph in without_code_blocks(prose).split("\n\n") {
        for sentence in sentences(paragraph) {
            let words: Vec<&str> = sentence.split_whitespace().collect();
            let first = words.first().map_or("", |word| word.trim_matches(['*', '_', '"']));
            if BANNED_OPENINGS.contains(&first) && !sentence.ends_with('?') {
                report("sentence_opening", &sentence);
            }
            let longest = sentence.split(';').map(|part| part.split_whitespace().count()).max().unwrap_or(0);
            if longest > SENTENCE_WORDS_MAX {
                report("sentence_length", &format!("{longest} words: {sentence}"));
            }
            let plain = words.iter().filter(|word| !word.contains(['`', '/', '_', '(']));
            for word in plain.map(|word| word.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase()) {
                if RETIRED_IN_PROSE.contains(&word.as_str()) {
                    report("retired_word", &format!("{word}: {sentence}"));
                }
            }
        }
    }
}

/// The text outside of fenced blocks.
fn without_code_blocks(text: &str) -> String {
    text.split("```").step_by(2).collect::<Vec<_>>().join("\n\n")
}

/// Sentences of a paragraph. One ends with a mark and a space before a capital letter. A code span
/// counts as one word.
fn sentences(paragraph: &str) -> Vec<String> {
    let joined = paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
    let text: String = joined
        .split('`')
        .enumerate()
        .map(|(index, part)| if index % 2 == 1 { "`code`" } else { part })
        .collect();
    let letters: Vec<char> = text.chars().collect();
    let (mut found, mut sentence) = (Vec::new(), String::new());
    for (index, &letter) in letters.iter().enumerate() {
        sentence.push(letter);
        let next =
            letters.get(index + 2).is_none_or(|next| next.is_uppercase() || *next == '`' || *next == '*');
        if ['.', '?', '!', ':'].contains(&letter)
            && letters.get(index + 1).is_none_or(|next| *next == ' ')
            && next
        {
            found.push(sentence.trim().to_owned());
            sentence.clear();
        }
    }
    found.push(sentence.trim().to_owned());
    found.retain(|sentence| !sentence.is_empty());
    found
}

/// Retired words among the parts of the identifiers of a line of code. Quoted texts are prose.
fn retired_words(code: &str) -> Vec<String> {
    let unquoted: String = code.split('"').step_by(2).collect::<Vec<_>>().join(" ");
    let identifiers = unquoted.split(|c: char| !c.is_alphanumeric() && c != '_');
    identifiers.flat_map(parts).filter(|part| RETIRED_IN_IDENTIFIERS.contains(&part.as_str())).collect()
}

/// `AllReduceOp` and `all_reduce_op` are both all, reduce, op.
fn parts(identifier: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut was_lower = false;
    for letter in identifier.chars() {
        if letter == '_' || letter.is_uppercase() && was_lower {
            parts.push(String::new());
        }
        if letter != '_' {
            parts.last_mut().expect("one at least").extend(letter.to_lowercase());
        }
        was_lower = letter.is_lowercase() || letter.is_ascii_digit();
    }
    parts
}

/// `text` contains `word` with no letter of a name beside it.
fn contains_word(text: &str, word: &str) -> bool {
    let is_name = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == '-';
    text.match_indices(word).any(|(offset, _)| {
        !text[offset + word.len()..].starts_with(is_name) && !text[..offset].ends_with(is_name)
    })
}

/// Banned names of locals and parameters, each with its line. The parameters of functions that are
/// `pub` belong to interfaces, so they are left out.
fn banned_locals(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut is_signature = false;
    for (number, line) in text.lines().enumerate() {
        let code: String = line.split("//").next().unwrap_or("").split('"').step_by(2).collect();
        let trimmed = code.trim();
        if format!(" {trimmed}").contains(" fn ") && trimmed.contains('(') {
            is_signature = !trimmed.starts_with("pub ");
        }
        let parameters = if is_signature { parameter_names(&code) } else { Vec::new() };
        let names = bound_names(&code).into_iter().chain(parameters);
        let banned = names.filter(|name| BANNED_LOCALS.contains(&name.as_str()));
        found.extend(banned.map(|name| format!("{}: {name}", number + 1)));
        is_signature &= !trimmed.ends_with(['{', '}', ';']);
    }
    found
}

/// Names that `let`, `for` and closures bind in a line of code.
fn bound_names(code: &str) -> Vec<String> {
    let mut patterns = Vec::new();
    let lets = format!(" {code}").replace("(let ", " let ");
    for binding in lets.split(" let ").skip(1) {
        if let Some(end) = [" =", ": ", ";"].into_iter().filter_map(|end| binding.find(end)).min() {
            patterns.push(&binding[..end]);
        }
    }
    let header = code.trim_start().strip_prefix("for ").and_then(|header| header.split_once(" in "));
    patterns.extend(header.map(|(pattern, _)| pattern));
    let parts: Vec<&str> = code.split('|').collect();
    let closures = parts[..parts.len() - 1].iter().skip(1).step_by(2);
    let parameters = closures.flat_map(|parameters| parameters.split(','));
    let parameters = parameters.map(|parameter| parameter.split(':').next().unwrap_or("").trim());
    // Words with spaces between them are the cell of a table in a text of several lines.
    patterns.extend(parameters.filter(|parameter| !parameter.replace("mut ", "").contains(' ')));
    patterns.into_iter().flat_map(pattern_names).collect()
}

/// Names in a pattern. Those in braces are left out, because they are fields of a struct.
fn pattern_names(pattern: &str) -> Vec<String> {
    let (mut outside_braces, mut depth) = (String::new(), 0_usize);
    for letter in pattern.chars() {
        match letter {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ if depth == 0 => outside_braces.push(letter),
            _ => {}
        }
    }
    let names = outside_braces.split(|c: char| !c.is_alphanumeric() && c != '_');
    names.map(str::to_owned).collect()
}

/// Names of the parameters in a line of a signature.
fn parameter_names(code: &str) -> Vec<String> {
    let declarations = code.split(['(', ',']).map(str::trim).filter_map(|part| part.split_once(':'));
    let typed = declarations.filter(|(_, kind)| !kind.starts_with(':'));
    typed.map(|(name, _)| name.strip_prefix("mut ").unwrap_or(name).to_owned()).collect()
}

/// Fails where a count is above the baseline; lowers the baseline if the environment asks for that.
/// Without a file, the present counts become the baseline. An empty file accepts no finding.
fn compare(findings: &[Finding]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tidy.baseline.tsv");
    let baseline = fs::read_to_string(&path);
    let is_first = baseline.is_err();
    let accepted: BTreeMap<(String, String), usize> =
        baseline.unwrap_or_default().lines().filter_map(row).collect();
    let mut counts: BTreeMap<(String, String), usize> = BTreeMap::new();
    for Finding { rule, folder, .. } in findings {
        *counts.entry(((*rule).to_owned(), folder.clone())).or_default() += 1;
    }
    let limit = |key: &(String, String)| accepted.get(key).copied().unwrap_or(0);
    let risen: Vec<_> = counts.iter().filter(|(key, count)| **count > limit(key)).collect();
    for ((rule, folder), count) in &risen {
        println!("{rule} in {folder}/: {count}, accepted {}", limit(&(rule.clone(), folder.clone())));
        let places = findings.iter().filter(|finding| finding.rule == rule && finding.folder == *folder);
        places.for_each(|finding| println!("    {}", finding.place));
    }
    if std::env::var_os("UNISONO_WRITE_TIDY").is_some() {
        let lower =
            |key: &(String, String), count: usize| if is_first { count } else { count.min(limit(key)) };
        write_baseline(&path, counts.iter().map(|(key, count)| (key.clone(), lower(key, *count))).collect());
        assert!(is_first || risen.is_empty(), "{} counts are above the baseline", risen.len());
        return;
    }
    assert!(risen.is_empty(), "{} counts are above tests/tidy.baseline.tsv", risen.len());
}

fn row(line: &str) -> Option<((String, String), usize)> {
    let fields: Vec<&str> = line.split('\t').collect();
    let [rule, folder, count] = fields[..] else { return None };
    Some(((rule.to_owned(), folder.to_owned()), count.parse().expect("a number")))
}

fn write_baseline(path: &Path, counts: BTreeMap<(String, String), usize>) {
    let mut text = String::new();
    for ((rule, folder), count) in counts.into_iter().filter(|(_, count)| *count > 0) {
        writeln!(text, "{rule}\t{folder}\t{count}").expect("memory");
    }
    fs::write(path, text).expect("writable");
}

#[test]
fn identifier_parts_split_at_case_and_underscore() {
    assert_eq!(parts("DoormanBell_of_2Peers"), ["doorman", "bell", "of", "2", "peers"]);
    assert_eq!(retired_words("let x = Lent::new(\"porch\", is_crowded);"), ["lent", "crowded"]);
    assert_eq!(retired_words("silent_talent"), Vec::<String>::new());
}

#[test]
fn prose_rules_find_what_they_ban() {
    let mut found = Vec::new();
    let long = "word ".repeat(40);
    let text = format!("Whether it works. Good: `Of` code. Who comes?\nA doorman waits. Which one. {long}.");
    check_prose(&text, &mut |rule, _| found.push(rule));
    assert_eq!(found, ["sentence_opening", "retired_word", "sentence_opening", "sentence_length"]);
}

#[test]
fn banned_locals_are_found_where_they_are_bound() {
    let text = "let (mut all, ours) = pair;\nlet Peer { from, .. } = peer; // let own = 1;\n\
        for (at, share) in shares {\nlist.map(|one: &str| \"|own|\");\nfn copy(mut from: Rank, own_part: Rank) {\n\
        pub fn copy(into: Rank) {\npub(crate) fn copy(\n    into: Rank,\n) {\nif let Some(of) = rank {\n\
        | share of a cell, from 1 MiB |";
    assert_eq!(banned_locals(text), ["1: all", "3: at", "4: one", "5: from", "8: into", "10: of"]);
}
