//! Packs unisono beside Open MPI, MPICH and Intel MPI for a machine where nothing is installed.
//!
//! The libraries have the path of their folder in them, so they are installed, packed and unpacked
//! in one folder. Only files that a run needs are packed.

use crate::{Result, cargo};
use std::fmt::Display;
use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Folder of the libraries and programs, here and on the other machine.
pub(crate) const FOLDER: &str = "/tmp/unisono-compare";
/// The libraries that are packed, for `--only`.
pub(crate) const LIBRARIES: &str = "Open MPI 5,MPICH 5,Intel MPI";
/// Name of the archive in a suite.
pub(super) const ARCHIVE: &str = "peers.tar.xz";

/// Files and folders that a run needs. A star stands for any text. Intel MPI finds the fabric by a
/// provider, and its algorithms by the tuning files of the processor.
const FILES: [&str; 26] = [
    "bin/unisono",
    "bin/unisono-compare",
    "built/open-mpi-5",
    "built/mpich-5",
    "built/intel-mpi",
    "openmpi5/bin/mpirun",
    "openmpi5/bin/ompirun_wrapper",
    "openmpi5/bin/prte*",
    "openmpi5/etc",
    "openmpi5/share",
    "openmpi5/lib/lib*",
    "openmpi5/lib/openmpi",
    "mpich5/bin/mpirun",
    "mpich5/bin/hydra_pmi_proxy",
    "mpich5/lib/libmpi.so.12",
    "mpich5/lib/mpich",
    "impi/bin/mpiexec.hydra",
    "impi/bin/hydra_*_proxy",
    "impi/lib/libmpi.so.12",
    "impi/lib/libfabric.so.1",
    "impi/lib/libtcp-fi.so",
    "impi/lib/libshm-fi.so",
    "impi/opt/mpi/etc/tuning_*_shm.dat",
    "impi/opt/mpi/etc/tuning_*_shm-ofi.dat",
    "impi/opt/mpi/etc/tuning_*_shm-ofi_tcp.dat",
    "impi/opt/mpi/etc/tuning_*_shm_tcp.dat",
];

/// Writes the archive and this program into the folder of a suite.
///
/// The archive is unpacked and tried where nothing else is: every library measures an operation.
pub(crate) fn pack(suite: &Path) -> Result {
    std::fs::create_dir_all(suite).map_err(|error| format!("{}: {error}", suite.display()))?;
    let release = cargo::target().join("release");
    cargo::run(cargo::cargo().args(["build", "--release", "--package", "unisono-cli"]))?;
    cargo::run(cargo::cargo().args([
        "build",
        "--release",
        "--package",
        "unisono-compare",
        "--package",
        "xtask",
    ]))?;
    make_folder(Path::new(FOLDER))?;
    install(&release.join("unisono-compare"))?;
    strip(&release.join("unisono"), &Path::new(FOLDER).join("bin/unisono"))?;
    strip(&release.join("unisono-compare"), &Path::new(FOLDER).join("bin/unisono-compare"))?;
    strip(&release.join("xtask"), &suite.join("xtask"))?;
    let archive = suite.join(ARCHIVE);
    // The shell resolves the stars: a pattern without a file is an error of tar.
    let script = format!("tar -cf - {} | xz -6 --threads=0", FILES.join(" "));
    let file = std::fs::File::create(&archive).map_err(|error| format!("{}: {error}", archive.display()))?;
    let mut shell = Command::new("bash");
    cargo::run(shell.args(["-o", "pipefail", "-c", &script]).current_dir(FOLDER).stdout(file))?;
    let bytes = std::fs::metadata(&archive).map_or(0, |found| found.len());
    println!("peers: {bytes} bytes in {}", archive.display());
    aside(|| try_out(suite))
}

/// Unpacks the archive of a suite to the folder that its libraries know.
pub(crate) fn unpack(suite: &Path) -> Result {
    make_folder(Path::new(FOLDER))?;
    let archive = suite.join(ARCHIVE);
    cargo::run(Command::new("tar").args(["-C", FOLDER, "-xJf"]).arg(archive))
}

/// Makes a folder among those of all users, and refuses one that another user made or may write:
/// programs in it are run.
fn make_folder(folder: &Path) -> Result {
    let unfit = |what: &dyn Display| format!("{}: {what}", folder.display());
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(unfit(&error)),
        _ => (),
    }
    let found = std::fs::symlink_metadata(folder).map_err(|error| unfit(&error))?;
    let is_own = found.uid() == rustix::process::geteuid().as_raw();
    match found.is_dir() && is_own && found.mode() & 0o022 == 0 {
        true => Ok(()),
        false => Err(unfit(&"another user can write it; remove it")),
    }
}

/// Returns the comparison of an unpacked suite, which writes its record to `out`. Callers add
/// ranks, collectives, sizes and limits.
pub(crate) fn comparison(out: &Path) -> Command {
    let program = |name: &str| PathBuf::from(FOLDER).join("bin").join(name);
    let mut command = Command::new(program("unisono-compare"));
    command.args(["--built", "--cache", FOLDER, "--unisono"]).arg(program("unisono")).arg("--out").arg(out);
    command
}

/// Returns a script that unpacks an archive, compares the libraries, and prints a row of JSON for
/// each time.
pub(super) fn script(archive: &Path, ranks: &str, sizes: &str) -> String {
    let compare = "bin/unisono-compare --built --cache . --unisono bin/unisono --out record --no-startup";
    format!(
        "set -e; mkdir -p -m 700 {FOLDER}; [ -O {FOLDER} ] && [ ! -L {FOLDER} ]; tar -C {FOLDER} -xJf '{}'; cd {FOLDER}; rm -rf record; \
         {compare} --transport shm --ranks {ranks} --sizes {sizes} --rounds 1 --more 0 --budget 10 --limit 3 >&2 \
         || true; python3 -c '{ROWS}' record/results.csv",
        archive.display()
    )
}

/// Prints the times of `results.csv` as rows.
const ROWS: &str = r#"
import csv, json, sys
for row in csv.DictReader(open(sys.argv[1])):
    try:
        us = float(row["outcome"])
    except ValueError:
        continue
    keys = ["library", "setting", "collective", "transport"]
    numbers = {key: int(row[key]) for key in ["ranks", "bytes"]}
    print(json.dumps({**{key: row[key] for key in keys}, **numbers, "us": us}), flush=True)
"#;

/// Installs the libraries, and builds their benchmarks.
fn install(compare: &Path) -> Result {
    let record = cargo::target().join("tmp/peers");
    let mut command = Command::new(compare);
    command.args(["--install", "--only", LIBRARIES, "--rounds", "0", "--no-startup", "--cache", FOLDER]);
    cargo::run(command.arg("--out").arg(record).current_dir(cargo::root()))
}

fn strip(source: &Path, target: &Path) -> Result {
    if let Some(folder) = target.parent() {
        std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    cargo::run(Command::new("strip").arg("-o").arg(target).arg(source))
}

/// Does something while the folder of the libraries has another name.
fn aside(work: impl FnOnce() -> Result) -> Result {
    let kept = format!("{FOLDER}.installed");
    let rename = |source: &str, target: &str| {
        let _ = std::fs::remove_dir_all(target);
        std::fs::rename(source, target).map_err(|error| format!("{source} to {target}: {error}"))
    };
    rename(FOLDER, &kept)?;
    let outcome = work();
    rename(&kept, FOLDER)?;
    outcome
}

/// Unpacks the archive and measures one operation with every library: without a network and without
/// this checkout where the system allows that, and in an empty folder.
fn try_out(suite: &Path) -> Result {
    unpack(suite)?;
    let empty = PathBuf::from(FOLDER).join("trial");
    std::fs::create_dir_all(&empty).map_err(|error| format!("{}: {error}", empty.display()))?;
    let isolated =
        Command::new("unshare").args(["-rmn", "true"]).status().is_ok_and(|status| status.success());
    let mut command = comparison(&empty.join("record"));
    command.args(["--only", &format!("unisono,{LIBRARIES}"), "--ranks", "2", "--sizes", "8,65536"]);
    command.args(["--collectives", "all_reduce", "--rounds", "1", "--more", "0", "--no-startup"]);
    command.args(["--budget", "5"]);
    if isolated {
        command = isolate(&command);
    }
    cargo::run(command.current_dir(&empty))?;
    let results = empty.join("record/results.csv");
    let rows =
        std::fs::read_to_string(&results).map_err(|error| format!("{}: {error}", results.display()))?;
    println!(
        "tried {} network: {} rows",
        if isolated { "without a" } else { "with a" },
        rows.lines().count() - 1
    );
    match missing(&rows) {
        lacking if lacking.is_empty() => Ok(()),
        lacking => Err(format!("no result of {} in {}", lacking.join(", "), results.display())),
    }
}

/// Runs a command where only the loopback interface is, and the checkout is hidden.
fn isolate(command: &Command) -> Command {
    let mut isolated = Command::new("unshare");
    let script = "ip link set lo up; mount -t tmpfs none \"$0\" && exec \"$@\"";
    isolated.args(["-rmn", "sh", "-c", script]).arg(cargo::root()).arg(command.get_program());
    isolated.args(command.get_args());
    isolated
}

/// Returns the contenders without a measured time in a record's `results.csv`.
fn missing(rows: &str) -> Vec<&'static str> {
    const LIBRARY: usize = 5;
    const OUTCOME: usize = 7;
    let has_time = |name: &str| {
        rows.lines().any(|row| {
            let fields: Vec<&str> = row.split(',').collect();
            let time = fields.get(OUTCOME).and_then(|outcome| outcome.parse::<f64>().ok());
            fields.get(LIBRARY) == Some(&name) && time.is_some()
        })
    };
    LIBRARIES.split(',').chain(["unisono"]).filter(|name| !has_time(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn contenders_without_times_are_missing() {
        let rows = "round,transport,collective,ranks,bytes,library,setting,outcome,failure,flag_latency_us\n\
            1,shm,all_reduce,2,8,unisono,defaults,1.5,,0.1\n\
            1,shm,all_reduce,2,8,Open MPI 5,defaults,2,,\n\
            1,shm,all_reduce,2,8,MPICH 5,defaults,,\"hung, ended\",\n";
        assert_eq!(missing(rows), ["MPICH 5", "Intel MPI"]);
    }

    #[test]
    fn folder_of_programs_is_for_its_user_only() {
        let folder = std::env::temp_dir().join(format!("unisono-programs-{}", std::process::id()));
        make_folder(&folder).unwrap();
        make_folder(&folder).unwrap();
        let mode = |mode| std::fs::set_permissions(&folder, PermissionsExt::from_mode(mode)).unwrap();
        assert_eq!(std::fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
        mode(0o777);
        assert!(make_folder(&folder).unwrap_err().contains("another user can write it"));
        std::fs::remove_dir(&folder).unwrap();
        std::os::unix::fs::symlink("/usr", &folder).unwrap();
        assert!(make_folder(&folder).is_err(), "a link leads anywhere");
        std::fs::remove_file(&folder).unwrap();
    }
}
