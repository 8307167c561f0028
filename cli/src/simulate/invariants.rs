//! Invariants of every simulated run.

use crate::simulate::history::{Action, CallRecord, Group, History, Outcome};
use crate::simulate::host::ABORT_REASON;
use crate::simulate::scenario::{CallMode, JOIN_TIMEOUT, Scenario, TIMEOUT};
use std::collections::BTreeMap;
use std::time::Duration;
use unisono::{Error, ErrorKind};
use unisono_transports::sim::{Fault, Observer, RankSet};

/// A violated invariant.
#[derive(Clone, Debug)]
pub(super) struct Violation {
    pub(super) invariant: Invariant,
    pub(super) what: String,
}

/// Property that every run has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Invariant {
    /// No result is wrong.
    CorrectResults,
    /// No call lasts beyond its deadline.
    Deadline,
    /// Every error names a rank that really failed.
    TruthfulErrors,
    /// Errors of different ranks, and of one rank at different times, agree.
    ConsistentErrors,
    /// All ranks that get a communicator from one shrink get the same members.
    SameMembers,
    /// The survivors continue if all deaths are announced.
    Recovery,
    /// The run ends.
    Terminates,
    /// Nothing panics.
    NoPanic,
}

/// A completed run.
pub(super) struct Checker<'r> {
    pub(super) scenario: &'r Scenario,
    pub(super) histories: &'r [History],
    pub(super) observer: &'r Observer,
}

impl Checker<'_> {
    /// Returns all violations, by host.
    pub(super) fn violations(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        if self.observer.now() >= self.scenario.fault_plan.max_time {
            found.push(Violation {
                invariant: Invariant::Terminates,
                what: "somebody waits for ever".to_owned(),
            });
        }
        for (host, history) in self.histories.iter().enumerate() {
            if history.panicked {
                found
                    .push(Violation { invariant: Invariant::NoPanic, what: format!("host {host} panicked") });
            }
            for (index, entry) in history.entries.iter().enumerate() {
                let failed =
                    self.check_call(host, entry).err().or_else(|| self.check_repeat(history, index).err());
                found.extend(failed.map(|(invariant, what)| Violation {
                    invariant,
                    what: format!("host {host}, {entry}: {what}"),
                }));
            }
        }
        found.extend(
            self.check_members().err().map(|what| Violation { invariant: Invariant::SameMembers, what }),
        );
        found
    }

    fn check_call(&self, host: usize, entry: &CallRecord) -> Result<(), (Invariant, String)> {
        let bound = self.max_duration(entry);
        let lasted = entry.ended.saturating_sub(entry.begun);
        if lasted > bound && !matches!(entry.outcome, Outcome::Died) {
            return Err((
                Invariant::Deadline,
                format!("it lasted {lasted:?}, and must not beyond {bound:?}"),
            ));
        }
        match &entry.outcome {
            Outcome::Wrong(_) if !self.has_mismatched_count(host, entry) => {
                Err((Invariant::CorrectResults, String::new()))
            }
            Outcome::Failed(error) => self.check_error(host, entry, error),
            _ => Ok(()),
        }
    }

    fn has_mismatched_count(&self, host: usize, entry: &CallRecord) -> bool {
        matches!(entry.action, Action::Step(number) if self.scenario.steps[number].mismatched_host == Some(host))
    }

    /// Returns the longest duration of a call in virtual time: a timeout for each fault, and a
    /// margin for polling.
    fn max_duration(&self, entry: &CallRecord) -> Duration {
        let faults = self.scenario.fault_plan.faults.len() as u32;
        let waits = if self.scenario.has_only_announced_deaths() {
            ANNOUNCED_MAX
        } else {
            (TIMEOUT + TIMEOUT / 4 + POLL_SLACK) * (faults + 1)
        };
        let meeting = match entry.action {
            Action::Step(_) => JOIN_TIMEOUT,
            Action::Shrink if self.scenario.has_only_announced_deaths() => REGROUP_MAX * faults,
            // Two keepalive timeouts, two reconnects and a join.
            Action::Shrink => 4 * REGROUP_MAX + JOIN_TIMEOUT + REGROUP_MAX,
            _ => Duration::ZERO,
        };
        let stalls = self.scenario.fault_plan.faults.iter().map(|fault| match fault {
            Fault::Stall { duration: lasts, .. } => *lasts,
            Fault::Partition { duration: lasts, .. } => lasts.unwrap_or_default(),
            Fault::Death { .. } => Duration::ZERO,
        });
        waits + meeting + stalls.sum::<Duration>()
    }

    /// Checks that a failed communicator reports the same error again.
    fn check_repeat(&self, history: &History, index: usize) -> Result<(), (Invariant, String)> {
        let entry = &history.entries[index];
        let previous = index.checked_sub(1).and_then(|previous| history.entries[previous].error());
        match (entry.action, &entry.outcome, previous) {
            (Action::Repeat, Outcome::Failed(error), Some(previous)) if error.kind() == previous.kind() => {
                Ok(())
            }
            (Action::Repeat, Outcome::Died, _) => Ok(()),
            (Action::Repeat, _, previous) => {
                Err((Invariant::ConsistentErrors, format!("before, it was {previous:?}")))
            }
            _ => Ok(()),
        }
    }

    fn check_error(&self, host: usize, entry: &CallRecord, error: &Error) -> Result<(), (Invariant, String)> {
        let hosts = &entry.group.hosts;
        let host_of = |rank: usize| hosts.get(rank).copied().unwrap_or(usize::MAX);
        // `check_repeat` compares it with the first error, which is judged where it occurred.
        if entry.action == Action::Repeat {
            return Ok(());
        }
        let untruthful = |what: &str| Err((Invariant::TruthfulErrors, what.to_owned()));
        let announced = self.scenario.has_only_announced_deaths();
        if announced && entry.action == Action::Shrink {
            return Err((Invariant::Recovery, "all that died were known to be dead".to_owned()));
        }
        match error.kind() {
            ErrorKind::PeerFailed { peer, .. } if self.is_dead(host_of(*peer), entry.ended) => Ok(()),
            ErrorKind::PeerFailed { peer, .. } if self.never_joined(host_of(*peer), entry) => Ok(()),
            // A rank that left is reported as failed if its goodbye was lost with the connection
            // and its listener is closed.
            ErrorKind::PeerFailed { peer, .. } if self.has_left(host_of(*peer), entry) => Ok(()),
            // This report is a claim of the kernel that the process has died, and a partition does
            // not excuse it.
            ErrorKind::PeerFailed { what, .. } if what.starts_with(EXITED_TEXT) => {
                untruthful("it has not died")
            }
            ErrorKind::PeerFailed { peer, .. } if self.was_partitioned(host_of(*peer), entry.ended) => Ok(()),
            ErrorKind::PeerFailed { .. } => untruthful("it was within reach"),
            ErrorKind::PeerFinalized { peer } if self.has_left(host_of(*peer), entry) => Ok(()),
            ErrorKind::PeerFinalized { .. } => untruthful("it has not left"),
            ErrorKind::Mismatch { rank, other, .. }
                if self.has_mismatched_count(host_of(*rank), entry)
                    || self.has_mismatched_count(host_of(*other), entry) =>
            {
                Ok(())
            }
            ErrorKind::Mismatch { rank, other, .. } => self
                .is_any_mismatched([host_of(*rank), host_of(*other)])
                .map_or_else(|| untruthful("all called the same"), |()| Ok(())),
            ErrorKind::Timeout { .. } if announced => {
                untruthful("nobody is silent without being known to be dead")
            }
            ErrorKind::Timeout { .. } if self.waited_for_fault(host, entry, self.scenario.ranks) => Ok(()),
            ErrorKind::Timeout { .. } => {
                untruthful("none of them was in trouble, or waited for somebody who was")
            }
            ErrorKind::Aborted { by, reason, .. } => self.check_aborted(host_of(*by), entry, reason),
            ErrorKind::Excluded { .. } if self.is_affected(host, host, entry.ended) => Ok(()),
            ErrorKind::Bootstrap(_) if self.is_anyone_affected(entry.ended) || self.has_failed(entry) => {
                Ok(())
            }
            _ => untruthful("nothing of that kind has happened"),
        }
    }

    /// Checks that the rank named by an abort has aborted, and for a reason of its own.
    fn check_aborted(
        &self,
        aborter: usize,
        entry: &CallRecord,
        reason: &str,
    ) -> Result<(), (Invariant, String)> {
        let Some(history) = self.histories.get(aborter) else {
            return Err((Invariant::TruthfulErrors, "there is no such rank".to_owned()));
        };
        let entries = || {
            history.entries.iter().filter(|other| other.group == entry.group && other.begun <= entry.ended)
        };
        let shrinks =
            entries().any(|other| other.action == Action::Shrink) && reason.starts_with(SHRINK_TEXT);
        // A rank whose call fails tells the others the text of its error as the reason.
        let says_so =
            entries().filter_map(CallRecord::error).any(|error| announced_text(error).starts_with(reason));
        let planned = self.scenario.steps.iter().any(|step| step.mode == CallMode::Abort { by: aborter });
        match shrinks
            || says_so && !reason.starts_with(SHRINK_TEXT) && !reason.is_empty()
            || planned && reason == ABORT_REASON
        {
            true => Ok(()),
            false => Err((Invariant::ConsistentErrors, format!("host {aborter} knows nothing of that"))),
        }
    }

    /// Returns whether one of the hosts has made a mismatched call at some time.
    fn is_any_mismatched(&self, hosts: [usize; 2]) -> Option<()> {
        let odd = |host: &usize| self.scenario.steps.iter().any(|step| step.mismatched_host == Some(*host));
        hosts.iter().any(odd).then_some(())
    }

    fn is_dead(&self, host: usize, now: Duration) -> bool {
        host < self.scenario.ranks && self.observer.died_at(host).is_some_and(|died| died <= now)
    }

    fn has_left(&self, host: usize, entry: &CallRecord) -> bool {
        let Some(history) = self.histories.get(host) else { return false };
        let of_this = |other: &&CallRecord| other.group == entry.group && other.ended <= entry.ended;
        history.entries.iter().filter(of_this).any(|other| {
            matches!(
                (other.action, &other.outcome),
                (Action::Leave, _) | (Action::Shrink, Outcome::Shrunk(_) | Outcome::Failed(_))
            )
        })
    }

    /// Returns whether a rank failed in the communicator of this call, and so missed a later
    /// meeting.
    fn has_failed(&self, entry: &CallRecord) -> bool {
        let mut others = self.histories.iter().flat_map(|history| &history.entries);
        others.any(|other| {
            let failed = matches!(other.error().map(Error::kind), Some(kind) if !matches!(kind, ErrorKind::Bootstrap(_)));
            failed && other.group == entry.group && other.begun <= entry.ended
        })
    }

    /// Returns whether `host` missed the meeting that created the communicator of this call.
    fn never_joined(&self, host: usize, entry: &CallRecord) -> bool {
        let Some(history) = self.histories.get(host) else { return false };
        let came = history.entries.iter().any(|other| other.group == entry.group);
        !came && self.is_anyone_affected(entry.ended)
    }

    /// Returns whether the timed-out call of `host` waited for an affected rank, directly or
    /// through other waiting ranks.
    fn waited_for_fault(&self, host: usize, entry: &CallRecord, depth: usize) -> bool {
        let Some(ErrorKind::Timeout { waiting_for, .. }) = entry.error().map(Error::kind) else {
            // Other errors name their cause themselves.
            return true;
        };
        let mut others = waiting_for.iter().filter_map(|(rank, _)| entry.group.hosts.get(*rank));
        others.any(|&other| {
            let waits = |call: &&CallRecord| {
                call.begun < entry.ended && entry.begun < call.ended && call.error().is_some()
            };
            let mut calls = self.histories[other].entries.iter().filter(waits);
            // Ranks can wait for each other in a circle, so the depth is limited.
            self.is_affected(host, other, entry.ended)
                || depth > 0 && calls.any(|call| self.waited_for_fault(other, call, depth - 1))
        })
    }

    /// Returns whether a fault keeps, or kept, `other` from answering `host`.
    fn is_affected(&self, host: usize, other: usize, now: Duration) -> bool {
        let hits = |fault: &Fault| match *fault {
            Fault::Stall { rank, from, .. } => (rank == other || rank == host) && from <= now,
            Fault::Partition { from, to, at, .. } => {
                at <= now
                    && [from, to].iter().any(|ranks: &RankSet| ranks.contains(other) || ranks.contains(host))
            }
            Fault::Death { .. } => self.is_dead(other, now),
        };
        self.scenario.fault_plan.faults.iter().any(hits)
    }

    /// Returns whether connections with `host` may have been given up.
    fn was_partitioned(&self, host: usize, now: Duration) -> bool {
        let silence = self.scenario.fault_plan.keepalive_timeout.unwrap_or(Duration::MAX);
        let cuts = (0..self.scenario.ranks)
            .flat_map(|other| self.scenario.fault_plan.partitions_between(host, other));
        cuts.map(|(begun, _)| begun).any(|begun| begun.saturating_add(silence) <= now)
    }

    fn is_anyone_affected(&self, now: Duration) -> bool {
        (0..self.scenario.ranks).any(|host| self.is_affected(host, host, now))
    }

    /// Checks that all successors of one communicator have the same members.
    ///
    /// A partition in the last moment makes that impossible; then at most one of the different
    /// successors may do work.
    fn check_members(&self) -> Result<(), String> {
        let mut successors: BTreeMap<&str, (usize, &Group)> = BTreeMap::new();
        for (host, history) in self.histories.iter().enumerate() {
            for entry in &history.entries {
                let Outcome::Shrunk(group) = &entry.outcome else { continue };
                if !self.scenario.has_only_announced_deaths() && !self.is_active(group) {
                    continue;
                }
                let (first, successor) = *successors.entry(&entry.group.id).or_insert((host, group));
                if *successor != **group {
                    return Err(format!(
                        "host {first} goes on with {successor:?}, host {host} with {group:?}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Returns whether the group has completed an operation.
    fn is_active(&self, group: &Group) -> bool {
        let mut entries = self.histories.iter().flat_map(|history| &history.entries);
        entries.any(|entry| {
            *entry.group == *group
                && entry.action == Action::Resume
                && matches!(entry.outcome, Outcome::Correct)
        })
    }
}

/// Largest delay of a poll.
const POLL_SLACK: Duration = Duration::from_millis(400);
/// Time within which every rank knows of an announced death.
const ANNOUNCED_MAX: Duration = Duration::from_millis(1500);
/// Longest duration of a meeting that a rank misses.
const REGROUP_MAX: Duration = Duration::from_millis(1200);
/// Abort reason that the others report when the communicator is shrunk.
const SHRINK_TEXT: &str = "the communicator is being shrunk";

/// Beginning of the report that a process has exited, in contrast to a reset connection.
const EXITED_TEXT: &str = "its process ended";

/// Returns the text of an error as other ranks receive it; it may be truncated.
fn announced_text(error: &Error) -> String {
    match (error.kind(), error.op()) {
        (kind @ ErrorKind::Timeout { .. }, Some(call)) => format!("in {call}, {kind}"),
        (kind, _) => kind.to_string(),
    }
}
