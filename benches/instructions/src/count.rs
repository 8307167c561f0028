//! Counts the instructions of one path.

use std::process::Command;

/// Returns the instructions of one iteration of `path`. Startup cancels in the difference of a long
/// and a short run.
pub(crate) fn instructions(path: &str) -> Result<u64, String> {
    let (short, long) = std::thread::scope(|scope| {
        let short = scope.spawn(|| collected(path, SHORT));
        let long = collected(path, LONG);
        (short.join().expect("counting does not panic"), long)
    });
    let turns = LONG - SHORT;
    Ok((long?.saturating_sub(short?) + turns / 2) / turns)
}

/// Returns all instructions of a process that runs so many iterations of `path`.
fn collected(path: &str, turns: u64) -> Result<u64, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new("valgrind")
        // The content of the environment must not matter.
        .env_clear()
        .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args(["run", path, &turns.to_string()])
        .output()
        .map_err(|error| format!("valgrind: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let count = said.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok());
    count.filter(|_| output.status.success()).ok_or_else(|| format!("{path} under valgrind:\n{said}"))
}

/// Multiples of the numbers of slots, so that both runs end at the beginning of a lap.
const SHORT: u64 = 128;
const LONG: u64 = 640;
