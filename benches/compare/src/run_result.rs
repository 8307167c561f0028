//! One run of a source: its results, its failures and its duration.

use crate::case::{Collective, World};
use crate::data_points::Limits;
use crate::library::InstalledLibrary;
use crate::process::{self, ProcessOutcome};
use crate::results::{Outcome, SourceKey};
use crate::rows::Metric;
use crate::settings::{Setting, Task, TimeLimits, Workload};
use crate::unisono::{Measured, Timing, Unisono};
use std::path::PathBuf;
use std::time::Duration;
use unisono_transports::testing::flag_latency::FlagPage;

/// Somebody who runs.
pub(crate) enum Implementation<'a> {
    Unisono(&'a Unisono, &'static str),
    Peer(&'a InstalledLibrary, &'static Setting),
}

/// Results of a run.
#[derive(Default)]
pub(crate) struct RunResult {
    pub(crate) outcomes: Vec<Outcome>,
    /// Limits of the machine measured by the same run.
    pub(crate) roofline: Vec<Outcome>,
    pub(crate) time_spent: TimeSpent,
}

/// Durations of a run.
#[derive(Clone, Copy, Default)]
pub(crate) struct TimeSpent {
    /// Time outside the measurement, for benchmarks that came to their end.
    pub(crate) launching: Duration,
    pub(crate) all: Duration,
}

impl TimeSpent {
    pub(crate) fn add(&mut self, other: Self) {
        self.launching += other.launching;
        self.all += other.all;
    }

    fn add_process(&mut self, ended: &ProcessOutcome) {
        let measuring = ended.stdout.lines().find_map(|line| line.strip_prefix("measured,")?.parse().ok());
        let measuring = measuring.map_or(ended.wall, Duration::from_secs_f32);
        self.add(Self { launching: ended.wall.saturating_sub(measuring), all: ended.wall });
    }
}

impl std::fmt::Display for TimeSpent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (launching, total) = (self.launching.as_secs_f64(), self.all.as_secs_f64());
        write!(f, "{total:.1} s, of which launching {launching:.1}")
    }
}

impl Implementation<'_> {
    pub(crate) fn source_key(&self) -> SourceKey<'static> {
        match self {
            Self::Unisono(_, name) => (name, "auto"),
            Self::Peer(peer, setting) => (peer.library.name(), setting.name),
        }
    }

    /// Returns whether the source takes part in a collective.
    pub(crate) fn supports(&self, world: World, collective: Collective, cores: usize) -> bool {
        match self {
            Self::Unisono(..) => true,
            Self::Peer(_, setting) => setting.supports(world.case(collective), cores),
        }
    }

    pub(crate) fn run(&self, task: &Task, cores: usize) -> RunResult {
        match self {
            Self::Unisono(unisono, name) => run_unisono(unisono, name, task, cores),
            Self::Peer(peer, setting) => run_peer(task, |wanted| {
                let pending = Task { workloads: wanted.to_vec(), ..*task };
                let mut command = setting.command(peer, &pending, cores);
                let table = flag_page(task.world, cores);
                command.envs(table.as_ref().map(|(_, path)| (FLAG_PAGE_ENV, path)));
                process::run(&mut command, task.time_limits.silence() + SELF_TERMINATION_GRACE)
            }),
        }
    }
}

/// Page for the flag latency between the first and the last rank, with its path while it exists.
///
/// Nothing is measured under load: the ranks would wait for their cores, and use them up before the
/// sample.
fn flag_page(world: World, cores: usize) -> Option<(FlagPage, PathBuf)> {
    let apart = world.ranks >= 2 && cores >= 2 && world.load.is_quiet();
    let table = apart.then(|| FlagPage::new().and_then(|table| Ok((table.path()?, table))))?;
    let (path, table) = table.inspect_err(|error| eprintln!("hand-overs are not measured: {error}")).ok()?;
    Some((table, path))
}

/// A launch for each collective.
fn run_unisono(unisono: &Unisono, name: &str, task: &Task, cores: usize) -> RunResult {
    let mut turn = RunResult::default();
    for wanted in &task.workloads {
        let begun = std::time::Instant::now();
        let table = flag_page(task.world, cores);
        match unisono.measure(name, task, wanted, table.as_ref().map(|(_, path)| path.as_path())) {
            Ok(measured) => turn.add_measured(measured, task.world, wanted.collective),
            Err(why) => turn.outcomes.push(failed(task.world, wanted, &why)),
        }
        turn.time_spent.all += begun.elapsed();
    }
    turn
}

impl RunResult {
    fn add_measured(&mut self, measured: Measured, world: World, collective: Collective) {
        let point = |bytes| Metric::Collective(world.case(collective), bytes);
        let time = |time: Timing| Outcome {
            metric: point(time.bytes),
            value: Ok(time.micros),
            flag_latency: time.flag_latency,
        };
        self.outcomes.extend(measured.times.into_iter().map(time));
        self.roofline
            .extend(measured.roofline.into_iter().map(|(bytes, micros)| (point(bytes), Ok(micros)).into()));
        if let Some(Limits { copy_rate, flag_latency }) = measured.limits {
            let limits = [(Metric::CopyRate, Ok(copy_rate)), (Metric::FlagLatency, Ok(flag_latency))];
            self.roofline.extend(limits.map(Outcome::from));
        }
    }
}

/// Launches all collectives together, and launches again after each collective that ended a launch.
///
/// Two launches without a result are the limit.
fn run_peer(task: &Task, launch: impl Fn(&[Workload]) -> ProcessOutcome) -> RunResult {
    let (mut turn, mut left, mut empty) = (RunResult::default(), &task.workloads[..], 0);
    while !left.is_empty() {
        let ended = launch(left);
        turn.time_spent.add_process(&ended);
        let why = failure_reason(&ended, task.time_limits);
        let (outcomes, pending) = match outcomes(&ended.stdout, task.world) {
            Ok(outcomes) => attribute_failure(outcomes, why, task.world, left),
            // A line that is none makes all of them doubtful.
            Err(line) => (left.iter().map(|wanted| failed(task.world, wanted, &line)).collect(), &left[..0]),
        };
        empty = if outcomes.len() > 1 { 0 } else { empty + 1 };
        turn.outcomes.extend(outcomes);
        left = pending;
        if empty == EMPTY_LAUNCHES_MAX {
            turn.outcomes.extend(left.iter().map(|wanted| failed(task.world, wanted, NOT_TRIED)));
            break;
        }
    }
    turn
}

/// Why a launch failed, whatever a launcher says of ranks that gave up.
fn failure_reason(ended: &ProcessOutcome, limits: TimeLimits) -> Option<String> {
    let hung = ended.silence >= limits.silence();
    ended.failure.clone().map(|why| if hung { process::silence_message(limits.silence()) } else { why })
}

/// Returns the outcomes of a launch and the collectives left for another launch.
///
/// The failure of a launch belongs to the first incomplete collective.
fn attribute_failure(
    mut outcomes: Vec<Outcome>,
    failure: Option<String>,
    world: World,
    wanted: &[Workload],
) -> (Vec<Outcome>, &[Workload]) {
    let is_whole = |wanted: &&Workload| {
        let case = world.case(wanted.collective);
        let has = |bytes: &usize| {
            outcomes.iter().any(|outcome| outcome.metric == Metric::Collective(case, case.stated(*bytes)))
        };
        wanted.sizes.iter().all(has)
    };
    let complete = wanted.iter().take_while(is_whole).count();
    // A benchmark that has measured everything can still fail at its end.
    let at_fault = wanted.get(complete).or(wanted.last().filter(|_| failure.is_some()));
    let why = failure.unwrap_or_else(|| "printed no time".to_owned());
    outcomes.extend(at_fault.map(|wanted| failed(world, wanted, &why)));
    (outcomes, wanted.get(complete + 1..).unwrap_or_default())
}

fn failed(world: World, wanted: &Workload, why: &str) -> Outcome {
    (Metric::Collective(world.case(wanted.collective), 0), Err(why.to_owned())).into()
}

/// The outcomes among the lines that a benchmark printed; an error is a line that is none.
fn outcomes(output: &str, world: World) -> Result<Vec<Outcome>, String> {
    let theirs = output.lines().filter_map(|line| {
        let collective =
            Collective::ALL.into_iter().find(|collective| line.trim().starts_with(collective.name()))?;
        let fields = line.trim().strip_prefix(&format!("{},{},", collective.name(), world.ranks))?;
        Some(outcome(fields, world, collective).ok_or_else(|| format!("not a time: {line}")))
    });
    theirs.collect()
}

/// Parses `BYTES,MICROSECONDS`, `BYTES,MICROSECONDS,FLAG_LATENCY` or `BYTES,!REASON`.
fn outcome(fields: &str, world: World, collective: Collective) -> Option<Outcome> {
    let (bytes, value) = fields.split_once(',')?;
    let what = Metric::Collective(world.case(collective), bytes.parse().ok()?);
    if let Some(reason) = value.strip_prefix('!') {
        return Some((what, Err(reason.to_owned())).into());
    }
    let mut figures = value.split(',').map(|figure| figure.parse().ok().filter(|&micros: &f64| micros > 0.0));
    let value = Ok(figures.next()??);
    let flag_latency = figures.next().map_or(Some(None), |micros| micros.map(Some))?;
    figures.next().is_none().then_some(Outcome { metric: what, value, flag_latency })
}

/// Ranks end themselves when they hang; launchers that hang after it are ended this much later.
const SELF_TERMINATION_GRACE: Duration = Duration::from_secs(5);
const EMPTY_LAUNCHES_MAX: usize = 2;
/// Environment variable with the path of the flag page, for the C benchmarks.
const FLAG_PAGE_ENV: &str = "UNISONO_COMPARE_FLAG_PAGE";
const NOT_TRIED: &str = "not tried: launches before it gave nothing";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Transport;
    use crate::load::Load;
    use std::cell::RefCell;

    const WORLD: World = World { transport: Transport::Shm, ranks: 2, load: Load::QUIET };
    const THREE: [Collective; 3] = [Collective::AllReduce, Collective::Broadcast, Collective::AllToAll];

    fn task() -> Task {
        let limits = TimeLimits { budget: Duration::from_millis(1), limit: Duration::from_secs(1) };
        let wanted = THREE.map(|collective| Workload { collective, sizes: vec![8, 64] }).to_vec();
        Task { world: WORLD, workloads: wanted, time_limits: limits, measure_roofline: false }
    }

    /// Runs launches that print these texts, and returns the workloads requested of each.
    fn run_launches(outputs: &[(&str, Option<&str>)]) -> (Vec<Outcome>, Vec<usize>) {
        let requested = RefCell::new(Vec::new());
        let launch = |wanted: &[Workload]| {
            let (stdout, failure) = outputs[requested.borrow().len()];
            requested.borrow_mut().push(wanted.len());
            let none = Duration::ZERO;
            let failure = failure.map(str::to_owned);
            ProcessOutcome { stdout: stdout.to_owned(), wall: none, silence: none, failure }
        };
        let turn = run_peer(&task(), launch);
        (turn.outcomes, requested.into_inner())
    }

    fn times(outcomes: &[Outcome]) -> usize {
        outcomes.iter().filter(|outcome| outcome.value.is_ok()).count()
    }

    #[test]
    fn outcomes_are_parsed_among_other_output() {
        let output =
            "a warning, with commas\nall_reduce,2,8,0.25,0.1\nall_to_all,2,64,!too slow\nall_reduce wins\n";
        let point = |collective, bytes| Metric::Collective(WORLD.case(collective), bytes);
        let apart =
            Outcome { metric: point(Collective::AllReduce, 8), value: Ok(0.25), flag_latency: Some(0.1) };
        let skipped = (point(Collective::AllToAll, 64), Err("too slow".to_owned())).into();
        assert_eq!(outcomes(output, WORLD), Ok(vec![apart, skipped]));
        for bad in
            ["8,fast", "8,0", "8", "x,!no", "8,1,far", "8,1,0.1,0"].map(|bad| format!("all_reduce,2,{bad}"))
        {
            assert!(outcomes(&bad, WORLD).is_err(), "{bad}");
        }
    }

    #[test]
    fn failed_collective_loses_only_unmeasured_sizes() {
        let first = "all_reduce,2,8,1\nall_reduce,2,64,1\nbroadcast,2,8,1\n";
        let second = "all_to_all,2,8,1\nall_to_all,2,64,1\n";
        let (outcomes, requested) = run_launches(&[(first, Some("it died")), (second, None)]);
        assert_eq!((times(&outcomes), requested), (5, vec![3, 1]));
        let named =
            (Metric::Collective(WORLD.case(Collective::Broadcast), 0), Err("it died".to_owned())).into();
        assert!(outcomes.contains(&named), "{outcomes:?}");
    }

    #[test]
    fn skipped_sizes_are_not_failures() {
        let lines = THREE.map(|collective| format!("{0},2,8,1\n{0},2,64,!skipped\n", collective.name()));
        let (outcomes, requested) = run_launches(&[(&lines.concat(), None)]);
        assert_eq!((outcomes.len(), times(&outcomes), requested), (6, 3, vec![3]));
    }

    #[test]
    fn two_empty_launches_end_the_retries() {
        let (outcomes, requested) = run_launches(&[("", None), ("", Some("it hung"))]);
        let reasons: Vec<_> = outcomes.into_iter().filter_map(|outcome| outcome.value.err()).collect();
        assert_eq!(reasons, ["printed no time", "it hung", NOT_TRIED]);
        assert_eq!(requested, [3, 2]);
    }

    #[test]
    fn failure_after_last_time_is_reported() {
        let lines = THREE.map(|collective| format!("{0},2,8,1\n{0},2,64,1\n", collective.name()));
        let (outcomes, requested) = run_launches(&[(&lines.concat(), Some("it died at its end"))]);
        assert_eq!((outcomes.len(), times(&outcomes), requested), (7, 6, vec![3]));
    }
}
