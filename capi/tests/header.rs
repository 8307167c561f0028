//! The header and the Rust sources declare the same functions, with the same parameters.

use std::collections::BTreeMap;
use std::path::Path;

/// Number of parameters by the name of a function.
type Functions = BTreeMap<String, usize>;

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).expect("readable")
}

/// Returns the text up to the parenthesis that closes the one before it.
fn up_to_closing(text: &str) -> &str {
    let mut depth = 1;
    let end = text.find(|letter| {
        depth += i32::from(letter == '(') - i32::from(letter == ')');
        depth == 0
    });
    &text[..end.expect("a closing parenthesis")]
}

/// Returns the number of parameters of a list, in which commas may end the last one.
fn parameters(list: &str) -> usize {
    let mut depth = 0;
    let separates = |letter: char| {
        depth += i32::from(letter == '(') - i32::from(letter == ')');
        depth == 0 && letter == ','
    };
    list.split(separates).filter(|part| !part.trim().is_empty() && part.trim() != "void").count()
}

/// Returns the functions whose names begin with `unisono_` and stand before a parenthesis.
fn functions_of_header(header: &str) -> Functions {
    let mut code = String::new();
    for part in header.split("/*") {
        code.push_str(part.split_once("*/").map_or(part, |(_, code)| code));
    }
    let mut functions = Functions::new();
    for (offset, _) in code.match_indices("unisono_") {
        let declaration = &code[offset..];
        let end = declaration.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        let (name, parenthesized) = declaration.split_at(end.expect("a name ends"));
        if let Some(list) = parenthesized.strip_prefix('(') {
            functions.insert(name.to_owned(), parameters(up_to_closing(list)));
        }
    }
    functions
}

/// Adds the functions of one source file, also those that `collectives!` makes.
fn add_functions_of_source(source: &str, functions: &mut Functions) {
    for definition in source.split("extern \"C\" fn ").skip(1) {
        let (name, list) = definition.split_once('(').expect("a list of parameters");
        if name.starts_with("unisono_") {
            functions.insert(name.to_owned(), parameters(up_to_closing(list)));
        }
    }
    let Some((_, rows)) = source.split_once("collectives! {\n") else { return };
    for row in rows.lines().take_while(|line| *line != "}") {
        let (name, definition) = row.trim().split_once(" = ").expect("a name");
        let (_, list) = definition.split_once('(').expect("a list of parameters");
        let common = ["comm", "input", "output", "count", "dtype"].len();
        functions.insert(name.to_owned(), common + parameters(up_to_closing(list)));
    }
}

#[test]
fn header_declares_every_function() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let declared = functions_of_header(&read(&folder.join("include/unisono.h")));
    let mut defined = Functions::new();
    for file in std::fs::read_dir(folder.join("src")).expect("readable").flatten() {
        add_functions_of_source(&read(&file.path()), &mut defined);
    }
    assert!(defined.len() > 30, "{defined:?}");
    assert_eq!(declared, defined);
}

#[test]
fn c_tests_call_every_function() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let tests: String = ["collectives.c", "messages.c", "point_to_point.c"]
        .map(|file| read(&folder.join("tests").join(file)))
        .concat();
    for name in functions_of_header(&read(&folder.join("include/unisono.h"))).keys() {
        assert!(tests.contains(&format!("{name}(")), "no test calls {name}");
    }
}

#[test]
fn parameters_of_functions_are_counted() {
    let header =
        "/* unisono_x(a) */ void unisono_a(void);\nint unisono_b(int x, void (*f)(int, int), int y);";
    let expected = Functions::from([("unisono_a".to_owned(), 0), ("unisono_b".to_owned(), 3)]);
    assert_eq!(functions_of_header(header), expected);
    let mut defined = Functions::new();
    let source =
        "extern \"C\" fn unisono_a() {}\nextern \"C\" fn unisono_b(x: i32, f: fn(i32, i32), y: i32,) {}";
    add_functions_of_source(source, &mut defined);
    assert_eq!(defined, expected);
}
