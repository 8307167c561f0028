//! What a rank does while it waits: patience, deadlines, and news of the others.

use super::notes::Note;
use super::recorder::Recorder;
use crate::call::Call;
use crate::error::{Error, ErrorKind, Result};
use crate::schedule::Rank;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use unisono_transports::{Control, Event, Pace};

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

    fn raised(&self) -> Option<String> {
        self.is_raised().then(|| self.reason.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone())
    }
}

/// Watches over one communicator's waits.
pub(super) struct Watch {
    rank: Rank,
    timeout: Duration,
    abort: Arc<AbortFlag>,
    recorder: Arc<Recorder>,
    call: Option<Call>,
    /// Calls of `waited` since something moved.
    rounds: u32,
    /// When the clock was first read since something moved.
    idle_since: Option<Duration>,
    next_look: Duration,
    next_cry: Duration,
    peers: Vec<Peer>,
    spread: bool,
}

/// What is known of a rank.
#[derive(Clone, Copy, Default)]
struct Peer {
    /// What it last said it was waiting in.
    call: Option<Call>,
    left: bool,
    lost: bool,
}

impl Watch {
    pub(super) fn new(
        rank: Rank,
        ranks: usize,
        timeout: Duration,
        abort: Arc<AbortFlag>,
        recorder: Arc<Recorder>,
    ) -> Self {
        Self {
            rank,
            timeout,
            abort,
            recorder,
            call: None,
            rounds: 0,
            idle_since: None,
            next_look: Duration::ZERO,
            next_cry: Duration::ZERO,
            peers: vec![Peer::default(); ranks],
            spread: false,
        }
    }

    /// Whether somebody on this rank wants the end.
    pub(super) fn is_abort_raised(&self) -> bool {
        self.abort.is_raised()
    }

    /// Why somebody on this rank wants the end, if somebody does.
    pub(super) fn abort_raised(&self) -> Option<String> {
        self.abort.raised()
    }

    /// An operation begins.
    pub(super) fn begin(&mut self, call: Call) {
        self.call = Some(call);
        self.moved();
    }

    /// Something moved.
    pub(super) fn moved(&mut self) {
        self.rounds = 0;
        self.idle_since = None;
    }

    /// Whether it is time to look after links that nobody waits for, so that their peers can go on.
    pub(super) fn is_time_for_others(&self) -> bool {
        self.rounds % ROUNDS_PER_PROGRESS == ROUNDS_PER_PROGRESS - 1 || self.rounds > ROUNDS_HOT
    }

    /// Nothing moved; `blocked` are the ranks waited for. Lets a little time pass.
    pub(super) fn waited(
        &mut self,
        control: &mut dyn Control,
        pace: &mut dyn Pace,
        blocked: impl Iterator<Item = Rank> + Clone,
    ) -> Result<()> {
        self.rounds = self.rounds.saturating_add(1);
        if let Some(reason) = self.abort.raised() {
            return Err(Error::new(ErrorKind::Aborted { by: self.rank, reason }));
        }
        if self.rounds.is_multiple_of(ROUNDS_PER_CLOCK) || self.rounds > ROUNDS_HOT {
            self.look(control, pace.now(), blocked)?;
        }
        pace.pause(self.rounds);
        Ok(())
    }

    /// By rank: who ended, or left.
    pub(super) fn gone(&self) -> Vec<bool> {
        self.peers.iter().map(|peer| peer.lost || peer.left).collect()
    }

    /// Tells everybody of an error, once.
    pub(super) fn spread(&mut self, control: &mut dyn Control, error: &Error) {
        if !self.spread {
            self.spread = true;
            self.post(control, &Note::Failed { by: self.rank, kind: error.kind().clone() });
        }
    }

    /// Hears all news while `call` is carried out elsewhere.
    #[cfg(feature = "gpu")]
    pub(super) fn listen(&mut self, control: &mut dyn Control, call: Option<Call>) -> Result<()> {
        self.call = call;
        while let Some(event) = control.poll() {
            self.hear(event)?;
        }
        if call.is_some() { self.missing(std::iter::empty(), Duration::ZERO) } else { Ok(()) }
    }

    /// Tells everybody that this rank waits in `call`.
    #[cfg(feature = "gpu")]
    pub(super) fn cry(&mut self, control: &mut dyn Control, call: Call) {
        self.post(control, &Note::Waiting(call));
    }

    /// What `peer` last said it was waiting in.
    #[cfg(feature = "gpu")]
    pub(super) fn last_word(&self, peer: Rank) -> Option<Call> {
        self.peers[peer].call
    }

    /// Tells everybody that this rank is done with the communicator.
    pub(super) fn farewell(&mut self, control: &mut dyn Control) {
        self.post(control, &Note::Goodbye);
    }

    fn look(
        &mut self,
        control: &mut dyn Control,
        now: Duration,
        blocked: impl Iterator<Item = Rank> + Clone,
    ) -> Result<()> {
        let Some(since) = self.idle_since else {
            self.idle_since = Some(now);
            self.next_look = now + LOOK_EVERY;
            self.next_cry = now + CRY_AFTER;
            return Ok(());
        };
        if now < self.next_look {
            return Ok(());
        }
        self.next_look = now + LOOK_EVERY;
        self.recorder.wait(blocked.clone().next());
        self.missing(blocked.clone(), now - since)?;
        while let Some(event) = control.poll() {
            self.hear(event)?;
        }
        if now >= self.next_cry
            && let Some(call) = self.call
        {
            self.next_cry = now + CRY_EVERY;
            self.post(control, &Note::Waiting(call));
        }
        if now - since > self.patience(blocked.clone()) {
            return Err(self.timed_out(blocked, now - since));
        }
        Ok(())
    }

    /// How long nothing may move. Whoever waits for ranks that themselves wait in this operation leaves it to
    /// those nearer to the cause to name it; a circle of such ranks ends only a little later.
    fn patience(&self, mut blocked: impl Iterator<Item = Rank>) -> Duration {
        let all_wait = blocked.all(|peer| self.call.is_some() && self.peers[peer].call == self.call);
        self.timeout + if all_wait { self.timeout / 4 } else { Duration::ZERO }
    }

    /// Fails if a rank is gone that was already known to be gone when nothing moved since.
    fn missing(&self, mut blocked: impl Iterator<Item = Rank>, idle: Duration) -> Result<()> {
        if let Some(peer) = self.peers.iter().position(|peer| peer.lost) {
            let what = "its process ended or its connection was cut".to_owned();
            return Err(Error::new(ErrorKind::PeerLost { peer, what }));
        }
        match blocked.find(|&peer| self.peers[peer].left) {
            Some(peer) if idle > LEAVE_GRACE => Err(Error::new(ErrorKind::PeerLeft { peer })),
            _ => Ok(()),
        }
    }

    fn hear(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Closed { from } => self.peers[from].lost = !self.peers[from].left,
            Event::Note { from, bytes } => match Note::decode(&bytes) {
                Some(Note::Goodbye) => self.peers[from].left = true,
                Some(Note::Waiting(call)) => {
                    self.peers[from].call = Some(call);
                    self.compare(from, call)?;
                }
                Some(Note::Failed { kind, .. }) => {
                    self.spread = true;
                    return Err(Error::new(kind));
                }
                Some(Note::Count(count)) => {
                    self.spread = true;
                    return Err(Error::new(match count.gone.get(self.rank) {
                        Some(true) => ErrorKind::LeftBehind { by: from },
                        _ => ErrorKind::Aborted { by: from, reason: SHRINKS.to_owned() },
                    }));
                }
                None => {
                    let what = "a note that cannot be read".to_owned();
                    return Err(Error::new(ErrorKind::Corrupt { peer: from, what }));
                }
            },
        }
        Ok(())
    }

    /// Two ranks that wait in different operations of the same number will wait for ever.
    fn compare(&self, other: Rank, other_call: Call) -> Result<()> {
        match self.call {
            Some(call) if call.is_of_all() && other_call.is_of_all() => {
                if call.sequence == other_call.sequence && call != other_call {
                    let rank = self.rank;
                    return Err(Error::new(ErrorKind::Mismatch { rank, call, other, other_call }));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn timed_out(&self, blocked: impl Iterator<Item = Rank>, after: Duration) -> Error {
        let mut waiting_for: Vec<(Rank, Option<Call>)> = Vec::new();
        for peer in blocked {
            if waiting_for.iter().all(|&(rank, _)| rank != peer) {
                waiting_for.push((peer, self.peers[peer].call));
            }
        }
        Error::new(ErrorKind::Timeout { waiting_for, after })
    }

    fn post(&self, control: &mut dyn Control, note: &Note) {
        control.post(&note.encode());
    }
}

/// What becomes of a communicator that is shrunk, on all its ranks.
pub(super) const SHRINKS: &str = "the communicator is being shrunk";
/// Looking at a socket in vain is a system call: what is not waited for is looked at less often.
const ROUNDS_PER_PROGRESS: u32 = 8;
/// How often the clock is read while a wait is young.
const ROUNDS_PER_CLOCK: u32 = 64;
/// From this many rounds on every round may last long, so the clock is read in each.
const ROUNDS_HOT: u32 = 4096;
/// How often notes are read.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// When a rank tells the others what it waits in: first, and then again.
const CRY_AFTER: Duration = Duration::from_millis(250);
const CRY_EVERY: Duration = Duration::from_millis(500);
/// What a rank that left sent before may still be on its way for so long.
const LEAVE_GRACE: Duration = Duration::from_millis(100);
