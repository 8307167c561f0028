//! The watchdog of a communicator, which limits the time of every wait and monitors the peers.
//!
//! A waiting thread calls [`Watchdog::check_round`] in every round without progress. The watchdog
//! checks the abort flag, reads control messages and connection events, announces a long wait to
//! the peers, and ends the wait with an error when its time is over. Nothing is sent, and no clock
//! is read, while data moves.

mod abort;
pub(crate) mod control_msg;
mod deadline;
mod peer_state;
#[cfg(test)]
mod tests;

pub(crate) use abort::AbortFlag;
pub(crate) use deadline::ROUNDS_WITHOUT_CLOCK;

use crate::engine::call_history::CALLS_TOLD;
use crate::engine::mismatch::op_mismatch;
use crate::engine::registry::CommRegistry;
use crate::engine::telemetry::flight::Recorder;
use crate::engine::watchdog::control_msg::ControlMsg;
use crate::engine::watchdog::deadline::Deadline;
use crate::engine::watchdog::peer_state::{Liveness, PeerState, failure_of_peers};
use crate::error::{Error, ErrorKind, Result};
use crate::op_desc::OpDesc;
use crate::schedule::Rank;
use std::sync::Arc;
use std::time::Duration;
use unisono_transports::{ControlChannel, PeerEvent, WaitStrategy};

/// The parts of a communicator that its watchdog shares: abort flag, flight recorder, other
/// communicators.
pub(crate) type WatchdogHandles = (Arc<AbortFlag>, Arc<Recorder>, Arc<CommRegistry>);

/// Watches over the waits of one communicator.
pub(super) struct Watchdog {
    rank: Rank,
    timeout: Duration,
    abort: Arc<AbortFlag>,
    recorder: Arc<Recorder>,
    registry: Arc<CommRegistry>,
    current_op: Option<OpDesc>,
    deadline: Deadline,
    /// Time of the last reading of the clock.
    now: Duration,
    peers: Vec<PeerState>,
    /// The calls that peers told and that this rank has made differently, or not made yet.
    told_calls: Vec<(Rank, OpDesc)>,
    /// True if this rank sent the error that ended it to all.
    error_sent: bool,
    /// True if a peer sent its error to all.
    error_received: bool,
}

impl Watchdog {
    pub(super) fn new(
        rank: Rank,
        ranks: usize,
        timeout: Duration,
        (abort, recorder, registry): WatchdogHandles,
    ) -> Self {
        Self {
            rank,
            timeout,
            abort,
            recorder,
            registry,
            current_op: None,
            deadline: Deadline::new(timeout),
            now: Duration::ZERO,
            peers: vec![PeerState::default(); ranks],
            told_calls: Vec::new(),
            error_sent: false,
            error_received: false,
        }
    }

    /// Returns whether a thread of this rank requested an abort.
    pub(super) fn is_abort_raised(&self) -> bool {
        self.abort.is_raised()
    }

    /// Returns the reason of a requested abort.
    pub(super) fn abort_reason(&self) -> Option<String> {
        self.abort.reason()
    }

    /// Sets the time without progress after which a wait ends, and returns the former one.
    pub(super) fn exchange_timeout(&mut self, timeout: Duration) -> Duration {
        self.deadline = Deadline::new(timeout);
        std::mem::replace(&mut self.timeout, timeout)
    }

    /// Marks the beginning of an operation.
    pub(super) fn begin_op(&mut self, op: OpDesc) {
        self.current_op = Some(op);
        self.progressed();
    }

    /// Marks progress, which ends the current wait.
    #[inline]
    pub(super) fn progressed(&mut self) {
        self.deadline.progressed();
    }

    /// Returns whether links that nobody waits for are due for progress.
    pub(super) fn should_progress_idle_links(&self) -> bool {
        self.deadline.should_progress_idle_links()
    }

    /// Handles one round without progress, and returns the number of such rounds. `blocked` are the
    /// ranks waited for.
    ///
    /// # Errors
    /// An abort, an error that a peer reported, a failed peer, or a timeout.
    #[inline]
    pub(super) fn check_round(
        &mut self,
        control: &mut dyn ControlChannel,
        wait: &mut dyn WaitStrategy,
        blocked: impl Iterator<Item = Rank> + Clone,
    ) -> Result<u32> {
        let round = self.deadline.next_round();
        // The flag is only loaded, so every round can look at it. The clock and the events cost
        // more.
        if let Some(reason) = self.abort.reason() {
            return Err(Error::new(ErrorKind::abort_request(self.rank, reason)));
        }
        if self.deadline.needs_clock() {
            self.poll(control, wait.now(), blocked)?;
        }
        Ok(round)
    }

    /// Reads news of the peers while no operation runs, if they are due. Returns whether they were.
    ///
    /// # Errors
    /// An error that a peer reported, or a failed peer.
    pub(super) fn poll_between_ops(
        &mut self,
        control: &mut dyn ControlChannel,
        now: Duration,
    ) -> Result<bool> {
        self.now = now;
        if !self.deadline.news_due(now) {
            return Ok(false);
        }
        self.read_events(control)?;
        self.check_failed(std::iter::empty(), Duration::ZERO)?;
        Ok(true)
    }

    /// Returns, for each rank, whether it finalized so long ago that nothing of it arrives any
    /// more.
    pub(super) fn long_finalized(&self) -> Vec<bool> {
        let grace = |peer: &PeerState| peer.finalized_at.is_some_and(|time| self.now > time + FINALIZE_GRACE);
        self.peers.iter().map(grace).collect()
    }

    /// Returns the error that caused `error`.
    ///
    /// A rank that fails sends its error before it closes its links. So a closed link is explained
    /// by a control message that has arrived already.
    pub(super) fn root_cause(&mut self, control: &mut dyn ControlChannel, error: Error) -> Error {
        let ErrorKind::PeerFailed { peer, .. } = *error.kind() else {
            return error;
        };
        if let Err(cause) = self.read_events(control) {
            return cause;
        }
        let failure = failure_of_peers(&self.peers, self.timeout);
        let explained = || self.peers.get(peer)?.explained_departure(peer).map(Error::new);
        failure.or_else(explained).unwrap_or(error)
    }

    /// Returns the error for an operation that waits for `peer`, which has finalized.
    pub(super) fn departure(&self, peer: Rank) -> ErrorKind {
        self.peers.get(peer).map_or(ErrorKind::PeerFinalized { peer }, |state| state.departure(peer))
    }

    /// Returns, for each rank, whether it exited or finalized.
    pub(super) fn failed_ranks(&self) -> Vec<bool> {
        self.peers.iter().map(PeerState::has_left).collect()
    }

    /// Sends an error to all peers, unless it came from one of them.
    pub(super) fn broadcast_error(&mut self, control: &mut dyn ControlChannel, error: &Error) {
        if !self.error_received {
            self.send_error(control, error);
        }
    }

    /// Sends an error to all peers before a shrink, even if the error came from a peer. This is
    /// needed because this rank's first message may arrive before the message of the rank that
    /// failed.
    pub(super) fn repeat_error(&mut self, control: &mut dyn ControlChannel, error: &Error) {
        self.send_error(control, error);
    }

    /// Sends an error to all peers, once.
    fn send_error(&mut self, control: &mut dyn ControlChannel, error: &Error) {
        if std::mem::replace(&mut self.error_sent, true) {
            return;
        }
        let kind = error.kind().for_peers(self.rank, error.op());
        self.send(control, &ControlMsg::Failed { by: self.rank, kind });
    }

    /// Reads all events while `op` runs outside the engine.
    ///
    /// When `op` is a new one, reports of earlier operations are dropped: a rank that still waits
    /// in them repeats its report.
    #[cfg(feature = "gpu")]
    pub(super) fn poll_events(
        &mut self,
        control: &mut dyn ControlChannel,
        now: Duration,
        op: Option<OpDesc>,
    ) -> Result<()> {
        self.now = now;
        if let Some(new) = op.filter(|_| op != self.current_op) {
            self.peers.iter_mut().for_each(|peer| peer.drop_stale_report(&new));
        }
        self.current_op = op;
        self.read_events(control)?;
        if op.is_some() { self.check_failed(std::iter::empty(), Duration::ZERO) } else { Ok(()) }
    }

    /// Announces to all peers that this rank waits in `op`.
    #[cfg(feature = "gpu")]
    pub(super) fn announce_wait(&mut self, control: &mut dyn ControlChannel, op: OpDesc) {
        self.send(control, &ControlMsg::Waiting(op));
    }

    /// Returns the operation of this communicator that `peer` last announced to be waiting in.
    #[cfg(feature = "gpu")]
    pub(super) fn last_report(&self, peer: Rank) -> Option<OpDesc> {
        let report = self.peers[peer].recent_report(self.now)?;
        (!report.in_other_comm).then_some(report.op)
    }

    /// Tells all peers that this rank called `op`, so that those that called another one find it.
    pub(super) fn announce_call(&self, control: &mut dyn ControlChannel, op: OpDesc) {
        self.send(control, &ControlMsg::Called(op));
    }

    /// Returns an error about the first call that a peer told and that this rank made differently.
    ///
    /// Each peer tells its calls in their order. So the first difference of this rank and that peer
    /// is the one that is returned, or it is older than all calls that the peer told.
    #[cold]
    pub(super) fn told_difference(&self) -> Option<Error> {
        let differences = self.told_calls.iter().filter_map(|&(peer, peer_op)| {
            let op = self.call_numbered_as(&peer_op).filter(|op| !op.matches(&peer_op))?;
            Some((op, peer, peer_op))
        });
        let (op, peer, peer_op) = differences.min_by_key(|(op, ..)| op.sequence())?;
        Some(op_mismatch(self.rank, op, peer, peer_op))
    }

    /// Lets this rank send its own error to the peers, although a peer has sent one to all.
    pub(super) fn forget_received_error(&mut self) {
        self.error_received = false;
    }

    /// Announces to all peers that this rank waits in `op` of another communicator.
    pub(super) fn announce_wait_elsewhere(&mut self, control: &mut dyn ControlChannel, op: OpDesc) {
        self.send(control, &ControlMsg::WaitingElsewhere(op));
    }

    /// Records that this communicator has failed, for the goodbyes of related communicators.
    pub(super) fn record_failure(&self, error: &Error) {
        self.registry.record_failure(self.peers.len(), error.kind());
    }

    /// Returns the failure of a related communicator that this rank has not handled, if there was
    /// one.
    pub(super) fn related_failure(&self) -> Option<String> {
        self.registry.failure()
    }

    /// Tells all peers that this rank is done with the communicator.
    ///
    /// An error is sent first, even if it came from a peer, because this message may arrive before
    /// the message of the rank that failed.
    pub(super) fn goodbye(&mut self, control: &mut dyn ControlChannel, error: Option<&Error>) {
        if let Some(error) = error {
            self.send_error(control, error);
        }
        self.send(control, &ControlMsg::Finalized { reason: None });
    }

    /// Tells all peers that this rank is done with a communicator that has not failed, and the
    /// failure of a related one that this rank has not handled.
    ///
    /// This is no error message, because peers that do not need this rank any more may go on.
    pub(super) fn goodbye_without_error(&self, control: &mut dyn ControlChannel) {
        self.send(control, &ControlMsg::Finalized { reason: self.related_failure() });
    }

    /// Reads the clock and the events, and applies all deadlines of the current wait.
    fn poll(
        &mut self,
        control: &mut dyn ControlChannel,
        now: Duration,
        blocked: impl Iterator<Item = Rank> + Clone,
    ) -> Result<()> {
        self.now = now;
        let Some(idle) = self.deadline.poll_due(now) else {
            return Ok(());
        };
        // Only a long wait gets here, so its record can afford a reading of the clock:
        // docs/decisions/0012-flight-recorder-samples-the-clock.md.
        self.recorder.mark_waiting(blocked.clone().next());
        self.check_failed(blocked.clone(), idle)?;
        self.read_events(control)?;
        if let Some(op) = self.current_op
            && self.deadline.announce_due(now)
        {
            self.send(control, &ControlMsg::Waiting(op));
            // A rank that waits for this one in another communicator learns the reason from this.
            self.registry.notify_blocked(op);
        }
        if self.deadline.warning_due(now) {
            self.warn(blocked.clone(), idle);
        }
        if idle > self.deadline.limit(self.all_wait_in_same_op(blocked.clone())) {
            return Err(self.timeout_error(blocked, idle));
        }
        Ok(())
    }

    /// Returns whether all of `blocked` wait in the current operation themselves.
    fn all_wait_in_same_op(&self, mut blocked: impl Iterator<Item = Rank>) -> bool {
        self.current_op.is_some_and(|op| {
            blocked.all(|peer| {
                let report = self.peers[peer].recent_report(self.now);
                report.is_some_and(|report| report.op == op && !report.in_other_comm)
            })
        })
    }

    /// Logs the ranks that this rank waits for, unless those wait themselves and log it nearer to
    /// the cause.
    fn warn(&self, blocked: impl Iterator<Item = Rank> + Clone, idle: Duration) {
        if let Some(op) = self.current_op
            && !self.all_wait_in_same_op(blocked.clone())
        {
            tracing::warn!("rank {} in {op}: {}", self.rank, self.timeout_error(blocked, idle).kind());
        }
    }

    /// Fails if a peer failed, or if one of `blocked` finalized and nothing of it arrived for a
    /// while. Among these, a peer that told why it left is reported before others.
    fn check_failed(&self, blocked: impl Iterator<Item = Rank>, idle: Duration) -> Result<()> {
        if let Some(error) = failure_of_peers(&self.peers, self.timeout) {
            return Err(error);
        }
        let finalized = blocked.filter(|&peer| self.peers[peer].liveness == Liveness::Finalized);
        match finalized.min_by_key(|&peer| self.peers[peer].explained_departure(peer).is_none()) {
            Some(peer) if idle > FINALIZE_GRACE => Err(Error::new(self.peers[peer].departure(peer))),
            _ => Ok(()),
        }
    }

    /// Handles the news of the peers, as far as one look takes them.
    pub(super) fn read_events(&mut self, control: &mut dyn ControlChannel) -> Result<()> {
        for _ in 0..EVENTS_PER_LOOK {
            let Some(event) = control.poll() else { break };
            self.on_event(event)?;
        }
        self.check_told_calls()
    }

    fn on_event(&mut self, event: PeerEvent) -> Result<()> {
        match event {
            PeerEvent::Exited { from } | PeerEvent::Unreachable { from } | PeerEvent::Reset { from } => {
                self.peers[from].on_event(&event);
                Ok(())
            }
            PeerEvent::Message { from, bytes } => self.on_message(from, &bytes),
        }
    }

    fn on_message(&mut self, peer: Rank, bytes: &[u8]) -> Result<()> {
        match ControlMsg::decode(bytes, self.peers.len()) {
            Some(ControlMsg::Finalized { reason }) => self.peers[peer].finalize(reason, self.now),
            Some(ControlMsg::Waiting(op)) => {
                self.peers[peer].report_wait(op, false, self.now);
                self.check_mismatch(peer, op)?;
            }
            Some(ControlMsg::Called(op)) => {
                self.keep_told_call(peer, op);
                self.check_told_calls()?;
            }
            Some(ControlMsg::WaitingElsewhere(op)) => self.peers[peer].report_wait(op, true, self.now),
            Some(ControlMsg::Failed { kind, .. }) => {
                self.error_received = true;
                return Err(Error::new(kind));
            }
            // The peer sends its view to all ranks, so this rank need not pass the failure on.
            Some(ControlMsg::Membership(view)) => {
                self.error_received = true;
                return Err(Error::new(match view.failed.get(self.rank) {
                    Some(true) => ErrorKind::Excluded { by: peer },
                    _ => ErrorKind::shrunk(peer, &view.failed_ranks()),
                }));
            }
            None => {
                let what = "a control message that cannot be decoded".to_owned();
                return Err(Error::new(ErrorKind::ProtocolViolation { peer, what }));
            }
        }
        Ok(())
    }

    /// Fails if `peer` waits in another operation than this rank under the same sequence number.
    ///
    /// Such ranks would wait forever. If the operation of this rank needed no data of `peer`, it
    /// may be complete already, but the flight record still has it.
    fn check_mismatch(&self, peer: Rank, peer_op: OpDesc) -> Result<()> {
        match self.call_numbered_as(&peer_op) {
            Some(op) if !op.matches(&peer_op) => Err(op_mismatch(self.rank, op, peer, peer_op)),
            _ => Ok(()),
        }
    }

    /// Returns the operation that this rank called under the number of `peer_op`, if it has called
    /// one and the flight record still has it.
    fn call_numbered_as(&self, peer_op: &OpDesc) -> Option<OpDesc> {
        let current = self
            .current_op
            .filter(|op| op.shares_sequence_with(peer_op) && op.sequence() == peer_op.sequence());
        current.or_else(|| self.recorder.find_op(peer_op))
    }

    /// Keeps a call that `peer` told, unless this rank has made the same call.
    ///
    /// The peer may be ahead of this rank. A call that was forgotten because this rank has not made
    /// it yet would hide the first difference behind a later one.
    #[cold]
    fn keep_told_call(&mut self, peer: Rank, peer_op: OpDesc) {
        let is_alike = self.call_numbered_as(&peer_op).is_some_and(|op| op.matches(&peer_op));
        let kept = self.told_calls.iter().filter(|(rank, _)| *rank == peer).count();
        if !is_alike && kept < CALLS_TOLD {
            self.told_calls.push((peer, peer_op));
        }
    }

    /// Fails if a peer told a call that this rank has made differently, perhaps only since then.
    fn check_told_calls(&self) -> Result<()> {
        match self.told_calls.is_empty() {
            true => Ok(()),
            false => self.told_difference().map_or(Ok(()), Err),
        }
    }

    /// Returns the timeout error, which names every blocked rank once with its latest report.
    fn timeout_error(&self, blocked: impl Iterator<Item = Rank>, waited: Duration) -> Error {
        let (mut waiting_for, mut elsewhere): (Vec<(Rank, Option<OpDesc>)>, _) = (Vec::new(), Vec::new());
        for peer in blocked {
            if waiting_for.iter().all(|&(rank, _)| rank != peer) {
                let report = self.peers[peer].recent_report(self.now);
                waiting_for.push((peer, report.map(|report| report.op)));
                elsewhere.extend(report.filter(|report| report.in_other_comm).map(|_| peer));
            }
        }
        Error::new(ErrorKind::Timeout { waiting_for, elsewhere, after: waited })
    }

    fn send(&self, control: &mut dyn ControlChannel, message: &ControlMsg) {
        control.post(&message.encode());
    }
}

/// Number of rounds from which a wait sleeps instead of spinning. Control messages wake nobody.
pub(in crate::engine) const ROUNDS_SLEEPING: u32 = 1 << 20;
/// News that one look takes, so that it ends however fast the peers send them.
pub(in crate::engine) const EVENTS_PER_LOOK: usize = 1 << 16;
/// Time in which data of a finalized peer may still arrive.
const FINALIZE_GRACE: Duration = Duration::from_millis(100);
