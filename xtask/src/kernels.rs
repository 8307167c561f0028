//! The GPU kernels: compiled by NVRTC and ptxas, without a GPU and without CUDA.

use crate::{Result, cargo};
use std::process::{Command, Stdio};

/// Writes the compiled kernels, or compares them with the committed ones byte by byte.
///
/// With `budget`, the size of the written kernels becomes their budget. The compiler script fetches
/// wheels of NVRTC and ptxas, so Python with `venv` is required.
pub(crate) fn run(check: bool, budget: bool) -> Result {
    let mut probe = Command::new("python3");
    probe.args(["-c", "import ensurepip, venv"]).stderr(Stdio::null());
    if !probe.status().is_ok_and(|status| status.success()) {
        return match check {
            true => {
                println!("SKIPPED: needs python3 with venv");
                Ok(())
            }
            false => Err("python3 with venv is missing; install it (Debian: python3-venv)".to_owned()),
        };
    }
    let compile = cargo::root().join("cuda/kernels/compile");
    let arguments = check.then_some("--check").or(budget.then_some("--budget"));
    cargo::run(Command::new(compile).args(arguments).current_dir(cargo::root()))
}
