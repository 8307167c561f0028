//! The comparison itself: in every round of a case, every contender once.

use crate::case::Case;
use crate::contender::{SETTINGS, Setting, Task};
use crate::library::Peer;
use crate::ours::{Measured, Times, Unisono};
use crate::process;
use crate::rows::{FLOOR, Row, What, save};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What to run.
pub(crate) struct Plan {
    pub(crate) cases: Vec<Case>,
    pub(crate) sizes: Vec<usize>,
    pub(crate) rounds: usize,
    pub(crate) budget: Duration,
    pub(crate) limit: Duration,
    pub(crate) cores: usize,
    /// Names of contenders; empty: all.
    pub(crate) only: Vec<String>,
}

/// Somebody who runs.
enum Contender<'a> {
    Ours(&'static str),
    Theirs(&'a Peer, &'static Setting),
}

impl Contender<'_> {
    fn names(&self) -> (&'static str, &'static str) {
        match self {
            Self::Ours(name) => (name, "auto"),
            Self::Theirs(peer, setting) => (peer.library.name(), setting.name),
        }
    }

    fn run(&self, unisono: &Unisono, task: &Task<'_>, cores: usize) -> Run {
        match self {
            Self::Ours(name) => match unisono.measure(name, task) {
                Ok(measured) => ours(measured, task.case),
                Err(failure) => Run { failure: Some(failure), ..Run::default() },
            },
            Self::Theirs(peer, setting) => {
                let ended = process::run(&mut setting.command(peer, task, cores), task.limit + SELF_HELP);
                // Whatever a launcher says of ranks that gave up.
                let late = || format!("did not end within {} s", task.limit.as_secs());
                let failure = ended.failure.map(|why| if ended.wall < task.limit { why } else { late() });
                theirs(&ended.stdout, failure, task.case)
            }
        }
    }
}

/// What one run gave.
#[derive(Debug, Default, PartialEq)]
struct Run {
    times: Times,
    /// What the machine allowed meanwhile.
    floor: Vec<(What, Result<f64, String>)>,
    /// Why times are missing.
    failure: Option<String>,
}

fn ours(measured: Measured, case: Case) -> Run {
    let cells = measured.floor.into_iter().map(|(bytes, micros)| (What::Cell(case, bytes), Ok(micros)));
    let figures = [(What::CopyRate, Ok(measured.copy_rate)), (What::HandOver, Ok(measured.hand_over))];
    Run { times: measured.times, floor: cells.chain(figures).collect(), failure: None }
}

/// Times before a failure count; a line that is none makes all of them doubtful.
fn theirs(output: &str, failure: Option<String>, case: Case) -> Run {
    let (times, failure) = match times_in(output, case) {
        Err(line) => (Vec::new(), Some(line)),
        Ok(times) if times.is_empty() => (times, failure.or_else(|| Some("printed no times".to_owned()))),
        Ok(times) => (times, failure),
    };
    Run { times, floor: Vec::new(), failure }
}

/// Rows, kept in a file from the first one on.
pub(crate) struct Results {
    pub(crate) rows: Vec<Row>,
    pub(crate) path: PathBuf,
}

impl Results {
    fn has(&self, round: usize, case: Case, names: (&str, &str)) -> bool {
        let same = |what| matches!(what, What::Cell(other, _) if other == case);
        let by = |row: &Row| (row.contender.as_str(), row.setting.as_str()) == names;
        self.rows.iter().any(|row| row.round == round && same(row.what) && by(row))
    }

    pub(crate) fn has_startup(&self, round: usize, name: &str) -> bool {
        let is_it = |row: &&Row| matches!(row.what, What::Startup(_)) && row.round == round;
        self.rows.iter().filter(is_it).any(|row| row.contender == name)
    }

    /// Adds rows of one contender.
    pub(crate) fn add(
        &mut self,
        round: usize,
        names: (&str, &str),
        outcomes: impl IntoIterator<Item = (What, Result<f64, String>)>,
    ) -> Result<(), String> {
        let (contender, setting) = (names.0.to_owned(), names.1.to_owned());
        let row = |(what, outcome)| Row {
            round,
            what,
            contender: contender.clone(),
            setting: setting.clone(),
            outcome,
        };
        self.rows.extend(outcomes.into_iter().map(row));
        save(&self.path, &self.rows)
    }
}

impl Plan {
    /// Runs everything that `results` lacks.
    pub(crate) fn run(&self, unisono: &Unisono, peers: &[Peer], results: &mut Results) -> Result<(), String> {
        let begun = Instant::now();
        for (at, &case) in self.cases.iter().enumerate() {
            let minutes = begun.elapsed().as_secs() / 60;
            eprintln!("{case} ({} of {} cases, {minutes} min so far)", at + 1, self.cases.len());
            let contenders = self.contenders(case, unisono, peers);
            for round in 1..=self.rounds {
                // Nobody always runs behind the same one.
                let mut order: Vec<&Contender<'_>> = contenders.iter().collect();
                order.rotate_left((round - 1) * contenders.len() / self.rounds);
                order.retain(|contender| !results.has(round, case, contender.names()));
                for contender in order {
                    self.one(contender, case, round, unisono, results)?;
                }
            }
        }
        Ok(())
    }

    /// Whether somebody of this name takes part.
    pub(crate) fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| name.eq_ignore_ascii_case(only))
    }

    fn contenders<'a>(&self, case: Case, unisono: &Unisono, peers: &'a [Peer]) -> Vec<Contender<'a>> {
        let ours = unisono.contenders(case).into_iter().filter(|name| self.wants(name)).map(Contender::Ours);
        let settings = |peer: &'a Peer| {
            let fits =
                move |setting: &&Setting| setting.library == peer.library && setting.is_for(case, self.cores);
            SETTINGS.iter().filter(fits).map(move |setting| Contender::Theirs(peer, setting))
        };
        let theirs = peers.iter().filter(|peer| self.wants(peer.library.name())).flat_map(settings);
        ours.chain(theirs).collect()
    }

    fn one(
        &self,
        contender: &Contender<'_>,
        case: Case,
        round: usize,
        unisono: &Unisono,
        results: &mut Results,
    ) -> Result<(), String> {
        let task = Task { case, sizes: &self.sizes, budget: self.budget, limit: self.limit };
        let begun = Instant::now();
        let Run { times, floor, failure } = contender.run(unisono, &task, self.cores);
        let (name, setting) = contender.names();
        eprintln!(
            "  round {round}: {name}, {setting}: {:.1} s{}",
            begun.elapsed().as_secs_f64(),
            failure.as_deref().map(|why| format!("; {why}")).unwrap_or_default()
        );
        let times = times.into_iter().map(|(bytes, micros)| (What::Cell(case, bytes), Ok(micros)));
        let failure = failure.map(|why| (What::Cell(case, 0), Err(why)));
        results.add(round, (FLOOR, ""), floor)?;
        results.add(round, (name, setting), times.chain(failure))
    }
}

/// The times among the lines that a benchmark printed.
fn times_in(output: &str, case: Case) -> Result<Times, String> {
    let head = format!("{},{},", case.collective.name(), case.ranks);
    let ours = output.lines().filter_map(|line| line.trim().strip_prefix(&head));
    let time = |fields: &str| {
        let (bytes, micros) = fields.split_once(',')?;
        Some((bytes.parse().ok()?, micros.parse().ok().filter(|&micros: &f64| micros > 0.0)?))
    };
    ours.map(|fields| time(fields).ok_or_else(|| format!("not a time: {head}{fields}"))).collect()
}

/// Ranks end themselves at the limit; launchers that hang after it are ended this much later.
const SELF_HELP: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::{Collective, Transport};

    const CASE: Case = Case { transport: Transport::Shm, collective: Collective::AllReduce, ranks: 2 };

    #[test]
    fn times_are_found_between_what_libraries_say() {
        let output = "a warning, with commas\nall_reduce,2,8,0.25\nall_reduce,2,1048576,91.8\n";
        assert_eq!(times_in(output, CASE), Ok(vec![(8, 0.25), (1 << 20, 91.8)]));
        assert_eq!(times_in("nothing\n", CASE), Ok(vec![]));
        for bad in ["all_reduce,2,8,fast", "all_reduce,2,8,0", "all_reduce,2,8"] {
            assert!(times_in(bad, CASE).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_before_a_failure_count_and_silence_is_one() {
        let run = theirs("all_reduce,2,8,0.25\n", Some("it hung".into()), CASE);
        assert_eq!((run.times.len(), run.failure.as_deref()), (1, Some("it hung")));
        assert_eq!(theirs("", None, CASE).failure.as_deref(), Some("printed no times"));
        assert_eq!(theirs("", Some("it hung".into()), CASE).failure.as_deref(), Some("it hung"));
    }

    #[test]
    fn what_is_there_is_not_run_again() {
        let path = std::env::temp_dir().join(format!("unisono-peers-{}.csv", std::process::id()));
        let mut results = Results { rows: Vec::new(), path: path.clone() };
        results.add(1, ("Intel MPI", "yield ring"), [(What::Cell(CASE, 8), Ok(1.0))]).expect("writable");
        let names = ("Intel MPI", "yield ring");
        assert!(results.has(1, CASE, names) && !results.has(2, CASE, names));
        let read = std::fs::read_to_string(&path).expect("written");
        assert_eq!(crate::rows::from_csv(&read), Ok(results.rows));
        std::fs::remove_file(path).expect("removed");
    }
}
