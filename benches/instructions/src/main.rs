//! `cargo xtask bench instructions`: instructions of the hot paths, compared with the committed
//! baseline.
//!
//! Times differ from run to run; counts of instructions do not. One thread drives every path, so
//! that nothing depends on the schedule of threads.

mod baseline;
mod count;
mod paths;
mod report;

use baseline::Baseline;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let ended = match arguments[..] {
        [] => check(),
        ["--renew"] => renew(),
        ["run", path, times] => paths::run(path, times).map(|()| ExitCode::SUCCESS),
        _ => Err("usage: unisono-instructions [--renew | run <path> <times>]".to_owned()),
    };
    ended.unwrap_or_else(|why| {
        eprintln!("{why}");
        ExitCode::FAILURE
    })
}

fn check() -> Result<ExitCode, String> {
    let (baseline, mut now) = (Baseline::read()?, Baseline::count()?);
    // Count grown paths again: the choice of stores depends on time, which other programs disturb.
    now.recount(&report::regressions(&baseline, &now))?;
    Ok(report::print(&baseline, &now))
}

fn renew() -> Result<ExitCode, String> {
    let now = Baseline::count()?;
    now.write()?;
    print!("{now}");
    Ok(ExitCode::SUCCESS)
}
