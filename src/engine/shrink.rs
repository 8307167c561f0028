//! The survivors of a communicator count each other and meet again.

use super::Engine;
use super::notes::{COUNTED_MAX, Note};
use super::roll::{Company, LeftBehind, Roll};
use super::watch::SHRINKS;
use crate::error::{Error, ErrorKind, Result};
use crate::schedule::Rank;
use std::time::Duration;
use unisono_transports::{Door, Event, Mesh};

/// How those that are left meet.
pub(crate) trait Assembly {
    /// A place where this rank can hold a meeting, in a few letters.
    fn place(&mut self) -> Result<String>;
    /// Meets the others of `company`.
    fn meet(&mut self, company: &Company, patience: Duration) -> Result<Mesh>;
}

/// One rank's part in the count.
struct Census<'e> {
    engine: &'e mut Engine,
    roll: Roll,
    begun: Duration,
    /// When the others were told last.
    told: Option<Duration>,
    /// Looks around since something was heard.
    rounds: u32,
}

/// What is to be done when waiting is over.
enum Turn {
    Meet(Company),
    Go,
}

impl Engine {
    /// Ends this communicator, and gives a mesh of those that are left; and this rank's door here, where some are left
    /// behind that may live, and have to find out that others went on.
    pub(crate) fn shrink(&mut self, assembly: &mut dyn Assembly) -> Result<(Mesh, Option<Door>)> {
        self.revoke()?;
        let roll = Roll::new(self.mesh.rank, self.watch.gone(), Duration::ZERO);
        let begun = self.mesh.pace.now();
        let mut census = Census { engine: self, roll, begun, told: None, rounds: 0 };
        let mut held = None;
        let mut reason = None;
        loop {
            match census.wait(assembly).map_err(|error| why(error, reason.take()))? {
                Turn::Go => break,
                Turn::Meet(company) => {
                    census.roll.convene();
                    drop(held.take());
                    match assembly.meet(&company, meeting_time(company.ranks)) {
                        Ok(mesh) => {
                            census.roll.meet();
                            held = Some(mesh);
                        }
                        Err(error) => {
                            tracing::info!(%error, attempt = company.attempt, "counting again");
                            census.roll.miss();
                            reason = Some(error);
                            census.look_at_the_clock().map_err(|error| why(error, reason.take()))?;
                        }
                    }
                    census.told = None;
                }
            }
        }
        census.roll.decide();
        census.tell();
        let leaves_some = census.roll.left_out().next().is_some();
        let mesh = held.ok_or_else(|| {
            Error::new(ErrorKind::Bug("a rank goes with ranks that it has not met".to_owned()))
        })?;
        Ok((mesh, self.mesh.control.door().filter(|_| leaves_some)))
    }

    /// From now on, this communicator is over for all ranks.
    fn revoke(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.shrunk, true) {
            return Err(Error::misuse("a communicator can be shrunk once; shrink what came of it"));
        }
        if self.mesh.ranks > COUNTED_MAX {
            let what = format!("more than {COUNTED_MAX} ranks cannot be shrunk");
            return Err(Error::new(ErrorKind::Unavailable(what)));
        }
        match &self.poison {
            Some(error) if matches!(error.kind(), ErrorKind::LeftBehind { .. }) => Err(error.clone()),
            Some(_) => Ok(()),
            // That is no failure: there is nothing to leave a record of.
            None => {
                self.close(self.aborted(SHRINKS));
                Ok(())
            }
        }
    }

    /// How long a rank may say nothing: longer than a meeting takes.
    fn silence_max(&self) -> Duration {
        self.config.timeout.max(2 * meeting_time(self.mesh.ranks))
    }
}

impl Census<'_> {
    /// Talks to the others until there is something to do.
    fn wait(&mut self, assembly: &mut dyn Assembly) -> Result<Turn> {
        loop {
            if self.roll.needs_place() {
                self.roll.set_place(assembly.place()?);
                self.told = None;
            }
            let now = self.engine.mesh.pace.now();
            if self.told.is_none_or(|told| now > told + TELL_EVERY) {
                self.tell();
            }
            if self.listen()? || self.roll.is_decided() {
                return Ok(Turn::Go);
            }
            if let Some(company) = self.roll.company() {
                // The others wait for this rank to say the same.
                self.tell();
                return Ok(Turn::Meet(company));
            }
            if self.roll.needs_place() {
                // Those before this rank have just ended: it is not late before it has tried.
                continue;
            }
            self.look_at_the_clock()?;
            self.rounds = self.rounds.saturating_add(1).max(ROUNDS_CALM);
            self.engine.mesh.pace.pause(self.rounds);
        }
    }

    fn tell(&mut self) {
        self.engine.mesh.control.post(&Note::Count(self.roll.own().clone()).encode());
        self.told = Some(self.engine.mesh.pace.now());
    }

    /// How long this count has taken.
    fn elapsed(&self) -> Duration {
        self.engine.mesh.pace.now() - self.begun
    }

    /// Hears what has come; stops when it is decided, as what comes then is no more of this count.
    fn listen(&mut self) -> Result<bool> {
        let before = self.roll.own().clone();
        while let Some(event) = self.engine.mesh.control.poll() {
            self.rounds = 0;
            self.hear(event)?;
            if self.roll.is_decided() {
                return Ok(true);
            }
        }
        if *self.roll.own() != before {
            self.told = None;
        }
        Ok(false)
    }

    fn hear(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Closed { from } => self.roll.lose(from),
            // It may be this rank that is cut off: whoever is only silent is left behind by the many.
            Event::Silent { .. } | Event::Cut { .. } => {}
            Event::Note { from, bytes } => match Note::decode(&bytes) {
                Some(Note::Goodbye) => self.roll.lose(from),
                Some(Note::Count(count)) => {
                    let heard = self.roll.hear(from, count, self.elapsed());
                    heard.map_err(|LeftBehind(by)| self.left_behind(by))?;
                }
                Some(Note::Waiting(_) | Note::Elsewhere(_) | Note::Failed { .. }) | None => {}
            },
        }
        Ok(())
    }

    fn left_behind(&mut self, by: Rank) -> Error {
        let kind = ErrorKind::LeftBehind { by };
        let error = Error::new(kind).at(self.engine.mesh.rank, &self.engine.config.host, None);
        self.engine.poison = Some(error.clone());
        error
    }

    /// Counts those out who say nothing, and fails when it has taken too long.
    fn look_at_the_clock(&mut self) -> Result<()> {
        let (now, patience) = (self.elapsed(), self.engine.silence_max());
        self.roll.believe(now);
        let silent = self.roll.silent(now, patience);
        let timed_out = |waiting_for: &[Rank]| {
            let waiting_for = waiting_for.iter().map(|&rank| (rank, None)).collect();
            Error::new(ErrorKind::Timeout { waiting_for, elsewhere: Vec::new(), after: now })
        };
        let missing: Vec<Rank> = silent.iter().copied().chain(self.roll.left_out()).collect();
        if !missing.is_empty() && !self.roll.is_majority_without(&silent) {
            return Err(timed_out(&missing));
        }
        silent.iter().for_each(|&peer| self.roll.leave_out(peer));
        if now > 2 * patience + self.engine.config.join_timeout {
            return Err(timed_out(&self.roll.others().collect::<Vec<_>>()));
        }
        Ok(())
    }
}

/// What kept ranks from meeting says more than that it took too long.
fn why(error: Error, reason: Option<Error>) -> Error {
    match error.kind() {
        ErrorKind::Timeout { .. } => reason.unwrap_or(error),
        _ => error,
    }
}

/// How long so many ranks may take to meet: some tens of times what it takes. Only who waits for a rank that
/// has died between the count and the meeting waits so long.
fn meeting_time(ranks: usize) -> Duration {
    MEETING_TIME + MEETING_TIME_EACH * ranks as u32
}

/// How often a rank repeats what it has to say: notes may be lost.
const TELL_EVERY: Duration = Duration::from_millis(50);
/// Nobody spins for an answer that takes a while.
const ROUNDS_CALM: u32 = 1 << 20;
const MEETING_TIME: Duration = Duration::from_secs(1);
const MEETING_TIME_EACH: Duration = Duration::from_millis(10);
