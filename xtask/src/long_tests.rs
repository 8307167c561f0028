//! Tests that take too long for CI: faults in their long forms, and the soak test.

use crate::{Result, cargo, filters};
use std::process::Command;

const SOAK_TEST: &str = "soak::resources_and_throughput_stay_flat";

/// Runs all fault tests and the raw peer one after the other, in their long forms and with tables.
///
/// Network namespaces and limits of threads need root; a test that cannot run prints SKIPPED.
pub(crate) fn faults(filter: &[String]) -> Result {
    let mut command = fault_tests();
    command.args(["--nocapture", "--test-threads=1"]).args(filter);
    cargo::run(command.env("TEST_LONG", "1"))
}

/// Runs eight ranks with mixed collectives over shared memory and TCP.
///
/// Every result is compared. Memory, threads, descriptors and throughput are measured ten times and
/// must stay flat.
pub(crate) fn soak(minutes: u64) -> Result {
    filters::check(&mut fault_tests(), &[SOAK_TEST])?;
    let mut command = fault_tests();
    cargo::run(command.args(["--nocapture", SOAK_TEST]).env("TEST_SOAK_SECONDS", (60 * minutes).to_string()))
}

fn fault_tests() -> Command {
    let mut command = cargo::cargo();
    command.args([
        "test",
        "--release",
        "--package",
        "unisono",
        "--test",
        "faults",
        "--test",
        "raw_peer",
        "--",
    ]);
    command
}
