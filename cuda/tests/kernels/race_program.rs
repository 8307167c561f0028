//! Kernels under ThreadSanitizer, as they are and with bugs planted.

use crate::emulator::Build;
use std::borrow::Cow;
use std::path::PathBuf;
use std::process::{Command, Output};

/// A program that runs a variant of a kernel.
pub(crate) struct RaceProgram {
    name: String,
    program: PathBuf,
}

/// Exit code of a run without errors.
const RIGHT: i32 = 0;
const WRONG: i32 = 1;
const RACE: i32 = 66;

impl RaceProgram {
    /// Two ranks that exchange, with the kernel of this file.
    pub(crate) fn exchange(name: &str, kernel: &str) -> Option<Self> {
        Self::new(&format!("exchange-{name}"), &[kernel, "tests/kernels/races/exchange.cpp"])
    }

    /// Two ranks that carry out schedules, with the kernel of this file.
    pub(crate) fn schedules(name: &str) -> Option<Self> {
        let kernel = format!("tests/kernels/races/{name}.cu");
        Self::new(name, &[&kernel, "tests/kernels/races/schedule.cpp"])
    }

    fn new(name: &str, sources: &[&str]) -> Option<Self> {
        let program = Build { name, sources, races: true, library: false }.run()?;
        Some(Self { name: name.to_owned(), program })
    }

    /// Returns true if there is a race or a wrong result, with threads in the order of this seed.
    pub(crate) fn finds_race(&self, seed: u32) -> bool {
        self.finds_race_with(seed, &[])
    }

    /// The same, told more.
    pub(crate) fn finds_race_with(&self, seed: u32, arguments: &[&str]) -> bool {
        let seed = seed.to_string();
        let arguments = [&[&*seed], arguments].concat();
        let mut output = self.run(Command::new(&self.program), &arguments);
        // ThreadSanitizer does not support the address randomization of some systems.
        if said(&output).contains("unexpected memory mapping") {
            let mut fixed = Command::new("setarch");
            fixed.arg("-R").arg(&self.program);
            output = self.run(fixed, &arguments);
        }
        let reported = said(&output).contains("WARNING: ThreadSanitizer: data race");
        let code = output.status.code();
        let known = code == Some(if reported { RACE } else { RIGHT }) || code == Some(WRONG);
        assert!(known, "{} {arguments:?}: {code:?}, {}", self.name, said(&output));
        code != Some(RIGHT)
    }

    fn run(&self, mut command: Command, arguments: &[&str]) -> Output {
        command.args(arguments).env("TSAN_OPTIONS", "exitcode=66").output().expect(&self.name)
    }
}

fn said(output: &Output) -> Cow<'_, str> {
    String::from_utf8_lossy(&output.stderr)
}
