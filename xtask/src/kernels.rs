//! The GPU kernels: compiled by NVRTC, without a GPU and without CUDA.

use crate::{Result, cargo};
use std::process::{Command, Stdio};

/// Writes the compiled kernels, or compares them with the committed ones byte by byte.
///
/// The compiler script fetches NVRTC's wheels, so Python with `venv` is required.
pub(crate) fn run(check: bool) -> Result {
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
    cargo::run(Command::new(compile).args(check.then_some("--check")).current_dir(cargo::root()))
}
