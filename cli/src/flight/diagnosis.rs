//! Diagnosis of a communicator, which finds the first call in which ranks differ, or the ranks that
//! are behind.

use super::record::{Operation, Record, State};
use std::collections::{BTreeMap, HashSet};
use std::fmt;

/// Result of comparing the records of one communicator.
#[derive(Debug)]
pub(super) struct Diagnosis<'r> {
    records: &'r [Record],
    /// Ranks without a record.
    pub(super) missing: Vec<usize>,
    pub(super) finding: Finding<'r>,
}

/// First problem of a communicator.
#[derive(Debug, PartialEq)]
pub(super) enum Finding<'r> {
    /// Ranks made different calls: each call with the ranks that made it.
    Mismatch(Vec<(&'r str, Vec<usize>)>),
    /// Some ranks did not reach the call that the others are in.
    Behind { ahead: Vec<usize>, call: &'r str, behind: Vec<usize> },
    /// Every rank with a record is in the same operation.
    AllInSameOp { call: &'r str },
    /// No rank is in a collective.
    Idle,
}

impl<'r> Diagnosis<'r> {
    /// Compares the records of one communicator, ordered by rank.
    pub(super) fn of(records: &'r [Record]) -> Self {
        let ranks = records.first().map_or(0, |record| record.ranks);
        let present: HashSet<usize> = records.iter().map(|record| record.rank).collect();
        let absent = (0..ranks).filter(|rank| !present.contains(rank)).collect();
        // Ranks that made different calls also wait for each other, so the mismatch is the cause if
        // there is one.
        let finding = find_mismatch(records).or_else(|| find_stragglers(records)).unwrap_or(Finding::Idle);
        Self { records, missing: absent, finding }
    }

    /// Returns whether ranks disagree or wait.
    pub(super) fn is_problem(&self) -> bool {
        self.finding != Finding::Idle
    }
}

/// Finds the first sequence number with different calls on two ranks.
fn find_mismatch(records: &[Record]) -> Option<Finding<'_>> {
    // Records may hold any number of operations, so each operation is read only once.
    let mut calls = BTreeMap::<u64, Vec<(&str, Vec<usize>)>>::new();
    for record in records {
        let mut sequences = HashSet::new();
        for operation in record.operations.iter().filter(|operation| operation.of_all) {
            // A file may repeat a number, and a rank must not be listed twice for one call.
            if sequences.insert(operation.sequence) {
                add_call(calls.entry(operation.sequence).or_default(), &operation.call, record.rank);
            }
        }
    }
    calls.into_values().find(|calls| calls.len() > 1).map(Finding::Mismatch)
}

/// Adds the call of a rank to the different calls with one number.
fn add_call<'r>(calls: &mut Vec<(&'r str, Vec<usize>)>, call: &'r str, rank: usize) {
    match calls.iter_mut().find(|(other, _)| *other == call) {
        Some((_, ranks)) => ranks.push(rank),
        None => calls.push((call, vec![rank])),
    }
}

/// Finds the ranks behind the furthest rank, if any rank waits.
fn find_stragglers(records: &[Record]) -> Option<Finding<'_>> {
    let last = |record: &Record| record.last_collective().map(|operation| operation.sequence);
    let foremost = records.iter().max_by_key(|record| last(record))?;
    let Operation { sequence, call, .. } = foremost.last_collective()?;
    let (ahead, stragglers): (Vec<&Record>, Vec<&Record>) =
        records.iter().partition(|record| last(record) == Some(*sequence));
    let numbers = |records: Vec<&Record>| records.into_iter().map(|record| record.rank).collect::<Vec<_>>();
    // Ranks of a healthy job are often at different calls for a moment.
    if !records.iter().any(is_stuck) {
        return None;
    }
    Some(match stragglers.is_empty() {
        false => Finding::Behind { ahead: numbers(ahead), call, behind: numbers(stragglers) },
        true => Finding::AllInSameOp { call },
    })
}

/// Returns whether the last operation failed or has been running for unusually long.
fn is_stuck(record: &Record) -> bool {
    record.operations.last().is_some_and(|last| match last.state {
        State::Done => false,
        State::Failed => true,
        State::Started => last.started_ms.is_some_and(|started| record.now_ms - started > STUCK_AFTER_MS),
    })
}

impl fmt::Display for Diagnosis<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(Record { communicator, epoch, ranks, transport, .. }) = self.records.first() else {
            return Ok(());
        };
        writeln!(f, "communicator {communicator}, epoch {epoch}: {ranks} ranks over {transport}")?;
        if !self.missing.is_empty() {
            writeln!(
                f,
                "  nothing of {}: dead or stopped, elsewhere, or in no operation when the others failed",
                format_ranks(&self.missing)
            )?;
        }
        match &self.finding {
            Finding::Mismatch(calls) => {
                let say =
                    |(call, ranks): &(&str, Vec<usize>)| format!("{} called {call}", format_ranks(ranks));
                let calls: Vec<String> = calls.iter().map(say).collect();
                writeln!(f, "  first disagreement: {}", calls.join("; "))?;
            }
            Finding::Behind { ahead, call, behind } => {
                writeln!(
                    f,
                    "  behind: {} did not come to {call}, where {} wait",
                    format_ranks(behind),
                    format_ranks(ahead)
                )?;
            }
            Finding::AllInSameOp { call } => writeln!(f, "  all of these are in {call}")?,
            Finding::Idle => writeln!(f, "  nobody waits")?,
        }
        self.records.iter().take(RANKS_SHOWN_MAX).try_for_each(|record| write_rank(f, record))
    }
}

/// Writes the last operation of one rank.
fn write_rank(f: &mut fmt::Formatter<'_>, record: &Record) -> fmt::Result {
    write!(f, "  rank {} on {}: ", record.rank, record.host)?;
    match record.operations.last() {
        None => write!(f, "no operation yet")?,
        Some(Operation { call, state: State::Done, .. }) => write!(f, "done with {call}")?,
        Some(Operation { call, state, started_ms, peer, .. }) => {
            write!(f, "{} {call}", if *state == State::Failed { "failed in" } else { "in" })?;
            if let Some(started) = started_ms {
                write!(f, " for {:.1} s", (record.now_ms - started).max(0.0) / 1e3)?;
            }
            if let Some(peer) = peer {
                write!(f, ", waiting for rank {peer}")?;
            }
        }
    }
    if record.enqueued > 0 {
        write!(f, "; {} more to come", record.enqueued)?;
    }
    match &record.error {
        Some(error) => writeln!(f, "\n    {error}"),
        None => writeln!(f),
    }
}

/// Formats ranks as `rank 3`, or `ranks 0-2, 5`.
fn format_ranks(ranks: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == rank => *last = rank,
            _ => runs.push((rank, rank)),
        }
    }
    let run = |&(first, last): &(usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    let runs: Vec<String> = runs.iter().map(run).collect();
    format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, runs.join(", "))
}

const STUCK_AFTER_MS: f64 = 100.0;
/// Largest number of ranks that are shown one by one.
const RANKS_SHOWN_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the record of a rank in the last of these calls, each a number and a text.
    fn record(rank: usize, calls: &[(u64, &str)], state: State) -> Record {
        let operation = |(index, &(sequence, call)): (usize, &(u64, &str))| Operation {
            sequence,
            of_all: true,
            call: call.to_owned(),
            state: if index + 1 == calls.len() { state } else { State::Done },
            started_ms: Some(1.0),
            peer: Some(0),
        };
        Record {
            communicator: "c".to_owned(),
            epoch: 0,
            rank,
            ranks: 4,
            host: "here".to_owned(),
            transport: "shm".to_owned(),
            now_ms: 2001.0,
            enqueued: 0,
            error: None,
            operations: calls.iter().enumerate().map(operation).collect(),
        }
    }

    #[test]
    fn mismatch_names_first_differing_call_and_its_ranks() {
        let usual = [(6, "barrier #6"), (7, "all_reduce #7"), (8, "barrier #8")];
        let odd = [(6, "barrier #6"), (7, "broadcast #7"), (8, "scatter #8")];
        let records =
            [0, 1, 2].map(|rank| record(rank, if rank == 1 { &odd } else { &usual }, State::Failed));
        let diagnosis = Diagnosis::of(&records);
        let calls = vec![("all_reduce #7", vec![0, 2]), ("broadcast #7", vec![1])];
        assert_eq!((&diagnosis.finding, &diagnosis.missing), (&Finding::Mismatch(calls), &vec![3]));
        let text = diagnosis.to_string();
        assert!(text.contains("ranks 0, 2 called all_reduce #7; rank 1 called broadcast #7"), "{text}");
    }

    #[test]
    fn behind_names_ranks_and_awaited_call() {
        let calls = [(6, "barrier #6"), (7, "all_reduce #7")];
        let records = [0, 1, 2, 3].map(|rank| match rank {
            3 => record(rank, &calls[..1], State::Done),
            _ => record(rank, &calls, State::Started),
        });
        let diagnosis = Diagnosis::of(&records);
        let expected = Finding::Behind { ahead: vec![0, 1, 2], call: "all_reduce #7", behind: vec![3] };
        assert_eq!(diagnosis.finding, expected);
        let text = diagnosis.to_string();
        assert!(text.contains("rank 3 did not come to all_reduce #7, where ranks 0-2 wait"), "{text}");
        assert!(text.contains("rank 0 on here: in all_reduce #7 for 2.0 s, waiting for rank 0"), "{text}");
    }

    #[test]
    fn finding_done_is_idle_and_stuck_is_all_in_same_op() {
        let calls = [(7, "all_reduce #7")];
        let done = [0, 1, 2, 3].map(|rank| record(rank, &calls, State::Done));
        assert!(!Diagnosis::of(&done).is_problem());
        let stuck = [0, 1, 2].map(|rank| record(rank, &calls, State::Failed));
        assert_eq!(Diagnosis::of(&stuck).finding, Finding::AllInSameOp { call: "all_reduce #7" });
    }
}
