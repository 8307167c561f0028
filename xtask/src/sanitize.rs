//! Sanitizers: links, windows and ranks as threads under ThreadSanitizer or AddressSanitizer.
//!
//! The stable compiler accepts the flags of its own nightly (`RUSTC_BOOTSTRAP`). The standard
//! library is not instrumented, because its sources do not come with the compiler:
//! `sanitize.thread` lists the orders that only its locks establish. Accesses of other processes to
//! shared memory are invisible too, so tests map one segment twice in one process.

use crate::{Result, cargo, filters};
use std::process::Command;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Sanitizer to run.
    #[arg(value_enum)]
    sanitizer: Sanitizer,
    /// Tests to run.
    #[arg(value_enum, default_value = "all")]
    part: Part,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Sanitizer {
    /// ThreadSanitizer.
    Thread,
    /// AddressSanitizer.
    Address,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// The transports alone.
    Transports,
    /// The transports and, under AddressSanitizer, whole operations.
    All,
}

/// Tests of `unisono-transports` that sanitizers would disturb or that share no memory.
///
/// These measure resident memory and speed, run the simulated network and the acceptor behind one
/// lock, or share nothing between threads. Links between GPUs belong to `cuda`, whose tests check
/// kernels.
const SKIPPED: [&str; 9] = [
    "untouched_memory_is_not_resident",
    "wait::",
    "sim::",
    "acceptor::",
    "net::handshake::",
    "secure::noise::",
    "unix::",
    "handshake_pool::",
    "listener::",
];
/// In this test two threads panic; their panics race in the harness that captures the output.
const RACING_PANICS: &str = "window_access_is_bounds_checked";

/// Runs the tests, one at a time.
///
/// Memory is unmapped by system calls that sanitizers do not see. Parallel tests that map memory at
/// the same address would therefore be reported as races.
pub(crate) fn run(arguments: &Arguments) -> Result {
    let Arguments { sanitizer, part } = *arguments;
    let triple = cargo::host_triple()?;
    let test = |arguments: &[&str]| sanitizer.test(&triple, arguments);
    let lib = ["-p", "unisono-transports", "--no-default-features", "--lib", "--"];
    filters::check(&mut test(&lib), &SKIPPED)?;
    let skips = SKIPPED.iter().map(|filter| format!("--skip={filter}"));
    cargo::run(test(&lib).args(skips).arg("--test-threads=1"))?;
    // Conformance of the transport whose ranks are threads: there, two threads share the memory.
    let conformance =
        ["-p", "unisono-transports", "--no-default-features", "--test", "conformance_traits", "--"];
    filters::check(&mut test(&conformance), &["over_threads", RACING_PANICS])?;
    let skip = format!("--skip={RACING_PANICS}");
    cargo::run(test(&conformance).args(["over_threads", &skip, "--test-threads=1"]))?;
    // Whole operations pass through locks of the standard library, which is not instrumented. Only
    // their memory is checked.
    if part == Part::All && sanitizer == Sanitizer::Address {
        for suite in ["point_to_point", "failures"] {
            let suite = ["-p", "unisono", "--no-default-features", "--test", suite, "--", "--test-threads=1"];
            cargo::run(&mut test(&suite))?;
        }
    }
    Ok(())
}

impl Sanitizer {
    fn name(self) -> &'static str {
        match self {
            Self::Thread => "thread",
            Self::Address => "address",
        }
    }

    /// Returns `cargo test` with this sanitizer, ended after fifteen minutes.
    ///
    /// The explicit target keeps build scripts and macros uninstrumented.
    fn test(self, triple: &str, arguments: &[&str]) -> Command {
        let name = self.name();
        let suppressions = cargo::root().join("xtask/src/sanitize.thread");
        let mut command = Command::new("timeout");
        command.current_dir(cargo::root()).args(["900", "cargo", "test", "--release", "--quiet"]);
        command.args(["--target", triple]).args(arguments);
        command
            .env("RUSTC_BOOTSTRAP", "1")
            .env("CARGO_TARGET_DIR", format!("target/{name}"))
            .env("RUSTFLAGS", format!("-Zsanitizer={name} -Cunsafe-allow-abi-mismatch=sanitizer"))
            // Building takes most of the time.
            .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
            .env("CARGO_PROFILE_RELEASE_DEBUG", "line-tables-only")
            .env("TSAN_OPTIONS", format!("suppressions={}", suppressions.display()))
            .env("ASAN_OPTIONS", "detect_leaks=1");
        command
    }
}
