//! The quick lane: the checks that find most mistakes, for use after every change.
//!
//! It needs less than three minutes on two cores once the dependencies are built, because nothing
//! is optimized. Lanes of `.ci/run` check the rest.

use crate::{Result, cargo, filters};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Revision whose changed packages are checked by clippy: all changes since it, committed or
    /// not.
    #[arg(long, default_value = "main")]
    since: String,
}

/// Packages whose unit tests run, whatever has changed: all others depend on them.
const CORE: [&str; 4] = ["unisono", "unisono-transports", "unisono-cuda", "unisono-reducers"];
/// Tests that take most of a minute unless they are optimized: they compare every value of narrow
/// types. The lane of tests has them.
const SLOW: [&str; 2] = [
    "host::tests::every_reduction_is_the_naive_one",
    "host::tests::small_floats_are_rounded_once_whatever_their_size",
];
/// Tests of the whole repository that need no process and no time: style, layers, pages.
const REPOSITORY: [&str; 5] = ["tidy", "layers", "features", "book", "pages"];
/// Folders with a workspace of their own, each with the lane of `.ci/run` that checks it.
const OTHER_WORKSPACES: [(&str, &str); 4] = [
    ("python/", "python"),
    ("adapters/burn/", "adapter-burn"),
    ("adapters/candle/", "adapter-candle"),
    ("fuzz/", "fuzz"),
];

/// A member of the workspace.
#[derive(Debug, PartialEq, Eq)]
struct Member {
    name: String,
    /// Folder relative to the root, with a slash at its end; empty for the root package.
    folder: String,
}

/// Checks format, the tests of the repository, lints of changed packages, and the unit tests of the
/// core.
pub(crate) fn run(arguments: &Arguments) -> Result {
    let begun = Instant::now();
    let files = changed_files(&arguments.since)?;
    let changed = packages_of(&files, &members()?);
    let linted: Vec<&str> =
        if changed.is_empty() { CORE.to_vec() } else { changed.iter().map(String::as_str).collect() };
    step("format", cargo::cargo().args(["fmt", "--all", "--", "--check"]))?;
    let repository = REPOSITORY.iter().flat_map(|test| ["--test", test]);
    step("repository", cargo::cargo().args(["test", "--quiet", "--package", "unisono"]).args(repository))?;
    let mut clippy = cargo::cargo();
    clippy.args(["clippy", "--quiet"]).args(selected(&linted)).args(["--", "--deny", "warnings"]);
    step(&format!("clippy of {}", linted.join(", ")), &mut clippy)?;
    let tests = || {
        let mut command = cargo::cargo();
        command.args(["test", "--quiet", "--lib"]).args(selected(&CORE)).arg("--");
        command
    };
    filters::check(&mut tests(), &SLOW)?;
    let skipped = SLOW.map(|test| format!("--skip={test}"));
    step("unit tests", tests().args(skipped))?;
    println!("\nquick: {} s; `.ci/run` has all lanes", begun.elapsed().as_secs());
    for (folder, lane) in OTHER_WORKSPACES {
        if files.iter().any(|file| file.starts_with(folder)) {
            println!("not checked: {folder}, a workspace of its own: .ci/run {lane}");
        }
    }
    Ok(())
}

fn step(name: &str, command: &mut Command) -> Result {
    println!("== {name}");
    let begun = Instant::now();
    cargo::run(command)?;
    println!("   {:.1} s", begun.elapsed().as_secs_f64());
    Ok(())
}

fn selected<'a>(packages: &'a [&str]) -> impl Iterator<Item = &'a str> {
    packages.iter().flat_map(|package| ["--package", package])
}

/// Returns the files that differ from the point where `start` and this branch parted, and those
/// that git does not track yet. If `start` is unknown, only changes that are not committed count.
fn changed_files(start: &str) -> Result<Vec<String>> {
    let base = git(&["merge-base", "HEAD", start]).unwrap_or_else(|_| "HEAD".to_owned());
    let changed = git(&["diff", "--name-only", base.trim()])?;
    let new = git(&["ls-files", "--others", "--exclude-standard"])?;
    Ok(changed.lines().chain(new.lines()).map(str::to_owned).collect())
}

fn git(arguments: &[&str]) -> Result<String> {
    let output = Command::new("git").args(arguments).current_dir(cargo::root()).output();
    let output = output.map_err(|error| format!("git: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("git {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr))),
    }
}

fn members() -> Result<Vec<Member>> {
    let metadata = cargo::output(cargo::cargo().args(["metadata", "--no-deps", "--format-version=1"]))?;
    let metadata: Value =
        serde_json::from_str(&metadata).map_err(|error| format!("cargo metadata: {error}"))?;
    let root = metadata["workspace_root"].as_str().unwrap_or_default().to_owned();
    let member = |package: &Value| {
        let manifest = Path::new(package["manifest_path"].as_str()?);
        let folder = manifest.parent()?.strip_prefix(&root).ok()?.to_str()?;
        let folder = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        Some(Member { name: package["name"].as_str()?.to_owned(), folder })
    };
    Ok(metadata["packages"].as_array().into_iter().flatten().filter_map(member).collect())
}

/// Returns the names of the members that have one of the files, each once.
fn packages_of(files: &[String], members: &[Member]) -> Vec<String> {
    let mut names: Vec<String> = files.iter().filter_map(|file| package_of(file, members)).collect();
    names.sort();
    names.dedup();
    names
}

/// Returns the member with this source file: the one with the longest folder above it. Pages and
/// folders of other workspaces are in none.
fn package_of(file: &str, members: &[Member]) -> Option<String> {
    let is_source = file.ends_with(".rs") || file.ends_with("Cargo.toml");
    if !is_source || OTHER_WORKSPACES.iter().any(|(folder, _)| file.starts_with(folder)) {
        return None;
    }
    let parents = members.iter().filter(|member| file.starts_with(&member.folder));
    parents.max_by_key(|member| member.folder.len()).map(|member| member.name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, folder: &str) -> Member {
        Member { name: name.to_owned(), folder: folder.to_owned() }
    }

    #[test]
    fn changed_files_select_their_packages() {
        let members = [member("root", ""), member("gpu", "cuda/"), member("kernels", "cuda/kernels/")];
        let files = ["cuda/kernels/src/lib.rs", "src/a.rs", "src/b.rs", "README.md", "python/src/lib.rs"];
        let files: Vec<String> = files.map(str::to_owned).to_vec();
        assert_eq!(packages_of(&files, &members), ["kernels", "root"]);
        assert_eq!(packages_of(&["cuda/build.rs".to_owned()], &members), ["gpu"]);
    }

    #[test]
    fn core_and_other_workspaces_exist() {
        let members = members().expect("metadata");
        for name in CORE {
            assert!(members.iter().any(|member| member.name == name), "{name}");
        }
        for (folder, _) in OTHER_WORKSPACES {
            assert!(cargo::root().join(folder).join("Cargo.toml").is_file(), "{folder}");
        }
        for test in REPOSITORY {
            assert!(cargo::root().join(format!("tests/{test}.rs")).is_file(), "{test}");
        }
    }
}
