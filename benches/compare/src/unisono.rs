//! unisono itself, through `unisono perf`.

use crate::case::{Transport, World};
use crate::data_points::Limits;
use crate::process::{self, ProcessOutcome};
use crate::settings::{Task, Workload};
use serde_json::Value;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use unisono_bench_support::size;

/// unisono with ordinary buffers.
pub(crate) const NAME: &str = "unisono";
/// unisono with symmetric buffers, from `Communicator::alloc_symmetric`.
pub(crate) const SYMMETRIC: &str = "unisono symmetric";

/// The command `unisono`, and what it understands.
pub(crate) struct Unisono {
    program: PathBuf,
    results: PathBuf,
}

/// Time of one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Timing {
    pub(crate) bytes: usize,
    pub(crate) micros: f64,
    /// One-way flag latency between the cores in microseconds.
    pub(crate) flag_latency: Option<f64>,
}

/// Results of one run.
#[derive(Debug, PartialEq)]
pub(crate) struct Measured {
    pub(crate) times: Vec<Timing>,
    /// Roofline measured by the same run: (bytes, microseconds).
    pub(crate) roofline: Vec<(usize, f64)>,
    /// Limits of the machine, if they were requested.
    pub(crate) limits: Option<Limits>,
}

impl Unisono {
    /// Makes sure that the program can be started. `scratch` is a folder for results in passing.
    pub(crate) fn new(program: PathBuf, scratch: &Path) -> Result<Self, String> {
        let ended = process::run(Command::new(&program).args(["perf", "--help"]), QUERY_TIMEOUT);
        if let Some(failure) = ended.failure {
            return Err(format!("{}: {failure}", program.display()));
        }
        let results = scratch.join(format!("perf-{}.json", std::process::id()));
        Ok(Self { program, results })
    }

    /// The command itself.
    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// The contenders that there are.
    pub(crate) fn names_for(&self, world: World) -> Vec<&'static str> {
        let window = world.transport == Transport::Shm;
        std::iter::once(NAME).chain(window.then_some(SYMMETRIC)).collect()
    }

    /// Measures one collective of a task as one of [`Unisono::names_for`]; with a page, the flag
    /// latency, too.
    pub(crate) fn measure(
        &self,
        library: &str,
        task: &Task,
        wanted: &Workload,
        table: Option<&Path>,
    ) -> Result<Measured, String> {
        let Task { world, time_limits: limits, .. } = task;
        let mut command = self.perf(wanted.collective.name(), world.ranks);
        command.args(["--transport", world.transport.name(), "--sizes", &size::list(&wanted.sizes)]);
        command.args(["--samples", &limits.budget.as_millis().to_string()]);
        command.args(if library == SYMMETRIC { &["-R", "2"][..] } else { &[] });
        command.args(table.map(|path| [OsStr::new("--flag-page"), path.as_os_str()]).into_iter().flatten());
        // The machine is the same for both.
        let roofline = task.measure_roofline && library == NAME;
        command.args(if roofline { None } else { Some("--no-roofline") });
        let measured =
            self.document(&mut command, limits.silence()).and_then(|document| parse_results(&document))?;
        if measured.limits.is_some() == roofline {
            Ok(measured)
        } else {
            Err("perf reports no roofline".to_owned())
        }
    }

    /// Starts `ranks` processes that meet in one barrier and end.
    pub(crate) fn startup(&self, ranks: usize, limit: Duration) -> ProcessOutcome {
        process::run(self.perf("barrier", ranks).args(["-n", "1", "-w", "0"]), limit)
    }

    /// The program's version and commit.
    pub(crate) fn version(&self, repository: &Path) -> String {
        let ask = |command: &mut Command| process::run(command, QUERY_TIMEOUT).stdout.trim().to_owned();
        let version = ask(Command::new(&self.program).arg("--version"));
        let describe = ["describe", "--always", "--dirty", "--abbrev=10"];
        let commit = ask(Command::new("git").arg("-C").arg(repository).args(describe));
        format!("{} ({commit})", version.rsplit(' ').next().unwrap_or_default())
    }

    fn perf(&self, what: &str, ranks: usize) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["perf", what, "--ranks", &ranks.to_string()]);
        command
    }

    fn document(&self, command: &mut Command, limit: Duration) -> Result<Value, String> {
        let failure = process::run(command.arg("-J").arg(&self.results), limit).failure;
        let text = std::fs::read_to_string(&self.results).map_err(|error| error.to_string());
        // An older run's results are not this one's.
        let _ = std::fs::remove_file(&self.results);
        failure.map_or(Ok(()), Err)?;
        serde_json::from_str(&text?).map_err(|error| error.to_string())
    }
}

/// Parses the output of `unisono perf -J`. One wrong element is an error.
fn parse_results(document: &Value) -> Result<Measured, String> {
    let rows = document["results"].as_array().ok_or("perf reports no results")?;
    let (mut times, mut roofline) = (Vec::new(), Vec::new());
    for row in rows {
        // Broadcasts are in place, as for every library.
        let half = [&row["out_of_place"], &row["in_place"]].into_iter().find(|half| !half.is_null());
        let half = half.unwrap_or(&Value::Null);
        let (Some(size), Some(time), Some(0)) =
            (row["size"].as_u64(), half["time"].as_f64(), half["nwrong"].as_u64())
        else {
            return Err(format!("not a good result: {row}"));
        };
        let bytes = size as usize;
        times.push(Timing { bytes, micros: time, flag_latency: row["flag_latency_us"].as_f64() });
        roofline.extend(row["roofline_us"].as_f64().map(|micros| (bytes, micros)));
    }
    let figure = |name| document["roofline"][name].as_f64();
    let limits = figure("copy_gbs_all_cores").zip(figure("flag_latency_us"));
    let limits = limits.map(|(copy_rate, flag_latency)| Limits { copy_rate, flag_latency });
    Ok(Measured { times, roofline, limits })
}

const QUERY_TIMEOUT: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn times_are_taken_from_right_results_only() {
        let row = |size, wrong| {
            let half = json!({"time": 1.5, "nwrong": wrong});
            json!({"size": size, "out_of_place": half, "flag_latency_us": 0.1, "roofline_us": 0.5})
        };
        let roofline = json!({"copy_gbs_all_cores": 40.0, "flag_latency_us": 0.1});
        let good =
            parse_results(&json!({"results": [row(8, 0), row(64, 0)], "roofline": roofline})).expect("good");
        let times = [8, 64].map(|bytes| Timing { bytes, micros: 1.5, flag_latency: Some(0.1) });
        assert_eq!((good.times, good.roofline), (times.to_vec(), vec![(8, 0.5), (64, 0.5)]));
        assert_eq!(good.limits, Some(Limits { copy_rate: 40.0, flag_latency: 0.1 }));
        assert!(parse_results(&json!({"results": [row(8, 0), row(64, 1)], "roofline": roofline})).is_err());
        assert_eq!(parse_results(&json!({"results": [row(8, 0)]})).map(|measured| measured.limits), Ok(None));
        assert!(parse_results(&json!({})).is_err());
    }
}
