//! Packs the suite: executables for a machine where nothing is built.

use super::{LAUNCH_FILTER, TRAINER_FILTERS, folder};
use crate::{Result, cargo, filters};
use std::path::Path;
use std::process::Command;

/// Builds and compresses the executables; more than 64 MiB are an error.
pub(crate) fn pack() -> Result {
    let suite = folder();
    let _ = std::fs::remove_dir_all(&suite);
    std::fs::create_dir_all(&suite).map_err(|error| format!("{}: {error}", suite.display()))?;
    cargo::run(cargo::cargo().args([
        "build",
        "--release",
        "--package",
        "unisono-cli",
        "--package",
        "xtask",
    ]))?;
    copy(&cargo::target().join("release/unisono"), &suite.join("unisono"))?;
    copy(&cargo::target().join("release/xtask"), &suite.join("xtask"))?;
    for (name, arguments) in EXECUTABLES {
        copy(&cargo::build_executable(arguments)?, &suite.join(name))?;
    }
    filters::check(&mut Command::new(suite.join("test-driver")), &[LAUNCH_FILTER])?;
    filters::check(&mut Command::new(suite.join("test-trainer")), &TRAINER_FILTERS)?;
    compress(&suite)
}

/// Name in the suite, and the arguments of cargo that build it.
const EXECUTABLES: [(&str, &[&str]); 4] = [
    ("test-driver", &["test", "--release", "--package", "unisono-cuda", "--test", "gpu"]),
    (
        "test-collectives",
        &["test", "--release", "--package", "unisono", "--features", "gpu", "--test", "device"],
    ),
    ("test-trainer", &["test", "--release", "--package", "unisono-trainer", "--lib"]),
    ("experiments", &["bench", "--package", "unisono-cuda", "--bench", "gpu"]),
];

/// Strips all executables and compresses all but this program, which decompresses them.
fn compress(suite: &Path) -> Result {
    let mut kilobytes = 0;
    let entries = std::fs::read_dir(suite).map_err(|error| format!("{}: {error}", suite.display()))?;
    for file in entries.flatten().map(|entry| entry.path()) {
        cargo::run(Command::new("strip").arg(&file))?;
        let mut kept = file.clone();
        if !file.ends_with("xtask") {
            cargo::run(Command::new("gzip").args(["--force", "--fast"]).arg(&file))?;
            kept.as_mut_os_string().push(".gz");
        }
        let bytes = std::fs::metadata(&kept).map_or(0, |found| found.len());
        println!("{:>8} KiB {}", bytes.div_ceil(1024), kept.display());
        kilobytes += bytes.div_ceil(1024);
    }
    match kilobytes <= KILOBYTES_MAX {
        true => Ok(()),
        false => Err(format!("the suite has {kilobytes} KiB, more than {KILOBYTES_MAX}")),
    }
}

fn copy(from: &Path, to: &Path) -> Result {
    std::fs::copy(from, to).map(drop).map_err(|error| format!("{}: {error}", from.display()))
}

const KILOBYTES_MAX: u64 = 64 << 10;
