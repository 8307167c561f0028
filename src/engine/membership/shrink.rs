//! The survivors of a communicator count each other and meet again.

use crate::engine::Engine;
use crate::engine::membership::agreement::{Agreement, Excluded, Membership};
use crate::engine::watchdog::SHRINK_REASON;
use crate::engine::watchdog::control_msg::{ControlMsg, VIEW_RANKS_MAX};
use crate::error::{Error, ErrorKind, Result};
use crate::schedule::Rank;
use std::time::Duration;
use unisono_transports::{Fabric, ListenerGuard, PeerEvent};

/// How those that are left meet.
pub(crate) trait Regroup {
    /// A place where this rank can hold a meeting, in a few letters.
    fn endpoint(&mut self) -> Result<String>;
    /// Meets the others of `membership`.
    fn connect(&mut self, membership: &Membership, patience: Duration) -> Result<Fabric>;
}

/// One rank's part in the count.
struct ShrinkDriver<'e> {
    engine: &'e mut Engine,
    agreement: Agreement,
    started: Duration,
    /// When the others were told last.
    last_sent: Option<Duration>,
    /// Looks around since something was heard.
    rounds: u32,
}

/// What is to be done when waiting is over.
enum Next {
    Connect(Membership),
    Commit,
}

impl Engine {
    /// Ends this communicator, and gives a fabric of those that are left; and this rank's door here, where some are left
    /// behind that may live, and have to find out that others went on.
    pub(crate) fn shrink(&mut self, assembly: &mut dyn Regroup) -> Result<(Fabric, Option<ListenerGuard>)> {
        self.revoke()?;
        let agreement = Agreement::new(self.fabric.rank, self.watchdog.failed_ranks(), Duration::ZERO);
        let begun = self.fabric.wait.now();
        let mut driver = ShrinkDriver { engine: self, agreement, started: begun, last_sent: None, rounds: 0 };
        let mut held = None;
        let mut reason = None;
        loop {
            match driver.negotiate(assembly).map_err(|error| prefer_cause(error, reason.take()))? {
                Next::Commit => break,
                Next::Connect(membership) => {
                    driver.agreement.begin_connect();
                    drop(held.take());
                    match assembly.connect(&membership, connect_timeout(membership.ranks)) {
                        Ok(fabric) => {
                            driver.agreement.on_connected();
                            held = Some(fabric);
                        }
                        Err(error) => {
                            tracing::info!(%error, attempt = membership.attempt, "membership changed, retrying agreement");
                            driver.agreement.on_connect_failed();
                            reason = Some(error);
                            driver.check_deadlines().map_err(|error| prefer_cause(error, reason.take()))?;
                        }
                    }
                    driver.last_sent = None;
                }
            }
        }
        driver.agreement.commit();
        driver.broadcast_view();
        let leaves_some = driver.agreement.excluded().next().is_some();
        let fabric = held.ok_or_else(|| {
            Error::new(ErrorKind::Bug("a rank committed a membership that it is not connected to".to_owned()))
        })?;
        Ok((fabric, self.fabric.control.listener_guard().filter(|_| leaves_some)))
    }

    /// From now on, this communicator is over for all ranks.
    fn revoke(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.shrunk, true) {
            return Err(Error::invalid_usage("a communicator can be shrunk once; shrink the new one"));
        }
        if self.fabric.ranks > VIEW_RANKS_MAX {
            let what = format!("more than {VIEW_RANKS_MAX} ranks cannot be shrunk");
            return Err(Error::new(ErrorKind::Unsupported(what)));
        }
        match &self.poisoned {
            Some(error) if matches!(error.kind(), ErrorKind::Excluded { .. }) => Err(error.clone()),
            Some(_) => Ok(()),
            // That is no failure: there is nothing to leave a record of.
            None => {
                self.poison(self.abort_error(SHRINK_REASON));
                Ok(())
            }
        }
    }

    /// How long a rank may say nothing: longer than a meeting takes.
    fn unresponsive_timeout(&self) -> Duration {
        self.config.timeout.max(2 * connect_timeout(self.fabric.ranks))
    }
}

impl ShrinkDriver<'_> {
    /// Talks to the others until there is something to do.
    fn negotiate(&mut self, assembly: &mut dyn Regroup) -> Result<Next> {
        loop {
            if self.agreement.needs_endpoint() {
                self.agreement.set_endpoint(assembly.endpoint()?);
                self.last_sent = None;
            }
            let now = self.engine.fabric.wait.now();
            if self.last_sent.is_none_or(|told| now > told + RESEND_INTERVAL) {
                self.broadcast_view();
            }
            if self.poll_events()? || self.agreement.is_committed() {
                return Ok(Next::Commit);
            }
            if let Some(membership) = self.agreement.membership() {
                // The others wait for this rank to say the same.
                self.broadcast_view();
                return Ok(Next::Connect(membership));
            }
            if self.agreement.needs_endpoint() {
                // Those before this rank have just ended: it is not late before it has tried.
                continue;
            }
            self.check_deadlines()?;
            self.rounds = self.rounds.saturating_add(1).max(ROUNDS_SLEEPING);
            self.engine.fabric.wait.pause(self.rounds);
        }
    }

    fn broadcast_view(&mut self) {
        self.engine.fabric.control.post(&ControlMsg::Membership(self.agreement.own().clone()).encode());
        self.last_sent = Some(self.engine.fabric.wait.now());
    }

    /// How long this count has taken.
    fn elapsed(&self) -> Duration {
        self.engine.fabric.wait.now() - self.started
    }

    /// Hears what has come; stops when it is decided, as what comes then is no more of this count.
    fn poll_events(&mut self) -> Result<bool> {
        let before = self.agreement.own().clone();
        while let Some(event) = self.engine.fabric.control.poll() {
            self.rounds = 0;
            self.on_event(event)?;
            if self.agreement.is_committed() {
                return Ok(true);
            }
        }
        if *self.agreement.own() != before {
            self.last_sent = None;
        }
        Ok(false)
    }

    fn on_event(&mut self, event: PeerEvent) -> Result<()> {
        match event {
            PeerEvent::Exited { from } => self.agreement.on_failure(from),
            // It may be this rank that is cut off: whoever is only silent is left behind by the many.
            PeerEvent::Unreachable { .. } | PeerEvent::Reset { .. } => {}
            PeerEvent::Message { from, bytes } => match ControlMsg::decode(&bytes) {
                Some(ControlMsg::Finalized) => self.agreement.on_failure(from),
                Some(ControlMsg::Membership(count)) => {
                    let heard = self.agreement.on_view(from, count, self.elapsed());
                    heard.map_err(|Excluded(by)| self.excluded(by))?;
                }
                Some(
                    ControlMsg::Waiting(_) | ControlMsg::WaitingElsewhere(_) | ControlMsg::Failed { .. },
                )
                | None => {}
            },
        }
        Ok(())
    }

    fn excluded(&mut self, by: Rank) -> Error {
        let kind = ErrorKind::Excluded { by };
        let error = Error::new(kind).with_rank(self.engine.fabric.rank, &self.engine.config.host, None);
        self.engine.poisoned = Some(error.clone());
        error
    }

    /// Counts those out who say nothing, and fails when it has taken too long.
    fn check_deadlines(&mut self) -> Result<()> {
        let (now, patience) = (self.elapsed(), self.engine.unresponsive_timeout());
        self.agreement.accept_suspicions(now);
        let silent = self.agreement.unresponsive(now, patience);
        let timed_out = |waiting_for: &[Rank]| {
            let waiting_for = waiting_for.iter().map(|&rank| (rank, None)).collect();
            Error::new(ErrorKind::Timeout { waiting_for, elsewhere: Vec::new(), after: now })
        };
        let missing: Vec<Rank> = silent.iter().copied().chain(self.agreement.excluded()).collect();
        if !missing.is_empty() && !self.agreement.is_majority_without(&silent) {
            return Err(timed_out(&missing));
        }
        silent.iter().for_each(|&peer| self.agreement.exclude(peer));
        if now > 2 * patience + self.engine.config.join_timeout {
            return Err(timed_out(&self.agreement.peers().collect::<Vec<_>>()));
        }
        Ok(())
    }
}

/// What kept ranks from meeting says more than that it took too long.
fn prefer_cause(error: Error, reason: Option<Error>) -> Error {
    match error.kind() {
        ErrorKind::Timeout { .. } => reason.unwrap_or(error),
        _ => error,
    }
}

/// How long so many ranks may take to meet: some tens of times what it takes. Only who waits for a rank that
/// has died between the count and the meeting waits so long.
fn connect_timeout(ranks: usize) -> Duration {
    CONNECT_TIMEOUT + CONNECT_TIMEOUT_PER_RANK * ranks as u32
}

/// How often a rank repeats what it has to say: notes may be lost.
const RESEND_INTERVAL: Duration = Duration::from_millis(50);
/// Nobody spins for an answer that takes a while.
const ROUNDS_SLEEPING: u32 = 1 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const CONNECT_TIMEOUT_PER_RANK: Duration = Duration::from_millis(10);
