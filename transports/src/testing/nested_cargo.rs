//! Cargo, started by a test that cargo runs.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds the shared library of `package` in the profile of the running test with `cargo`, and
/// returns the folder of that profile. Cargo builds no shared library for a test.
///
/// # Panics
/// Panics if the library cannot be built, or if the test is not in a target folder.
pub fn build_shared_library(cargo: &str, package: &str) -> PathBuf {
    let test_program = std::env::current_exe().expect("this test");
    let profile = test_program.parent().and_then(Path::parent).expect("a folder of the profile").to_owned();
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "--lib", "--package", package, "--target-dir"]);
    build.arg(profile.parent().expect("a target folder"));
    if profile.ends_with("release") {
        build.arg("--release");
    }
    assert!(as_from_shell(&mut build).status().expect("cargo").success(), "the library builds");
    profile
}

/// Makes a command that runs cargo inherit nothing that tells which package this test is of.
///
/// Build scripts that read these variables would run again, and all that depends on them would be
/// compiled again, here and by the next command of the user.
pub fn as_from_shell(command: &mut Command) -> &mut Command {
    // A name that is no text is not one of cargo's.
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for name in names.filter(|name| is_of_package(name)) {
        command.env_remove(name);
    }
    command
}

/// Returns true for a variable that cargo sets for the package of a test. `OUT_DIR` is one if the
/// package has a build script.
fn is_of_package(name: &str) -> bool {
    name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") || name == "OUT_DIR"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn package_of_the_test_is_not_inherited() {
        let mut command = Command::new("cargo");
        let removed = |name: &str| (std::ffi::OsStr::new(name).to_owned(), None);
        as_from_shell(&mut command);
        let envs: Vec<_> = command.get_envs().map(|(name, value)| (name.to_owned(), value)).collect();
        for name in ["CARGO_PKG_NAME", "CARGO_PKG_VERSION", "CARGO_MANIFEST_DIR"] {
            assert!(std::env::var_os(name).is_some() && envs.contains(&removed(name)), "{name}: {envs:?}");
        }
        assert!(is_of_package("OUT_DIR"), "a build script of another package reads it");
        assert!(envs.iter().all(|(name, _)| name != "CARGO_TARGET_DIR" && name != "PATH"), "{envs:?}");
    }
}
