//! What must be true of every simulated run.

use super::history::{Act, Company, Entry, History, Outcome};
use super::host::REASON;
use super::scenario::{JOIN_TIMEOUT, Manner, Scenario, TIMEOUT};
use std::collections::BTreeMap;
use std::time::Duration;
use unisono::{Error, ErrorKind};
use unisono_transports::sim::{Fault, Observer, Ranks};

/// What is not as it must be.
#[derive(Clone, Debug)]
pub(super) struct Violation {
    pub(super) invariant: Invariant,
    pub(super) what: String,
}

/// What must be so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Invariant {
    /// No result is wrong.
    Right,
    /// No call lasts beyond its deadline.
    Deadline,
    /// Every error names a party that really failed.
    Truth,
    /// Errors of different ranks, and of one rank at different times, tell one story.
    Story,
    /// All that have a communicator after a shrink have the same one.
    Members,
    /// Where deaths are told, those that are left go on.
    Recovery,
    /// The run ends.
    End,
    /// Nothing panics.
    Calm,
}

/// A run that is over.
pub(super) struct Judge<'r> {
    pub(super) scenario: &'r Scenario,
    pub(super) histories: &'r [History],
    pub(super) observer: &'r Observer,
}

impl Judge<'_> {
    /// All that is wrong, by host.
    pub(super) fn violations(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        if self.observer.now() >= self.scenario.weather.ends {
            found.push(Violation { invariant: Invariant::End, what: "somebody waits for ever".to_owned() });
        }
        for (host, history) in self.histories.iter().enumerate() {
            if history.panicked {
                found.push(Violation { invariant: Invariant::Calm, what: format!("host {host} panicked") });
            }
            for (index, entry) in history.entries.iter().enumerate() {
                let failed = self.entry(host, entry).err().or_else(|| self.again(history, index).err());
                found.extend(failed.map(|(invariant, what)| Violation {
                    invariant,
                    what: format!("host {host}, {entry}: {what}"),
                }));
            }
        }
        found.extend(self.members().err().map(|what| Violation { invariant: Invariant::Members, what }));
        found
    }

    fn entry(&self, host: usize, entry: &Entry) -> Result<(), (Invariant, String)> {
        let bound = self.bound(entry);
        let lasted = entry.ended.saturating_sub(entry.begun);
        if lasted > bound && !matches!(entry.outcome, Outcome::Died) {
            return Err((
                Invariant::Deadline,
                format!("it lasted {lasted:?}, and must not beyond {bound:?}"),
            ));
        }
        match &entry.outcome {
            Outcome::Wrong(_) if !self.is_odd(host, entry) => Err((Invariant::Right, String::new())),
            Outcome::Failed(error) => self.error(host, entry, error),
            _ => Ok(()),
        }
    }

    fn is_odd(&self, host: usize, entry: &Entry) -> bool {
        matches!(entry.act, Act::Step(number) if self.scenario.steps[number].odd == Some(host))
    }

    /// How long a call may last in virtual time: patience for each fault, and what looking around seldom adds.
    fn bound(&self, entry: &Entry) -> Duration {
        let faults = self.scenario.weather.faults.len() as u32;
        let waits =
            if self.scenario.is_told() { PROMPT } else { (TIMEOUT + TIMEOUT / 4 + SLACK) * (faults + 1) };
        let meeting = match entry.act {
            Act::Step(_) => JOIN_TIMEOUT,
            Act::Shrink if self.scenario.is_told() => MEETING_TIME * faults,
            // Twice the silence that is borne, and a meeting.
            Act::Shrink => 4 * MEETING_TIME + JOIN_TIMEOUT + MEETING_TIME,
            _ => Duration::ZERO,
        };
        let stalls = self.scenario.weather.faults.iter().map(|fault| match fault {
            Fault::Stall { lasts, .. } => *lasts,
            Fault::Cut { lasts, .. } => lasts.unwrap_or_default(),
            Fault::Death { .. } => Duration::ZERO,
        });
        waits + meeting + stalls.sum::<Duration>()
    }

    /// A communicator that has failed says the same again.
    fn again(&self, history: &History, index: usize) -> Result<(), (Invariant, String)> {
        let entry = &history.entries[index];
        let before = index.checked_sub(1).and_then(|before| history.entries[before].error());
        match (entry.act, &entry.outcome, before) {
            (Act::Again, Outcome::Failed(error), Some(before)) if error.kind() == before.kind() => Ok(()),
            (Act::Again, Outcome::Died, _) => Ok(()),
            (Act::Again, _, before) => Err((Invariant::Story, format!("before, it was {before:?}"))),
            _ => Ok(()),
        }
    }

    fn error(&self, host: usize, entry: &Entry, error: &Error) -> Result<(), (Invariant, String)> {
        let hosts = &entry.company.hosts;
        let of = |rank: usize| hosts.get(rank).copied().unwrap_or(usize::MAX);
        if entry.act == Act::Again {
            return Ok(());
        }
        let lie = |what: &str| Err((Invariant::Truth, what.to_owned()));
        let told = self.scenario.is_told();
        if told && entry.act == Act::Shrink {
            return Err((Invariant::Recovery, "all that died were known to be dead".to_owned()));
        }
        match error.kind() {
            ErrorKind::PeerLost { peer, .. } if self.is_dead(of(*peer), entry.ended) => Ok(()),
            ErrorKind::PeerLost { peer, .. } if self.never_came(of(*peer), entry) => Ok(()),
            // Whose last words were lost with the connection; nobody listens at the door of such.
            ErrorKind::PeerLost { peer, .. } if self.has_left(of(*peer), entry) => Ok(()),
            ErrorKind::PeerLost { what, .. } if what.starts_with(ENDED) => lie("it has not died"),
            ErrorKind::PeerLost { peer, .. } if self.was_cut_off(of(*peer), entry.ended) => Ok(()),
            ErrorKind::PeerLost { .. } => lie("it was within reach"),
            ErrorKind::PeerLeft { peer } if self.has_left(of(*peer), entry) => Ok(()),
            ErrorKind::PeerLeft { .. } => lie("it has not left"),
            ErrorKind::Mismatch { rank, other, .. }
                if self.is_odd(of(*rank), entry) || self.is_odd(of(*other), entry) =>
            {
                Ok(())
            }
            ErrorKind::Mismatch { rank, other, .. } => {
                self.was_odd([of(*rank), of(*other)]).map_or_else(|| lie("all called the same"), |()| Ok(()))
            }
            ErrorKind::Timeout { .. } if told => lie("nobody is silent without being known to be dead"),
            ErrorKind::Timeout { .. } if self.leads_to_trouble(host, entry, self.scenario.ranks) => Ok(()),
            ErrorKind::Timeout { .. } => lie("none of them was in trouble, or waited for somebody who was"),
            ErrorKind::Aborted { by, reason } => self.aborted(of(*by), entry, reason),
            ErrorKind::LeftBehind { .. } if self.is_troubled(host, host, entry.ended) => Ok(()),
            ErrorKind::Rendezvous(_) if self.is_anybody_troubled(entry.ended) || self.has_failed(entry) => {
                Ok(())
            }
            _ => lie("nothing of that kind has happened"),
        }
    }

    /// Whoever is said to have ended a communicator has done so, and for a reason of its own.
    fn aborted(&self, by: usize, entry: &Entry, reason: &str) -> Result<(), (Invariant, String)> {
        let Some(history) = self.histories.get(by) else {
            return Err((Invariant::Truth, "there is no such rank".to_owned()));
        };
        let own = || {
            history
                .entries
                .iter()
                .filter(|other| other.company == entry.company && other.begun <= entry.ended)
        };
        let shrinks = own().any(|other| other.act == Act::Shrink) && reason == SHRINKS;
        let says_so = own().filter_map(Entry::error).any(|error| told(error).starts_with(reason));
        let planned = self.scenario.steps.iter().any(|step| step.manner == Manner::Aborted { by });
        match shrinks || says_so && reason != SHRINKS && !reason.is_empty() || planned && reason == REASON {
            true => Ok(()),
            false => Err((Invariant::Story, format!("host {by} knows nothing of that"))),
        }
    }

    /// One of these has called something else, some time.
    fn was_odd(&self, hosts: [usize; 2]) -> Option<()> {
        let odd = |host: &usize| self.scenario.steps.iter().any(|step| step.odd == Some(*host));
        hosts.iter().any(odd).then_some(())
    }

    fn is_dead(&self, host: usize, now: Duration) -> bool {
        host < self.scenario.ranks && self.observer.died(host).is_some_and(|died| died <= now)
    }

    fn has_left(&self, host: usize, entry: &Entry) -> bool {
        let Some(history) = self.histories.get(host) else { return false };
        let of_this = |other: &&Entry| other.company == entry.company && other.ended <= entry.ended;
        history.entries.iter().filter(of_this).any(|other| {
            matches!(
                (other.act, &other.outcome),
                (Act::Leave, _) | (Act::Shrink, Outcome::Shrunk(_) | Outcome::Failed(_))
            )
        })
    }

    /// Whether a rank failed in the communicator of this call, and so did not come to a meeting for another one.
    fn has_failed(&self, entry: &Entry) -> bool {
        let mut others = self.histories.iter().flat_map(|history| &history.entries);
        others.any(|other| {
            let failed = matches!(other.error().map(Error::kind), Some(kind) if !matches!(kind, ErrorKind::Rendezvous(_)));
            failed && other.company == entry.company && other.begun <= entry.ended
        })
    }

    /// Whether `host` heard nothing of the meeting that made a communicator of it and others, and gave up.
    fn never_came(&self, host: usize, entry: &Entry) -> bool {
        let Some(history) = self.histories.get(host) else { return false };
        let came = history.entries.iter().any(|other| other.company == entry.company);
        !came && self.is_anybody_troubled(entry.ended)
    }

    /// Whether a call that `host` gave up waited for somebody in trouble, or for somebody who waited for such.
    fn leads_to_trouble(&self, host: usize, entry: &Entry, depth: usize) -> bool {
        let Some(ErrorKind::Timeout { waiting_for, .. }) = entry.error().map(Error::kind) else {
            // What else there is names its cause itself.
            return true;
        };
        let mut others = waiting_for.iter().filter_map(|(rank, _)| entry.company.hosts.get(*rank));
        others.any(|&other| {
            let waits = |call: &&Entry| {
                call.begun < entry.ended && entry.begun < call.ended && call.error().is_some()
            };
            let mut calls = self.histories[other].entries.iter().filter(waits);
            self.is_troubled(host, other, entry.ended)
                || depth > 0 && calls.any(|call| self.leads_to_trouble(other, call, depth - 1))
        })
    }

    /// Whether something keeps `other` from answering `host`, or has done so.
    fn is_troubled(&self, host: usize, other: usize, now: Duration) -> bool {
        let hits = |fault: &Fault| match *fault {
            Fault::Stall { rank, from, .. } => (rank == other || rank == host) && from <= now,
            Fault::Cut { from, to, at, .. } => {
                at <= now && [from, to].iter().any(|ranks: &Ranks| ranks.has(other) || ranks.has(host))
            }
            Fault::Death { .. } => self.is_dead(other, now),
        };
        self.scenario.weather.faults.iter().any(hits)
    }

    /// Whether connections with `host` may have been given up.
    fn was_cut_off(&self, host: usize, now: Duration) -> bool {
        let silence = self.scenario.weather.silence.unwrap_or(Duration::MAX);
        let cuts = (0..self.scenario.ranks).flat_map(|other| self.scenario.weather.cuts_between(host, other));
        cuts.map(|(at, _)| at).any(|at| at.saturating_add(silence) <= now)
    }

    fn is_anybody_troubled(&self, now: Duration) -> bool {
        (0..self.scenario.ranks).any(|host| self.is_troubled(host, host, now))
    }

    /// Of those that shrank one communicator, all that have another one have the same. Where somebody is cut off in the
    /// last moment this cannot be; then at most one of those others works.
    fn members(&self) -> Result<(), String> {
        let mut heirs: BTreeMap<&str, (usize, &Company)> = BTreeMap::new();
        for (host, history) in self.histories.iter().enumerate() {
            for entry in &history.entries {
                let Outcome::Shrunk(company) = &entry.outcome else { continue };
                if !self.scenario.is_told() && !self.works(company) {
                    continue;
                }
                let (first, heir) = *heirs.entry(&entry.company.met).or_insert((host, company));
                if *heir != **company {
                    return Err(format!("host {first} goes on with {heir:?}, host {host} with {company:?}"));
                }
            }
        }
        Ok(())
    }

    /// Whether anything was done in it.
    fn works(&self, company: &Company) -> bool {
        let mut entries = self.histories.iter().flat_map(|history| &history.entries);
        entries.any(|entry| {
            *entry.company == *company && entry.act == Act::Resume && matches!(entry.outcome, Outcome::Right)
        })
    }
}

/// How late a look around may come.
const SLACK: Duration = Duration::from_millis(400);
/// Within this time everybody knows of what is told.
const PROMPT: Duration = Duration::from_millis(1500);
/// What a meeting takes at most that somebody does not come to.
const MEETING_TIME: Duration = Duration::from_millis(1200);
/// What the others of a communicator hear that is shrunk.
const SHRINKS: &str = "the communicator is being shrunk";

/// How it is told that a process has ended, and not only its connection.
const ENDED: &str = "its process ended";

/// What others are told of an error, which may be cut short.
fn told(error: &Error) -> String {
    match (error.kind(), error.call()) {
        (kind @ ErrorKind::Timeout { .. }, Some(call)) => format!("in {call}, {kind}"),
        (kind, _) => kind.to_string(),
    }
}
