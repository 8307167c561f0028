//! Commands: where they run, how they are started, and the files that cargo builds.

use crate::Result;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Returns the root of the repository: the nearest folder above the current one that holds `xtask`.
///
/// A packed binary runs on machines without this checkout's path, so the path of the build is not
/// used.
pub(crate) fn root() -> PathBuf {
    let here = std::env::current_dir().unwrap_or_default();
    let found = here.ancestors().find(|folder| folder.join("xtask/Cargo.toml").is_file()).map(Path::to_owned);
    found.unwrap_or(here)
}

/// Returns a command of the cargo that runs this task, started in the root of the repository.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    // Cargo sets these for a program that it runs; inherited, they would describe the wrong
    // package, and build scripts that read them would run again.
    let is_of_package = |name: &str| {
        name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") || name == "OUT_DIR"
    };
    for (name, _) in std::env::vars().filter(|(name, _)| is_of_package(name)) {
        command.env_remove(name);
    }
    command
}

/// Runs a command to its end; a failure names the command.
pub(crate) fn run(command: &mut Command) -> Result {
    let status = command.status().map_err(|error| format!("{}: {error}", describe(command)))?;
    if status.success() { Ok(()) } else { Err(format!("{} failed: {status}", describe(command))) }
}

/// Runs a command to its end and returns its standard output.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("{}: {error}", describe(command)))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{} failed: {}", describe(command), output.status)),
    }
}

/// Returns whether `program` is in a folder of `PATH`.
pub(crate) fn is_installed(program: &str) -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join(program).is_file())
}

/// Returns the folder that cargo builds into.
pub(crate) fn target() -> PathBuf {
    root().join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

/// Returns the target triple of this machine.
pub(crate) fn host_triple() -> Result<String> {
    let version = output(Command::new("rustc").arg("-vV"))?;
    let triple = version.lines().find_map(|line| line.strip_prefix("host: "));
    triple.map(str::to_owned).ok_or_else(|| "rustc -vV names no host".to_owned())
}

/// Builds a test or a benchmark and returns the path of its executable.
pub(crate) fn build_executable(arguments: &[&str]) -> Result<PathBuf> {
    let messages = output(cargo().args(arguments).args(["--no-run", "--message-format=json"]))?;
    let mut executables = messages.lines().filter_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        message["executable"].as_str().map(PathBuf::from)
    });
    executables.next_back().ok_or_else(|| format!("cargo {} builds no executable", arguments.join(" ")))
}

/// An executable that cargo has built.
pub(crate) struct Executable {
    /// Name of its package, for example `unisono-cuda`.
    pub(crate) package: String,
    /// Kind of its target: `bin`, `lib`, `test` or `bench`.
    pub(crate) kind: String,
    pub(crate) target: String,
    pub(crate) path: PathBuf,
}

/// Builds what the arguments select with the features of the whole workspace, as the lane of tests
/// does, and returns the executables.
pub(crate) fn build_workspace(arguments: &[&str]) -> Result<Vec<Executable>> {
    let common = ["test", "--workspace", "--release", "--no-run", "--message-format=json"];
    let messages = output(cargo().args(common).args(arguments))?;
    let executable = |line: &str| {
        let message: Value = serde_json::from_str(line).ok()?;
        let path = PathBuf::from(message["executable"].as_str()?);
        // A package of a folder has an id that ends with `#name@version`, or with the folder's name
        // and `#version`.
        let id = message["package_id"].as_str()?;
        let (folder, name) = id.rsplit_once('#')?;
        let package = name.split_once('@').map_or_else(|| folder.rsplit('/').next(), |(name, _)| Some(name));
        Some(Executable {
            package: package?.to_owned(),
            kind: message["target"]["kind"][0].as_str()?.to_owned(),
            target: message["target"]["name"].as_str()?.to_owned(),
            path,
        })
    };
    Ok(messages.lines().filter_map(executable).collect())
}

fn describe(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failing_command_is_named() {
        let error = run(Command::new("false").arg("x")).expect_err("it fails");
        assert!(error.starts_with("false x failed"), "{error}");
        assert!(
            run(&mut Command::new("no-such-program")).is_err_and(|error| error.contains("no-such-program"))
        );
    }

    #[test]
    fn output_returns_standard_output() {
        assert_eq!(output(Command::new("echo").arg("a")), Ok("a\n".to_owned()));
    }
}
