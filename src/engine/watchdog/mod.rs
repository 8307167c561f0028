//! What a rank does while it waits: patience, deadlines, and news of the others.

use crate::engine::registry::CommRegistry;
use crate::engine::telemetry::recorder::Recorder;
use crate::engine::watchdog::control_msg::ControlMsg;
use crate::error::{Error, ErrorKind, Result};
use crate::op_desc::OpDesc;
use crate::schedule::Rank;
use crate::sync::{AtomicBool, Mutex};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use unisono_transports::{ControlChannel, PeerEvent, WaitStrategy};

/// Set by `abort` from any thread; seen by the thread that waits.
#[derive(Debug, Default)]
pub(crate) struct AbortFlag {
    set: AtomicBool,
    reason: Mutex<String>,
}

impl AbortFlag {
    /// Asks for the end; the first reason stays.
    pub(crate) fn raise(&self, reason: &str) {
        let mut kept = self.reason.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if !self.set.load(Ordering::Relaxed) {
            reason.clone_into(&mut kept);
            self.set.store(true, Ordering::Release);
        }
    }

    fn is_raised(&self) -> bool {
        self.set.load(Ordering::Acquire)
    }

    fn reason_if_raised(&self) -> Option<String> {
        self.is_raised().then(|| self.reason.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone())
    }
}

/// What a watch shares with its communicator: the wish for its end, its record, and its siblings.
pub(crate) type WatchdogHandles = (Arc<AbortFlag>, Arc<Recorder>, Arc<CommRegistry>);

/// Watches over one communicator's waits.
pub(super) struct Watchdog {
    rank: Rank,
    timeout: Duration,
    abort: Arc<AbortFlag>,
    recorder: Arc<Recorder>,
    registry: Arc<CommRegistry>,
    current_op: Option<OpDesc>,
    /// Calls of `waited` since something moved.
    rounds: u32,
    /// When the clock was first read since something moved.
    idle_since: Option<Duration>,
    next_poll: Duration,
    next_announce: Duration,
    next_warning: Duration,
    /// When it last looked.
    now: Duration,
    peers: Vec<PeerState>,
    /// Whether this rank told the others of the error that ended it; or heard of it itself, from one who told all.
    error_sent: bool,
    error_received: bool,
}

/// What is known of a rank.
#[derive(Clone, Copy, Default)]
struct PeerState {
    /// What it last said it was waiting in, and when that was heard.
    waiting_in: Option<OpDesc>,
    reported_at: Duration,
    /// Whether that is an operation of another communicator.
    in_other_comm: bool,
    finalized: bool,
    failed: bool,
    /// Its host does not answer; the connection to it was reset, and nobody knows why.
    unreachable: bool,
    reset: bool,
}

impl PeerState {
    fn report_wait(&mut self, call: OpDesc, elsewhere: bool, now: Duration) {
        (self.waiting_in, self.in_other_comm, self.reported_at) = (Some(call), elsewhere, now);
    }
}

impl Watchdog {
    pub(super) fn new(
        rank: Rank,
        ranks: usize,
        timeout: Duration,
        (abort, recorder, siblings): WatchdogHandles,
    ) -> Self {
        Self {
            rank,
            timeout,
            abort,
            recorder,
            registry: siblings,
            current_op: None,
            rounds: 0,
            idle_since: None,
            next_poll: Duration::ZERO,
            next_announce: Duration::ZERO,
            next_warning: Duration::ZERO,
            now: Duration::ZERO,
            peers: vec![PeerState::default(); ranks],
            error_sent: false,
            error_received: false,
        }
    }

    /// Whether somebody on this rank wants the end.
    pub(super) fn is_abort_raised(&self) -> bool {
        self.abort.is_raised()
    }

    /// Why somebody on this rank wants the end, if somebody does.
    pub(super) fn abort_reason(&self) -> Option<String> {
        self.abort.reason_if_raised()
    }

    /// An operation begins.
    pub(super) fn begin_op(&mut self, call: OpDesc) {
        self.current_op = Some(call);
        self.progressed();
    }

    /// Something moved.
    pub(super) fn progressed(&mut self) {
        self.rounds = 0;
        self.idle_since = None;
    }

    /// Whether it is time to look after links that nobody waits for, so that their peers can go on.
    pub(super) fn should_progress_idle_links(&self) -> bool {
        self.rounds % ROUNDS_PER_PROGRESS == ROUNDS_PER_PROGRESS - 1 || self.rounds > ROUNDS_SPINNING
    }

    /// Nothing moved; `blocked` are the ranks waited for. Lets a little time pass.
    pub(super) fn wait_round(
        &mut self,
        control: &mut dyn ControlChannel,
        pace: &mut dyn WaitStrategy,
        blocked: impl Iterator<Item = Rank> + Clone,
    ) -> Result<()> {
        self.rounds = self.rounds.saturating_add(1);
        if let Some(reason) = self.abort.reason_if_raised() {
            return Err(Error::new(ErrorKind::Aborted { by: self.rank, reason }));
        }
        if self.rounds >= ROUNDS_WITHOUT_CLOCK {
            self.poll(control, pace.now(), blocked)?;
        }
        pace.pause(self.rounds);
        Ok(())
    }

    /// Why a link is closed: whoever fails closes its links, and has said before what it failed of.
    pub(super) fn root_cause(&mut self, control: &mut dyn ControlChannel, error: Error) -> Error {
        if !matches!(error.kind(), ErrorKind::PeerFailed { .. }) {
            return error;
        }
        while let Some(event) = control.poll() {
            if let Err(cause) = self.on_event(event) {
                return cause;
            }
        }
        self.check_failed(std::iter::empty(), Duration::ZERO).err().unwrap_or(error)
    }

    /// By rank: who ended, or left.
    pub(super) fn failed_ranks(&self) -> Vec<bool> {
        self.peers.iter().map(|peer| peer.failed || peer.finalized).collect()
    }

    /// Tells everybody of an error, unless somebody else has.
    pub(super) fn broadcast_error(&mut self, control: &mut dyn ControlChannel, error: &Error) {
        if !self.error_received {
            self.send_error(control, error);
        }
    }

    /// Tells everybody of an error, once.
    fn send_error(&mut self, control: &mut dyn ControlChannel, error: &Error) {
        if std::mem::replace(&mut self.error_sent, true) {
            return;
        }
        let kind = match (error.kind(), error.op()) {
            (kind @ ErrorKind::Timeout { .. }, Some(call)) => {
                ErrorKind::Aborted { by: self.rank, reason: format!("in {call}, {kind}") }
            }
            (kind, _) => kind.clone(),
        };
        self.send(control, &ControlMsg::Failed { by: self.rank, kind });
    }

    /// Hears all news while `call` is carried out elsewhere. What was said in earlier ones is forgotten when it is a new
    /// one: who waits in them still says so again.
    #[cfg(feature = "gpu")]
    pub(super) fn poll_events(
        &mut self,
        control: &mut dyn ControlChannel,
        now: Duration,
        call: Option<OpDesc>,
    ) -> Result<()> {
        self.now = now;
        if let Some(call) = call.filter(|_| call != self.current_op) {
            let is_stale = |said: &OpDesc| call.shares_sequence_with(said) && said.sequence < call.sequence;
            self.peers
                .iter_mut()
                .for_each(|peer| peer.waiting_in = peer.waiting_in.filter(|said| !is_stale(said)));
        }
        self.current_op = call;
        while let Some(event) = control.poll() {
            self.on_event(event)?;
        }
        if call.is_some() { self.check_failed(std::iter::empty(), Duration::ZERO) } else { Ok(()) }
    }

    /// Tells everybody that this rank waits in `call`.
    #[cfg(feature = "gpu")]
    pub(super) fn announce_wait(&mut self, control: &mut dyn ControlChannel, call: OpDesc) {
        self.send(control, &ControlMsg::Waiting(call));
    }

    /// What `peer` last said it was waiting in.
    #[cfg(feature = "gpu")]
    pub(super) fn last_report(&self, peer: Rank) -> Option<OpDesc> {
        self.recent_report(peer).filter(|(_, elsewhere)| !elsewhere).map(|(call, _)| call)
    }

    /// Tells everybody that this rank waits in `call` of another communicator.
    pub(super) fn announce_wait_elsewhere(&mut self, control: &mut dyn ControlChannel, call: OpDesc) {
        self.send(control, &ControlMsg::WaitingElsewhere(call));
    }

    /// Tells everybody that this rank is done with the communicator; before, why, if that was an error: who has told of it may
    /// be slower to reach some than this.
    pub(super) fn goodbye(&mut self, control: &mut dyn ControlChannel, error: Option<&Error>) {
        if let Some(error) = error {
            self.send_error(control, error);
        }
        self.send(control, &ControlMsg::Finalized);
    }

    fn poll(
        &mut self,
        control: &mut dyn ControlChannel,
        now: Duration,
        blocked: impl Iterator<Item = Rank> + Clone,
    ) -> Result<()> {
        self.now = now;
        let Some(since) = self.idle_since else {
            self.idle_since = Some(now);
            self.next_poll = now + POLL_INTERVAL;
            self.next_announce = now + ANNOUNCE_AFTER;
            self.next_warning = now + WARN_AFTER.min(self.timeout / 2);
            return Ok(());
        };
        if now < self.next_poll {
            return Ok(());
        }
        self.next_poll = now + POLL_INTERVAL;
        self.recorder.mark_waiting(blocked.clone().next());
        self.check_failed(blocked.clone(), now - since)?;
        while let Some(event) = control.poll() {
            self.on_event(event)?;
        }
        if now >= self.next_announce
            && let Some(call) = self.current_op
        {
            self.next_announce = now + ANNOUNCE_INTERVAL;
            self.send(control, &ControlMsg::Waiting(call));
            self.registry.notify_blocked(call);
        }
        if now >= self.next_warning {
            self.next_warning = Duration::MAX;
            self.warn(blocked.clone(), now - since);
        }
        if now - since > self.wait_limit(blocked.clone()) {
            return Err(self.timeout_error(blocked, now - since));
        }
        Ok(())
    }

    /// How long nothing may move. Whoever waits for ranks that themselves wait in this operation leaves it to
    /// those nearer to the cause to name it; a circle of such ranks ends only a little later.
    fn wait_limit(&self, blocked: impl Iterator<Item = Rank>) -> Duration {
        self.timeout + if self.all_wait_in_same_op(blocked) { self.timeout / 4 } else { Duration::ZERO }
    }

    /// Whether these ranks wait in this operation themselves.
    fn all_wait_in_same_op(&self, mut blocked: impl Iterator<Item = Rank>) -> bool {
        self.current_op.is_some_and(|own| blocked.all(|peer| self.recent_report(peer) == Some((own, false))))
    }

    /// What `peer` waits in, and whether that is of another communicator: whoever waits says so again and again, and what it
    /// said long ago is true no more.
    fn recent_report(&self, peer: Rank) -> Option<(OpDesc, bool)> {
        let PeerState { waiting_in: call, reported_at: said, in_other_comm: elsewhere, .. } =
            self.peers[peer];
        call.filter(|_| self.now < said + REPORT_TTL).map(|call| (call, elsewhere))
    }

    /// Says who keeps this rank waiting, unless those nearer to the cause do.
    fn warn(&self, blocked: impl Iterator<Item = Rank> + Clone, idle: Duration) {
        if let Some(call) = self.current_op
            && !self.all_wait_in_same_op(blocked.clone())
        {
            tracing::warn!("rank {} in {call}: {}", self.rank, self.timeout_error(blocked, idle).kind());
        }
    }

    /// Fails if a rank is gone that was already known to be gone when nothing moved since.
    fn check_failed(&self, mut blocked: impl Iterator<Item = Rank>, idle: Duration) -> Result<()> {
        if let Some(peer) = self.peers.iter().position(|peer| peer.failed) {
            let what = "its process ended or closed its connection".to_owned();
            return Err(Error::new(ErrorKind::PeerFailed { peer, what }));
        }
        if let Some(peer) = self.peers.iter().position(|peer| peer.unreachable) {
            let what = format!("its host has answered nothing for {:.1} s", self.timeout.as_secs_f64());
            return Err(Error::new(ErrorKind::PeerFailed { peer, what }));
        }
        if let Some(peer) = self.peers.iter().position(|peer| peer.reset) {
            let what = "its connection was reset, and nothing shows that its process ended".to_owned();
            return Err(Error::new(ErrorKind::PeerFailed { peer, what }));
        }
        match blocked.find(|&peer| self.peers[peer].finalized) {
            Some(peer) if idle > FINALIZE_GRACE => Err(Error::new(ErrorKind::PeerFinalized { peer })),
            _ => Ok(()),
        }
    }

    fn on_event(&mut self, event: PeerEvent) -> Result<()> {
        match event {
            PeerEvent::Exited { from } => self.peers[from].failed = !self.peers[from].finalized,
            PeerEvent::Unreachable { from } => self.peers[from].unreachable = !self.peers[from].finalized,
            PeerEvent::Reset { from } => self.peers[from].reset = !self.peers[from].finalized,
            PeerEvent::Message { from, bytes } => match ControlMsg::decode(&bytes) {
                Some(ControlMsg::Finalized) => self.peers[from].finalized = true,
                Some(ControlMsg::Waiting(call)) => {
                    self.peers[from].report_wait(call, false, self.now);
                    self.check_mismatch(from, call)?;
                }
                Some(ControlMsg::WaitingElsewhere(call)) => {
                    self.peers[from].report_wait(call, true, self.now);
                }
                Some(ControlMsg::Failed { kind, .. }) => {
                    self.error_received = true;
                    return Err(Error::new(kind));
                }
                Some(ControlMsg::Membership(count)) => {
                    self.error_received = true;
                    return Err(Error::new(match count.failed.get(self.rank) {
                        Some(true) => ErrorKind::Excluded { by: from },
                        _ => ErrorKind::Aborted { by: from, reason: SHRINK_REASON.to_owned() },
                    }));
                }
                None => {
                    let what = "a control message that cannot be decoded".to_owned();
                    return Err(Error::new(ErrorKind::ProtocolViolation { peer: from, what }));
                }
            },
        }
        Ok(())
    }

    /// Two ranks that called different operations under the same number will wait for ever: also if one of them is through
    /// with its own, which needed nothing of the other.
    fn check_mismatch(&self, other: Rank, other_call: OpDesc) -> Result<()> {
        let own = self
            .current_op
            .filter(|call| call.shares_sequence_with(&other_call) && call.sequence == other_call.sequence);
        match own.or_else(|| self.recorder.find_op(&other_call)) {
            Some(call) if !call.matches(&other_call) => Err(Error::new(ErrorKind::Mismatch {
                rank: self.rank,
                op: call,
                other,
                other_op: other_call,
            })),
            _ => Ok(()),
        }
    }

    fn timeout_error(&self, blocked: impl Iterator<Item = Rank>, after: Duration) -> Error {
        let (mut waiting_for, mut elsewhere): (Vec<(Rank, Option<OpDesc>)>, _) = (Vec::new(), Vec::new());
        for peer in blocked {
            if waiting_for.iter().all(|&(rank, _)| rank != peer) {
                let word = self.recent_report(peer);
                waiting_for.push((peer, word.map(|(call, _)| call)));
                elsewhere.extend(word.filter(|(_, elsewhere)| *elsewhere).map(|_| peer));
            }
        }
        Error::new(ErrorKind::Timeout { waiting_for, elsewhere, after })
    }

    fn send(&self, control: &mut dyn ControlChannel, note: &ControlMsg) {
        control.post(&note.encode());
    }
}

pub(crate) mod control_msg;
#[cfg(test)]
mod tests;

/// What becomes of a communicator that is shrunk, on all its ranks.
pub(super) const SHRINK_REASON: &str = "the communicator is being shrunk";
/// Looking at a socket in vain is a system call: what is not waited for is looked at less often.
const ROUNDS_PER_PROGRESS: u32 = 8;
/// Rounds of a wait before the clock is read. From then on each may last long, as it gives the core away: on a busy host a
/// few of them are a tenth of a second.
const ROUNDS_WITHOUT_CLOCK: u32 = 64;
/// From this many rounds on nothing is hot any more.
const ROUNDS_SPINNING: u32 = 4096;
/// How often notes are read.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// When a rank tells the others what it waits in: first, and then again.
const ANNOUNCE_AFTER: Duration = Duration::from_millis(250);
const ANNOUNCE_INTERVAL: Duration = Duration::from_millis(500);
/// How long a rank is believed to wait in what it said.
const REPORT_TTL: Duration = Duration::from_secs(1);
/// When a wait is worth a warning, if half of the time that it may take is not shorter.
const WARN_AFTER: Duration = Duration::from_secs(4);
/// What a rank that left sent before may still be on its way for so long.
const FINALIZE_GRACE: Duration = Duration::from_millis(100);
