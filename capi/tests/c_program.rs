//! A C program that calls every function of the header, and the header's numbers.

use std::path::{Path, PathBuf};
use std::process::Command;
use unisono_core::{DType, ReduceKind};

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Builds `libunisono.so` in the profile of this test, and returns its folder. Cargo builds no
/// shared library for a test.
fn libraries() -> PathBuf {
    let own = std::env::current_exe().expect("this test");
    let profile = own.parent().and_then(Path::parent).expect("a folder of the profile").to_owned();
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--lib", "--package", "unisono-capi", "--target-dir"]);
    build.arg(profile.parent().expect("a target folder")).current_dir(folder());
    if profile.ends_with("release") {
        build.arg("--release");
    }
    assert!(build.status().expect("cargo").success(), "the library builds");
    profile
}

fn compile(source: &str, libraries: &Path, program: &Path) {
    let output = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-I"])
        .arg(folder().join("include"))
        .arg(folder().join("tests").join(source))
        .arg("-o")
        .arg(program)
        .arg("-L")
        .arg(libraries)
        .arg(format!("-Wl,-rpath,{}", libraries.display()))
        .args(["-lunisono", "-lpthread"])
        .output()
        .expect("a C compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn c_program_calls_every_function() {
    let libraries = libraries();
    let program = libraries.join("unisono-c-test");
    compile("collectives.c", &libraries, &program);
    let mut command = Command::new(&program);
    for name in ["RANK", "WORLD_SIZE", "UNISONO_ID", "MASTER_ADDR", "MASTER_PORT"] {
        command.env_remove(name);
    }
    let output = command.output().expect("it starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "all right\n");
}

/// Returns the value of a constant of the header.
fn constant(header: &str, name: &str) -> u32 {
    let line = header.lines().find_map(|line| line.trim().strip_prefix(&format!("{name} = ")));
    let digits: String = line.unwrap_or("").chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("{name} is not in the header"))
}

#[test]
fn header_has_the_numbers_of_the_library() {
    let header = std::fs::read_to_string(folder().join("include/unisono.h")).expect("readable");
    for (code, dtype) in DType::ALL.into_iter().enumerate() {
        assert_eq!(constant(&header, &format!("UNISONO_{dtype:?}")), code as u32);
    }
    for (code, op) in ReduceKind::ALL.into_iter().enumerate().take(5) {
        assert_eq!(constant(&header, &format!("UNISONO_{}", format!("{op:?}").to_uppercase())), code as u32);
    }
    let invalid = unisono_core::Communicator::local(0).unwrap_err();
    assert_eq!(constant(&header, "UNISONO_INVALID_USAGE"), invalid.code());
}
