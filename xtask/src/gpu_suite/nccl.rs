//! Packs NCCL: the benchmark of `benches/nccl`, and the library of PyPI's wheel with the machine
//! code of one architecture.

use super::fatbin::{self, Kept};
use crate::{Result, cargo};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The library that is measured, and the headers that its header includes.
const WHEELS: [&str; 4] = [
    "nvidia-nccl-cu13==2.32.3",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-cuda-cccl==13.0.85",
];
/// `ncclGetVersion` of that library.
const VERSION: u64 = 23203;
/// Compute capability 9.0, the GPUs on which NCCL is measured.
const ARCHITECTURE: u32 = 90;
/// Name of the benchmark in a suite.
pub(crate) const BENCH: &str = "nccl-bench";
/// Name of the compressed library in a suite.
pub(crate) const LIBRARY: &str = "libnccl.so.2.xz";

/// Writes the benchmark and the compressed library into the folder of a suite.
///
/// The library is unpacked and tried: it loads, and answers with its version.
pub(crate) fn pack(suite: &Path) -> Result {
    std::fs::create_dir_all(suite).map_err(|error| format!("{}: {error}", suite.display()))?;
    let packages = packages()?;
    let (bench, library) = (suite.join(BENCH), suite.join("libnccl.so.2"));
    build(&packages, &bench)?;
    let kept = reduce(&packages.join("nvidia/nccl/lib/libnccl.so.2"), &library)?;
    // The fastest level: machine code is compressed in the library already.
    cargo::run(Command::new("xz").args(["--force", "-1", "--threads=0"]).arg(&library))?;
    let bytes = std::fs::metadata(suite.join(LIBRARY)).map_or(0, |found| found.len());
    let folder = cargo::target().join("tmp");
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let unpacked = unpack(suite, &folder)?;
    check_version(&bench, &unpacked)?;
    std::fs::remove_file(&unpacked).map_err(|error| format!("{}: {error}", unpacked.display()))?;
    println!("NCCL: {} images for sm_{ARCHITECTURE}, {bytes} bytes in {LIBRARY}", kept.entries);
    Ok(())
}

/// Writes the library of a suite as a file that can be loaded, and returns its path.
pub(crate) fn unpack(suite: &Path, folder: &Path) -> Result<PathBuf> {
    let library = folder.join("libnccl.so.2");
    let file = std::fs::File::create(&library).map_err(|error| format!("{}: {error}", library.display()))?;
    let mut xz = Command::new("xz");
    cargo::run(xz.args(["--decompress", "--stdout"]).arg(suite.join(LIBRARY)).stdout(file))?;
    Ok(library)
}

/// Installs the wheels into an environment of their own and returns the folder of its packages.
fn packages() -> Result<PathBuf> {
    let environment = cargo::target().join(WHEELS[0].replace("==", "-"));
    let site = |environment: &Path| -> Option<PathBuf> {
        let versions = std::fs::read_dir(environment.join("lib")).ok()?.flatten();
        versions.map(|version| version.path().join("site-packages")).find(|site| site.is_dir())
    };
    let found = |site: &PathBuf| site.join("nvidia/nccl/lib/libnccl.so.2").is_file();
    if let Some(site) = site(&environment).filter(found) {
        return Ok(site);
    }
    cargo::run(Command::new("python3").args(["-m", "venv"]).arg(&environment))?;
    let mut pip = Command::new(environment.join("bin/pip"));
    cargo::run(pip.args(["install", "--quiet", "--no-deps", "--no-cache-dir"]).args(WHEELS))?;
    site(&environment).ok_or_else(|| format!("{} has no site-packages", environment.display()))
}

fn build(packages: &Path, bench: &Path) -> Result {
    let compiler = std::env::var_os("CXX").unwrap_or_else(|| "g++".into());
    let mut command = Command::new(compiler);
    command.args(["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror"]);
    for headers in ["nvidia/cu13/include", "nvidia/nccl/include"] {
        command.arg("-isystem").arg(packages.join(headers));
    }
    // The machine with the GPU may have an older C++ library.
    command.args(["-static-libstdc++", "-static-libgcc"]);
    command.arg(cargo::root().join("benches/nccl/bench.cpp")).arg("-o").arg(bench);
    cargo::run(command.args(["-ldl", "-pthread"]))?;
    cargo::run(Command::new("strip").arg(bench))
}

/// Writes the library without debugging information and without code for other architectures.
fn reduce(source: &Path, target: &Path) -> Result<Kept> {
    cargo::run(Command::new("strip").arg("--strip-all").arg("-o").arg(target).arg(source))?;
    let mut library = std::fs::read(target).map_err(|error| format!("{}: {error}", target.display()))?;
    let kept = fatbin::keep_architecture(&mut library, ARCHITECTURE)?;
    std::fs::write(target, library).map_err(|error| format!("{}: {error}", target.display()))?;
    match kept.entries {
        0 => Err(format!("{} has no code for sm_{ARCHITECTURE}", source.display())),
        _ => Ok(kept),
    }
}

/// Loads the library in a process of its own and compares the version that it answers.
fn check_version(bench: &Path, library: &Path) -> Result {
    let said = cargo::output(Command::new(bench).arg("--version").arg("--library").arg(library))?;
    let row: Value = serde_json::from_str(&said).map_err(|error| format!("{said}: {error}"))?;
    match row["version"] == VERSION {
        true => Ok(()),
        false => Err(format!("the reduced NCCL answers {said}, not version {VERSION}")),
    }
}
