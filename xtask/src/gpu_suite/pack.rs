//! Packs the suite: executables for a machine where nothing is built.

use super::{folder, nccl, skips};
use crate::{Result, cargo};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds and compresses the executables. More than 60 MiB together with the tracked files are an
/// error. Quickly, they are neither stripped nor compressed: for a rehearsal on the same machine.
pub(crate) fn pack(quickly: bool) -> Result {
    let suite = folder();
    // Files of an earlier run, such as an unpacked library, would travel too.
    let _ = std::fs::remove_dir_all(&suite);
    std::fs::create_dir_all(&suite).map_err(|error| format!("{}: {error}", suite.display()))?;
    if quickly {
        copy_workspace(&suite)?;
        return check_skips(&suite);
    }
    for (name, arguments) in PROGRAMS {
        cargo::run(cargo::cargo().args(["build", "--release"]).args(arguments))?;
        copy(&cargo::target().join("release").join(name), &suite.join(name))?;
    }
    for (name, arguments) in EXECUTABLES {
        copy(&cargo::build_executable(arguments)?, &suite.join(name))?;
    }
    check_skips(&suite)?;
    nccl::pack(&suite)?;
    compress(&suite)
}

/// Programs of the suite, and the arguments of cargo that build each.
const PROGRAMS: [(&str, &[&str]); 3] = [
    ("unisono", &["--package", "unisono-cli", "--features", "gpu"]),
    ("xtask", &["--package", "xtask"]),
    ("unisono-train", &["--package", "unisono-trainer"]),
];

/// Name in the suite, and the arguments of cargo that build it.
const EXECUTABLES: [(&str, &[&str]); 5] = [
    ("test-driver", &["test", "--release", "--package", "unisono-cuda", "--test", "gpu"]),
    (
        "test-collectives",
        &["test", "--release", "--package", "unisono", "--features", "gpu", "--test", "device"],
    ),
    ("test-parallel", &["test", "--release", "--package", "unisono-parallel", "--lib"]),
    ("test-trainer", &["test", "--release", "--package", "unisono-trainer", "--lib"]),
    ("experiments", &["bench", "--package", "unisono-cuda", "--bench", "gpu"]),
];

/// Executables of a rehearsal: name in the suite, package, kind of target, and target. They are
/// built as the tests of the workspace are, so that little is left to build after those.
const WORKSPACE: [(&str, &str, &str, &str); 7] = [
    ("unisono", "unisono-cli", "bin", "unisono"),
    ("unisono-train", "unisono-trainer", "bin", "unisono-train"),
    ("test-driver", "unisono-cuda", "test", "gpu"),
    ("test-collectives", "unisono", "test", "device"),
    ("test-parallel", "unisono-parallel", "lib", "unisono_parallel"),
    ("test-trainer", "unisono-trainer", "lib", "unisono_trainer"),
    ("experiments", "unisono-cuda", "bench", "gpu"),
];

fn copy_workspace(suite: &Path) -> Result {
    let mut built = cargo::build_workspace(&[])?;
    built.extend(cargo::build_workspace(&["--bench", "gpu"])?);
    for (name, package, kind, target) in WORKSPACE {
        let is_wanted = |executable: &&cargo::Executable| {
            (executable.package.as_str(), executable.kind.as_str(), executable.target.as_str())
                == (package, kind, target)
        };
        // The program comes before its tests, which have the same target.
        let found = built
            .iter()
            .find(|executable| is_wanted(executable) && is_program(executable) == (kind == "bin"));
        let found = found.ok_or_else(|| format!("cargo builds no {kind} {target} of {package}"))?;
        copy(&found.path, &suite.join(name))?;
    }
    Ok(())
}

/// Returns true for an executable that is not below `deps`, where those of tests are.
fn is_program(executable: &cargo::Executable) -> bool {
    !executable.path.parent().is_some_and(|folder| folder.ends_with("deps"))
}

/// A name in the table of skips that is no test would leave out nothing.
fn check_skips(suite: &Path) -> Result {
    let listed = ["test-driver", "test-collectives", "test-parallel", "test-trainer"].map(|name| {
        let listed = cargo::output(Command::new(suite.join(name)).arg("--list"));
        listed.map(|text| {
            text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
        })
    });
    let listed: Vec<Vec<String>> = listed.into_iter().collect::<Result<_>>()?;
    let unknown: Vec<&str> =
        skips::names().filter(|name| !listed.iter().flatten().any(|test| test == name)).collect();
    match unknown.is_empty() {
        true => Ok(()),
        false => Err(format!("no test is called {}; correct gpu_suite/skips.rs", unknown.join(", "))),
    }
}

/// Strips all executables and compresses all but this program, which decompresses them.
fn compress(suite: &Path) -> Result {
    let mut bytes = 0;
    for file in files(suite)? {
        let mut kept = file.clone();
        if file.extension().is_none() {
            cargo::run(Command::new("strip").arg(&file))?;
            if !file.ends_with("xtask") {
                cargo::run(Command::new("xz").args(["--force", "-9"]).arg(&file))?;
                kept.as_mut_os_string().push(".xz");
            }
        }
        let found = std::fs::metadata(&kept).map_or(0, |found| found.len());
        println!("{:>8} KiB {}", found.div_ceil(1024), kept.display());
        bytes += found;
    }
    let tracked = tracked_bytes()?;
    println!("{:>8} KiB of tracked files", tracked.div_ceil(1024));
    match bytes + tracked {
        all if all <= BYTES_MAX => Ok(()),
        all => Err(format!("the suite and the tracked files have {all} bytes, more than {BYTES_MAX}")),
    }
}

/// Decompresses what `pack` has compressed. A library of NCCL that cannot be unpacked is left out.
pub(super) fn decompress(suite: &Path) -> Result {
    let library = suite.join(NCCL_LIBRARY);
    if suite.join(nccl::LIBRARY).is_file() && !library.is_file() {
        let unpacked = nccl::unpack(suite, suite).map(drop);
        let packed = suite.join(nccl::LIBRARY);
        if let Err(error) = unpacked.or_else(|_| unpack_by_python(&packed, &library)) {
            let _ = std::fs::remove_file(&library);
            println!("NCCL is left out: {error}");
        }
    }
    let is_program =
        |file: &PathBuf| file.extension().is_some_and(|end| end == "xz") && !file.ends_with(nccl::LIBRARY);
    for file in files(suite)?.into_iter().filter(is_program) {
        let unpacked = cargo::run(Command::new("xz").args(["--decompress", "--force"]).arg(&file));
        unpacked.or_else(|_| unpack_by_python(&file, &file.with_extension("")))?;
    }
    Ok(())
}

/// Decompresses a file where there is no `xz`. The result may be executed.
fn unpack_by_python(packed: &Path, target: &Path) -> Result {
    let script = "import lzma, os, shutil, sys; shutil.copyfileobj(lzma.open(sys.argv[1]), open(sys.argv[2], 'wb')); \
                  os.chmod(sys.argv[2], 0o755)";
    cargo::run(Command::new("python3").args(["-c", script]).arg(packed).arg(target))?;
    std::fs::remove_file(packed).map_err(|error| format!("{}: {error}", packed.display()))
}

fn files(suite: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(suite)
        .map_err(|error| format!("{}: {error}; run `cargo xtask gpu-suite pack`", suite.display()))?;
    Ok(entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file()).collect())
}

/// Bytes of the files that git tracks, which travel with the suite.
fn tracked_bytes() -> Result<u64> {
    let listed = cargo::output(Command::new("git").arg("ls-files").current_dir(cargo::root()))?;
    let sizes =
        listed.lines().map(|name| std::fs::metadata(cargo::root().join(name)).map_or(0, |found| found.len()));
    Ok(sizes.sum())
}

/// Replaces a file. A program that runs cannot be written to, but its name can be given to another
/// file.
fn copy(source: &Path, target: &Path) -> Result {
    let _ = std::fs::remove_file(target);
    std::fs::copy(source, target).map(drop).map_err(|error| format!("{}: {error}", source.display()))
}

/// Name of the unpacked library of NCCL.
pub(super) const NCCL_LIBRARY: &str = "libnccl.so.2";
const BYTES_MAX: u64 = 60 << 20;
