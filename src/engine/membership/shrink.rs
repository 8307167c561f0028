//! The driver of a shrink, which exchanges views until the survivors agree, and connects them.

use crate::engine::Engine;
use crate::engine::membership::agreement::{Agreement, Excluded, Membership};
use crate::engine::watchdog::control_msg::{ControlMsg, VIEW_RANKS_MAX};
use crate::engine::watchdog::{EVENTS_PER_LOOK, ROUNDS_SLEEPING};
use crate::error::{Error, ErrorKind, Result};
use crate::schedule::Rank;
use std::time::Duration;
use unisono_transports::{Fabric, ListenerGuard, PeerEvent};

/// The way in which survivors connect to each other.
pub(crate) trait Regroup {
    /// Returns an address at which the others can connect to this rank, at most
    /// [`ENDPOINT_BYTES_MAX`](crate::engine::ENDPOINT_BYTES_MAX) bytes.
    fn endpoint(&mut self) -> Result<String>;
    /// Connects to the others of `membership`.
    fn connect(&mut self, membership: &Membership, patience: Duration) -> Result<Fabric>;
}

/// The survivors of a shrink, connected to each other.
pub(crate) struct Survivors {
    pub(crate) fabric: Fabric,
    /// Keeps this rank's listener open if running ranks may have been excluded. An excluded rank
    /// that connects to it learns that the others have gone on.
    pub(crate) listener: Option<ListenerGuard>,
    /// The smallest value that a survivor gave.
    pub(crate) value: u64,
}

/// The state of a shrink at one rank.
struct ShrinkDriver<'e> {
    engine: &'e mut Engine,
    agreement: Agreement,
    started: Duration,
    /// Time of the last view sent to the others.
    last_sent: Option<Duration>,
    /// Rounds without an event.
    rounds: u32,
}

/// The next action of a shrink.
enum Next {
    Connect(Membership),
    Commit,
}

impl Engine {
    /// Ends this communicator and returns the survivors, which agree on the smallest `value`.
    pub(crate) fn shrink(&mut self, value: u64, regroup: &mut dyn Regroup) -> Result<Survivors> {
        self.revoke()?;
        let agreement = Agreement::new(self.fabric.rank, self.watchdog.failed_ranks(), Duration::ZERO)
            .with_settings(self.overrides_digest())
            .with_value(value);
        let started = self.fabric.wait.now();
        let mut driver = ShrinkDriver { engine: self, agreement, started, last_sent: None, rounds: 0 };
        let mut connected = None;
        let mut reason = None;
        loop {
            match driver.negotiate(regroup).map_err(|error| prefer_cause(error, reason.take()))? {
                Next::Commit => break,
                Next::Connect(membership) => {
                    driver.agreement.begin_connect();
                    drop(connected.take());
                    match regroup.connect(&membership, connect_timeout(membership.ranks)) {
                        Ok(fabric) => {
                            driver.agreement.on_connected();
                            connected = Some((fabric, membership));
                        }
                        Err(error) => {
                            tracing::info!(%error, attempt = membership.attempt, "membership changed, retrying agreement");
                            driver.agreement.on_connect_failed();
                            reason = Some(error);
                            // The views may agree again at once. Then `negotiate` returns before it
                            // looks at the deadlines, so a group that never connects is noticed
                            // here.
                            driver.check_deadlines().map_err(|error| prefer_cause(error, reason.take()))?;
                        }
                    }
                    // The phase has changed, so the others get the new view without a delay.
                    driver.last_sent = None;
                }
            }
        }
        driver.agreement.commit();
        // This rank reads no more control messages here. So the others learn only from this message
        // that it has committed.
        driver.broadcast_view();
        let excludes_any = driver.agreement.excluded().next().is_some();
        let (fabric, membership) = connected.ok_or_else(|| {
            Error::new(ErrorKind::Bug("a rank committed a membership that it is not connected to".to_owned()))
        })?;
        if !membership.settings_agree {
            self.drop_overrides();
        }
        let listener = self.fabric.control.listener_guard().filter(|_| excludes_any);
        Ok(Survivors { fabric, listener, value: membership.value })
    }

    /// Ends this communicator for all ranks.
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
            // Peers that still run operations must hear of the cause before they hear of the
            // shrink.
            Some(error) => {
                self.watchdog.repeat_error(&mut *self.fabric.control, error);
                Ok(())
            }
            // A shrink without an error is no failure, so no flight record is written.
            None => {
                self.poison(self.own_error(ErrorKind::shrunk(self.fabric.rank, &[])));
                Ok(())
            }
        }
    }

    /// Returns the time after which a silent rank is excluded. It is longer than connecting takes.
    fn unresponsive_timeout(&self) -> Duration {
        self.config.timeout.max(2 * connect_timeout(self.fabric.ranks))
    }
}

impl ShrinkDriver<'_> {
    /// Exchanges views with the others until the next action is known.
    fn negotiate(&mut self, regroup: &mut dyn Regroup) -> Result<Next> {
        loop {
            if self.agreement.needs_endpoint() {
                self.agreement.set_endpoint(regroup.endpoint()?);
                self.last_sent = None;
            }
            let now = self.engine.fabric.wait.now();
            if self.last_sent.is_none_or(|sent| now > sent + RESEND_INTERVAL) {
                self.broadcast_view();
            }
            if self.poll_events()? || self.agreement.is_committed() {
                return Ok(Next::Commit);
            }
            if let Some(membership) = self.agreement.membership() {
                // The others wait for the same view from this rank.
                self.broadcast_view();
                return Ok(Next::Connect(membership));
            }
            if self.agreement.needs_endpoint() {
                // All lower ranks have just failed. This rank is the new root and has not tried
                // yet.
                continue;
            }
            self.check_deadlines()?;
            self.rounds = self.rounds.saturating_add(1).max(ROUNDS_SLEEPING);
            // Control messages wake no thread, so this polls.
            self.engine.fabric.wait.pause(self.rounds);
        }
    }

    fn broadcast_view(&mut self) {
        self.engine.fabric.control.post(&ControlMsg::Membership(self.agreement.own().clone()).encode());
        self.last_sent = Some(self.engine.fabric.wait.now());
    }

    /// Returns the time since the beginning of the shrink.
    fn elapsed(&self) -> Duration {
        self.engine.fabric.wait.now() - self.started
    }

    /// Reads events until the agreement is committed. Later events do not belong to it.
    fn poll_events(&mut self) -> Result<bool> {
        let former_view = self.agreement.own().clone();
        for _ in 0..EVENTS_PER_LOOK {
            let Some(event) = self.engine.fabric.control.poll() else { break };
            self.rounds = 0;
            self.on_event(event)?;
            if self.agreement.is_committed() {
                return Ok(true);
            }
        }
        if *self.agreement.own() != former_view {
            self.last_sent = None;
        }
        Ok(false)
    }

    fn on_event(&mut self, event: PeerEvent) -> Result<()> {
        match event {
            PeerEvent::Exited { from } => self.agreement.on_failure(from),
            // This rank may be the one that is cut off. A silent rank is excluded by a majority.
            PeerEvent::Unreachable { .. } | PeerEvent::Reset { .. } => {}
            PeerEvent::Message { from, bytes } => {
                match ControlMsg::decode(&bytes, self.engine.fabric.ranks) {
                    Some(ControlMsg::Finalized { .. }) => self.agreement.on_failure(from),
                    Some(ControlMsg::Membership(view)) => {
                        let result = self.agreement.on_view(from, view, self.elapsed());
                        result.map_err(|Excluded(peer)| self.excluded(peer))?;
                    }
                    Some(
                        ControlMsg::Waiting(_)
                        | ControlMsg::WaitingElsewhere(_)
                        | ControlMsg::Called(_)
                        | ControlMsg::Failed { .. },
                    )
                    | None => {}
                }
            }
        }
        Ok(())
    }

    fn excluded(&mut self, peer: Rank) -> Error {
        let kind = ErrorKind::Excluded { by: peer };
        let error = Error::new(kind).with_rank(self.engine.fabric.rank, &self.engine.config.host, None);
        self.engine.recorder.set_error(error.clone());
        self.engine.poisoned = Some(error.clone());
        error
    }

    /// Excludes silent ranks, and fails when the shrink takes too long.
    fn check_deadlines(&mut self) -> Result<()> {
        let (now, patience) = (self.elapsed(), self.engine.unresponsive_timeout());
        self.agreement.accept_suspicions(now);
        let silent = self.agreement.unresponsive(now, patience);
        let timed_out = |waiting_for: &[Rank]| {
            let waiting_for = waiting_for.iter().map(|&rank| (rank, None)).collect();
            Error::new(ErrorKind::Timeout { waiting_for, elsewhere: Vec::new(), after: now })
        };
        let missing: Vec<Rank> = silent.iter().copied().chain(self.agreement.excluded()).collect();
        // The silent ranks may be alive and continue, too. Only the larger half may go on without
        // the other one: docs/decisions/0011-survivors-agree-before-they-regroup.md.
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

/// If there is a reason why ranks could not connect, returns it instead of a timeout.
fn prefer_cause(error: Error, reason: Option<Error>) -> Error {
    match error.kind() {
        ErrorKind::Timeout { .. } => reason.unwrap_or(error),
        _ => error,
    }
}

/// Returns the time limit for connecting `ranks` ranks, some tens of times what it normally takes.
///
/// The limit is reached only if a rank fails between agreement and connection.
fn connect_timeout(ranks: usize) -> Duration {
    CONNECT_TIMEOUT + CONNECT_TIMEOUT_PER_RANK * ranks as u32
}

/// Time between two sends of the same view, because control messages may be lost.
const RESEND_INTERVAL: Duration = Duration::from_millis(50);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const CONNECT_TIMEOUT_PER_RANK: Duration = Duration::from_millis(10);
