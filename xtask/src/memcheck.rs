//! Memcheck: every collective between real processes under valgrind, over shared memory and TCP.
//!
//! Memcheck finds reads of memory that is unmapped or was never written. The sanitizers cover ranks
//! that are threads (`cargo xtask sanitize`).

use crate::{Result, cargo};
use std::process::{Command, Stdio};

const COLLECTIVES: [&str; 9] = [
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_to_all",
    "sendrecv",
];

/// Runs three ranks of every collective under memcheck; this takes a minute or two.
pub(crate) fn run() -> Result {
    if !cargo::is_installed("valgrind") {
        println!("SKIPPED: needs valgrind");
        return Ok(());
    }
    cargo::run(cargo::cargo().args(["build", "--release", "--package", "unisono-cli"]))?;
    let unisono = cargo::target().join("release/unisono");
    for transport in ["shm", "tcp"] {
        for collective in COLLECTIVES {
            println!("{collective} over {transport}");
            let mut command = Command::new(&unisono);
            command
                .args(["run", "-n", "3", "--no-prefix", "--", "valgrind", "-q", "--error-exitcode=9"])
                .arg(&unisono)
                .args(["perf", collective, "--transport", transport])
                .args(["-b", "8", "-e", "512K", "-f", "16", "-w", "1", "-n", "2"])
                // valgrind has no room for the default reservation of symmetric memory.
                .env("UNISONO_SYMMETRIC_HEAP_BYTES", HEAP_BYTES.to_string())
                .stdout(Stdio::null());
            cargo::run(&mut command)?;
        }
    }
    println!("no errors");
    Ok(())
}

const HEAP_BYTES: usize = 16 << 20;
