//! One contender's turn: what it measures, what it loses when it fails, and how long it takes.

use crate::case::{Collective, World};
use crate::cells::Limits;
use crate::contender::{Patience, Setting, Task, Wanted};
use crate::library::Peer;
use crate::ours::{Measured, Time, Unisono};
use crate::process::{self, Ended};
use crate::results::{Names, Outcome};
use crate::rows::What;
use std::path::PathBuf;
use std::time::Duration;
use unisono_transports::pingpong::Table;

/// Somebody who runs.
pub(crate) enum Contender<'a> {
    Ours(&'a Unisono, &'static str),
    Theirs(&'a Peer, &'static Setting),
}

/// What a turn gave.
#[derive(Default)]
pub(crate) struct Turn {
    pub(crate) outcomes: Vec<Outcome>,
    /// What the machine allowed meanwhile.
    pub(crate) floor: Vec<Outcome>,
    pub(crate) spent: Spent,
}

/// Where time went.
#[derive(Clone, Copy, Default)]
pub(crate) struct Spent {
    /// All but measuring, where a benchmark came to its end.
    pub(crate) launching: Duration,
    pub(crate) all: Duration,
}

impl Spent {
    pub(crate) fn add(&mut self, other: Self) {
        self.launching += other.launching;
        self.all += other.all;
    }

    fn on(&mut self, ended: &Ended) {
        let measuring = ended.stdout.lines().find_map(|line| line.strip_prefix("measured,")?.parse().ok());
        let measuring = measuring.map_or(ended.wall, Duration::from_secs_f32);
        self.add(Self { launching: ended.wall.saturating_sub(measuring), all: ended.wall });
    }
}

impl std::fmt::Display for Spent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (launching, all) = (self.launching.as_secs_f64(), self.all.as_secs_f64());
        write!(f, "{all:.1} s, of which launching {launching:.1}")
    }
}

impl Contender<'_> {
    pub(crate) fn names(&self) -> Names<'static> {
        match self {
            Self::Ours(_, name) => (name, "auto"),
            Self::Theirs(peer, setting) => (peer.library.name(), setting.name),
        }
    }

    /// Whether it takes part in a collective.
    pub(crate) fn is_for(&self, world: World, collective: Collective, cores: usize) -> bool {
        match self {
            Self::Ours(..) => true,
            Self::Theirs(_, setting) => setting.is_for(world.case(collective), cores),
        }
    }

    pub(crate) fn run(&self, task: &Task, cores: usize) -> Turn {
        match self {
            Self::Ours(unisono, name) => ours(unisono, name, task, cores),
            Self::Theirs(peer, setting) => theirs(task, |wanted| {
                let rest = Task { wanted: wanted.to_vec(), ..*task };
                let mut command = setting.command(peer, &rest, cores);
                let table = table(task.world, cores);
                command.envs(table.as_ref().map(|(_, path)| (TABLE, path)));
                process::run(&mut command, task.patience.silence() + SELF_HELP)
            }),
        }
    }
}

/// Where the first and the last rank find how far apart their cores are, and its path as long as it is there.
fn table(world: World, cores: usize) -> Option<(Table, PathBuf)> {
    let apart = world.ranks >= 2 && cores >= 2;
    let table = apart.then(|| Table::new().and_then(|table| Ok((table.path()?, table))))?;
    let (path, table) = table.inspect_err(|error| eprintln!("hand-overs are not measured: {error}")).ok()?;
    Some((table, path))
}

/// A launch for each collective.
fn ours(unisono: &Unisono, name: &str, task: &Task, cores: usize) -> Turn {
    let mut turn = Turn::default();
    for wanted in &task.wanted {
        let begun = std::time::Instant::now();
        let table = table(task.world, cores);
        match unisono.measure(name, task, wanted, table.as_ref().map(|(_, path)| path.as_path())) {
            Ok(measured) => turn.take(measured, task.world, wanted.collective),
            Err(why) => turn.outcomes.push(failed(task.world, wanted, &why)),
        }
        turn.spent.all += begun.elapsed();
    }
    turn
}

impl Turn {
    fn take(&mut self, measured: Measured, world: World, collective: Collective) {
        let cell = |bytes| What::Cell(world.case(collective), bytes);
        let time = |time: Time| Outcome {
            what: cell(time.bytes),
            value: Ok(time.micros),
            hand_over: time.hand_over,
        };
        self.outcomes.extend(measured.times.into_iter().map(time));
        self.floor.extend(measured.floor.into_iter().map(|(bytes, micros)| (cell(bytes), Ok(micros)).into()));
        if let Some(Limits { copy_rate, hand_over }) = measured.limits {
            let limits = [(What::CopyRate, Ok(copy_rate)), (What::HandOver, Ok(hand_over))];
            self.floor.extend(limits.map(Outcome::from));
        }
    }
}

/// One launch for all collectives, and another one after each collective that ended it. Two that gave nothing
/// are enough.
fn theirs(task: &Task, launch: impl Fn(&[Wanted]) -> Ended) -> Turn {
    let (mut turn, mut left, mut empty) = (Turn::default(), &task.wanted[..], 0);
    while !left.is_empty() {
        let ended = launch(left);
        turn.spent.on(&ended);
        let why = reason(&ended, task.patience);
        let (outcomes, rest) = match outcomes(&ended.stdout, task.world) {
            Ok(outcomes) => settle(outcomes, why, task.world, left),
            // A line that is none makes all of them doubtful.
            Err(line) => (left.iter().map(|wanted| failed(task.world, wanted, &line)).collect(), &left[..0]),
        };
        empty = if outcomes.len() > 1 { 0 } else { empty + 1 };
        turn.outcomes.extend(outcomes);
        left = rest;
        if empty == EMPTY_LAUNCHES {
            turn.outcomes.extend(left.iter().map(|wanted| failed(task.world, wanted, NOT_TRIED)));
            break;
        }
    }
    turn
}

/// Why a launch failed, whatever a launcher says of ranks that gave up.
fn reason(ended: &Ended, patience: Patience) -> Option<String> {
    let hung = ended.silence >= patience.silence();
    ended.failure.clone().map(|why| if hung { process::silent(patience.silence()) } else { why })
}

/// The outcomes of a launch with its failure, which is that of the first collective that is not complete, and
/// what is left to another launch.
fn settle(
    mut outcomes: Vec<Outcome>,
    failure: Option<String>,
    world: World,
    wanted: &[Wanted],
) -> (Vec<Outcome>, &[Wanted]) {
    let is_whole = |wanted: &&Wanted| {
        let case = world.case(wanted.collective);
        let has = |bytes: &usize| {
            outcomes.iter().any(|outcome| outcome.what == What::Cell(case, case.stated(*bytes)))
        };
        wanted.sizes.iter().all(has)
    };
    let whole = wanted.iter().take_while(is_whole).count();
    // Who has measured everything can still fail at its end.
    let at_fault = wanted.get(whole).or(wanted.last().filter(|_| failure.is_some()));
    let why = failure.unwrap_or_else(|| "printed no time".to_owned());
    outcomes.extend(at_fault.map(|wanted| failed(world, wanted, &why)));
    (outcomes, wanted.get(whole + 1..).unwrap_or_default())
}

fn failed(world: World, wanted: &Wanted, why: &str) -> Outcome {
    (What::Cell(world.case(wanted.collective), 0), Err(why.to_owned())).into()
}

/// The outcomes among the lines that a benchmark printed; an error is a line that is none.
fn outcomes(output: &str, world: World) -> Result<Vec<Outcome>, String> {
    let theirs = output.lines().filter_map(|line| {
        let collective = Collective::ALL.into_iter().find(|one| line.trim().starts_with(one.name()))?;
        let fields = line.trim().strip_prefix(&format!("{},{},", collective.name(), world.ranks))?;
        Some(outcome(fields, world, collective).ok_or_else(|| format!("not a time: {line}")))
    });
    theirs.collect()
}

/// Of `BYTES,MICROSECONDS`, `BYTES,MICROSECONDS,HAND-OVER` or `BYTES,!REASON`.
fn outcome(fields: &str, world: World, collective: Collective) -> Option<Outcome> {
    let (bytes, value) = fields.split_once(',')?;
    let what = What::Cell(world.case(collective), bytes.parse().ok()?);
    if let Some(reason) = value.strip_prefix('!') {
        return Some((what, Err(reason.to_owned())).into());
    }
    let mut figures = value.split(',').map(|figure| figure.parse().ok().filter(|&micros: &f64| micros > 0.0));
    let value = Ok(figures.next()??);
    let hand_over = figures.next().map_or(Some(None), |micros| micros.map(Some))?;
    figures.next().is_none().then_some(Outcome { what, value, hand_over })
}

/// Ranks end themselves when they hang; launchers that hang after it are ended this much later.
const SELF_HELP: Duration = Duration::from_secs(5);
const EMPTY_LAUNCHES: usize = 2;
/// What benchmarks in C find the table by.
const TABLE: &str = "UNISONO_PEERS_TABLE";
const NOT_TRIED: &str = "not tried: launches before it gave nothing";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Transport;
    use std::cell::RefCell;

    const WORLD: World = World { transport: Transport::Shm, ranks: 2 };
    const THREE: [Collective; 3] = [Collective::AllReduce, Collective::Broadcast, Collective::AllToAll];

    fn task() -> Task {
        let patience = Patience { budget: Duration::from_millis(1), limit: Duration::from_secs(1) };
        let wanted = THREE.map(|collective| Wanted { collective, sizes: vec![8, 64] }).to_vec();
        Task { world: WORLD, wanted, patience, floor: false }
    }

    /// Launches that put out these texts, and what they were asked for.
    fn turn(outputs: &[(&str, Option<&str>)]) -> (Vec<Outcome>, Vec<usize>) {
        let asked = RefCell::new(Vec::new());
        let launch = |wanted: &[Wanted]| {
            let (stdout, failure) = outputs[asked.borrow().len()];
            asked.borrow_mut().push(wanted.len());
            let none = Duration::ZERO;
            let failure = failure.map(str::to_owned);
            Ended { stdout: stdout.to_owned(), wall: none, silence: none, failure }
        };
        let turn = theirs(&task(), launch);
        (turn.outcomes, asked.into_inner())
    }

    fn times(outcomes: &[Outcome]) -> usize {
        outcomes.iter().filter(|outcome| outcome.value.is_ok()).count()
    }

    #[test]
    fn outcomes_are_found_between_what_libraries_say() {
        let output =
            "a warning, with commas\nall_reduce,2,8,0.25,0.1\nall_to_all,2,64,!too slow\nall_reduce wins\n";
        let cell = |collective, bytes| What::Cell(WORLD.case(collective), bytes);
        let apart = Outcome { what: cell(Collective::AllReduce, 8), value: Ok(0.25), hand_over: Some(0.1) };
        let skipped = (cell(Collective::AllToAll, 64), Err("too slow".to_owned())).into();
        assert_eq!(outcomes(output, WORLD), Ok(vec![apart, skipped]));
        for bad in
            ["8,fast", "8,0", "8", "x,!no", "8,1,far", "8,1,0.1,0"].map(|bad| format!("all_reduce,2,{bad}"))
        {
            assert!(outcomes(&bad, WORLD).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_collective_that_fails_loses_only_what_it_has_not_measured() {
        let first = "all_reduce,2,8,1\nall_reduce,2,64,1\nbroadcast,2,8,1\n";
        let second = "all_to_all,2,8,1\nall_to_all,2,64,1\n";
        let (outcomes, asked) = turn(&[(first, Some("it died")), (second, None)]);
        assert_eq!((times(&outcomes), asked), (5, vec![3, 1]));
        let named = (What::Cell(WORLD.case(Collective::Broadcast), 0), Err("it died".to_owned())).into();
        assert!(outcomes.contains(&named), "{outcomes:?}");
    }

    #[test]
    fn sizes_that_are_skipped_are_no_failure() {
        let lines = THREE.map(|one| format!("{0},2,8,1\n{0},2,64,!skipped\n", one.name()));
        let (outcomes, asked) = turn(&[(&lines.concat(), None)]);
        assert_eq!((outcomes.len(), times(&outcomes), asked), (6, 3, vec![3]));
    }

    #[test]
    fn silence_is_a_failure_and_after_two_launches_nobody_asks_again() {
        let (outcomes, asked) = turn(&[("", None), ("", Some("it hung"))]);
        let reasons: Vec<_> = outcomes.into_iter().filter_map(|outcome| outcome.value.err()).collect();
        assert_eq!(reasons, ["printed no time", "it hung", NOT_TRIED]);
        assert_eq!(asked, [3, 2]);
    }

    #[test]
    fn a_failure_after_the_last_time_is_named_too() {
        let lines = THREE.map(|one| format!("{0},2,8,1\n{0},2,64,1\n", one.name()));
        let (outcomes, asked) = turn(&[(&lines.concat(), Some("it died at its end"))]);
        assert_eq!((outcomes.len(), times(&outcomes), asked), (7, 6, vec![3]));
    }
}
