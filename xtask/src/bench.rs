//! Benchmarks: instruction counts of the hot paths, and the comparison with other libraries.

use crate::{Result, cargo};
use clap::Subcommand;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

#[derive(Subcommand)]
pub(crate) enum Bench {
    /// Count the instructions of the hot paths and compare them with the committed baseline.
    Instructions {
        /// Write a new baseline.
        #[arg(long)]
        renew: bool,
    },
    /// Compare unisono with other libraries on this machine.
    #[command(disable_help_flag = true)]
    Compare {
        /// Arguments of the comparison; `--help` lists them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

impl Bench {
    pub(crate) fn run(self) -> Result {
        match self {
            Self::Instructions { renew } => count_instructions(renew),
            Self::Compare { arguments } => compare(&arguments),
        }
    }
}

/// Counts instructions under valgrind; installs valgrind where this user may.
fn count_instructions(renew: bool) -> Result {
    if !cargo::is_installed("valgrind") && cargo::is_installed("apt-get") && is_root() {
        // A failed installation shows below: valgrind is still missing.
        let _ = cargo::output(Command::new("apt-get").args(["update", "-qq"]));
        let _ = cargo::output(Command::new("apt-get").args(["install", "-y", "-qq", "valgrind"]));
    }
    if !cargo::is_installed("valgrind") {
        println!("SKIPPED: valgrind is missing and cannot be installed; the hot paths were not counted");
        return Ok(());
    }
    build(&["unisono-instructions"])?;
    cargo::run(program("unisono-instructions").args(renew.then_some("--renew")))
}

fn compare(arguments: &[String]) -> Result {
    build(&["unisono-cli", "unisono-compare"])?;
    cargo::run(program("unisono-compare").args(arguments))
}

fn build(packages: &[&str]) -> Result {
    let packages = packages.iter().flat_map(|package| ["--package", package]);
    cargo::run(cargo::cargo().args(["build", "--release", "--quiet"]).args(packages))
}

fn program(name: &str) -> Command {
    let mut command = Command::new(cargo::target().join("release").join(name));
    command.current_dir(cargo::root());
    command
}

/// Returns whether this process runs as root, by the owner of its own folder in /proc.
fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|folder| folder.uid() == 0)
}
