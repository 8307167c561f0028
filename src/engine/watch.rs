//! What a rank does while it waits: patience, deadlines, and news of the others.

use super::notes::Note;
use super::recorder::Recorder;
use crate::call::Call;
use crate::communicator::Siblings;
use crate::error::{Error, ErrorKind, Result};
use crate::schedule::Rank;
use crate::sync::{AtomicBool, Mutex};
use std::sync::Arc;
use std::sync::atomic::Ordering;
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

/// What a watch shares with its communicator: the wish for its end, its record, and its siblings.
pub(crate) type Company = (Arc<AbortFlag>, Arc<Recorder>, Arc<Siblings>);

/// Watches over one communicator's waits.
pub(super) struct Watch {
    rank: Rank,
    timeout: Duration,
    abort: Arc<AbortFlag>,
    recorder: Arc<Recorder>,
    siblings: Arc<Siblings>,
    call: Option<Call>,
    /// Calls of `waited` since something moved.
    rounds: u32,
    /// When the clock was first read since something moved.
    idle_since: Option<Duration>,
    next_look: Duration,
    next_cry: Duration,
    next_warning: Duration,
    /// When it last looked.
    now: Duration,
    peers: Vec<Peer>,
    /// Whether this rank told the others of the error that ended it; or heard of it itself, from one who told all.
    told: bool,
    heard: bool,
}

/// What is known of a rank.
#[derive(Clone, Copy, Default)]
struct Peer {
    /// What it last said it was waiting in, and when that was heard.
    call: Option<Call>,
    said: Duration,
    /// Whether that is an operation of another communicator.
    elsewhere: bool,
    left: bool,
    lost: bool,
    /// Its host does not answer; the connection to it was reset, and nobody knows why.
    silent: bool,
    cut: bool,
}

impl Peer {
    fn says(&mut self, call: Call, elsewhere: bool, now: Duration) {
        (self.call, self.elsewhere, self.said) = (Some(call), elsewhere, now);
    }
}

impl Watch {
    pub(super) fn new(
        rank: Rank,
        ranks: usize,
        timeout: Duration,
        (abort, recorder, siblings): Company,
    ) -> Self {
        Self {
            rank,
            timeout,
            abort,
            recorder,
            siblings,
            call: None,
            rounds: 0,
            idle_since: None,
            next_look: Duration::ZERO,
            next_cry: Duration::ZERO,
            next_warning: Duration::ZERO,
            now: Duration::ZERO,
            peers: vec![Peer::default(); ranks],
            told: false,
            heard: false,
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
        if self.rounds >= ROUNDS_WITHOUT_CLOCK {
            self.look(control, pace.now(), blocked)?;
        }
        pace.pause(self.rounds);
        Ok(())
    }

    /// Why a link is closed: whoever fails closes its links, and has said before what it failed of.
    pub(super) fn explain(&mut self, control: &mut dyn Control, error: Error) -> Error {
        if !matches!(error.kind(), ErrorKind::PeerLost { .. }) {
            return error;
        }
        while let Some(event) = control.poll() {
            if let Err(cause) = self.hear(event) {
                return cause;
            }
        }
        self.missing(std::iter::empty(), Duration::ZERO).err().unwrap_or(error)
    }

    /// By rank: who ended, or left.
    pub(super) fn gone(&self) -> Vec<bool> {
        self.peers.iter().map(|peer| peer.lost || peer.left).collect()
    }

    /// Tells everybody of an error, unless somebody else has.
    pub(super) fn spread(&mut self, control: &mut dyn Control, error: &Error) {
        if !self.heard {
            self.tell(control, error);
        }
    }

    /// Tells everybody of an error, once.
    fn tell(&mut self, control: &mut dyn Control, error: &Error) {
        if std::mem::replace(&mut self.told, true) {
            return;
        }
        let kind = match (error.kind(), error.call()) {
            (kind @ ErrorKind::Timeout { .. }, Some(call)) => {
                ErrorKind::Aborted { by: self.rank, reason: format!("in {call}, {kind}") }
            }
            (kind, _) => kind.clone(),
        };
        self.post(control, &Note::Failed { by: self.rank, kind });
    }

    /// Hears all news while `call` is carried out elsewhere. What was said in earlier ones is forgotten when it is a new
    /// one: who waits in them still says so again.
    #[cfg(feature = "gpu")]
    pub(super) fn listen(
        &mut self,
        control: &mut dyn Control,
        now: Duration,
        call: Option<Call>,
    ) -> Result<()> {
        self.now = now;
        if let Some(call) = call.filter(|_| call != self.call) {
            let is_stale = |said: &Call| call.is_numbered_with(said) && said.sequence < call.sequence;
            self.peers.iter_mut().for_each(|peer| peer.call = peer.call.filter(|said| !is_stale(said)));
        }
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
        self.word(peer).filter(|(_, elsewhere)| !elsewhere).map(|(call, _)| call)
    }

    /// Tells everybody that this rank waits in `call` of another communicator.
    pub(super) fn cry_elsewhere(&mut self, control: &mut dyn Control, call: Call) {
        self.post(control, &Note::Elsewhere(call));
    }

    /// Tells everybody that this rank is done with the communicator; before, why, if that was an error: who has told of it may
    /// be slower to reach some than this.
    pub(super) fn farewell(&mut self, control: &mut dyn Control, error: Option<&Error>) {
        if let Some(error) = error {
            self.tell(control, error);
        }
        self.post(control, &Note::Goodbye);
    }

    fn look(
        &mut self,
        control: &mut dyn Control,
        now: Duration,
        blocked: impl Iterator<Item = Rank> + Clone,
    ) -> Result<()> {
        self.now = now;
        let Some(since) = self.idle_since else {
            self.idle_since = Some(now);
            self.next_look = now + LOOK_EVERY;
            self.next_cry = now + CRY_AFTER;
            self.next_warning = now + WARN_AFTER.min(self.timeout / 2);
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
            self.siblings.tell(call);
        }
        if now >= self.next_warning {
            self.next_warning = Duration::MAX;
            self.warn(blocked.clone(), now - since);
        }
        if now - since > self.patience(blocked.clone()) {
            return Err(self.timed_out(blocked, now - since));
        }
        Ok(())
    }

    /// How long nothing may move. Whoever waits for ranks that themselves wait in this operation leaves it to
    /// those nearer to the cause to name it; a circle of such ranks ends only a little later.
    fn patience(&self, blocked: impl Iterator<Item = Rank>) -> Duration {
        self.timeout + if self.all_wait(blocked) { self.timeout / 4 } else { Duration::ZERO }
    }

    /// Whether these ranks wait in this operation themselves.
    fn all_wait(&self, mut blocked: impl Iterator<Item = Rank>) -> bool {
        self.call.is_some_and(|own| blocked.all(|peer| self.word(peer) == Some((own, false))))
    }

    /// What `peer` waits in, and whether that is of another communicator: whoever waits says so again and again, and what it
    /// said long ago is true no more.
    fn word(&self, peer: Rank) -> Option<(Call, bool)> {
        let Peer { call, said, elsewhere, .. } = self.peers[peer];
        call.filter(|_| self.now < said + WORD_TIME).map(|call| (call, elsewhere))
    }

    /// Says who keeps this rank waiting, unless those nearer to the cause do.
    fn warn(&self, blocked: impl Iterator<Item = Rank> + Clone, idle: Duration) {
        if let Some(call) = self.call
            && !self.all_wait(blocked.clone())
        {
            tracing::warn!("rank {} in {call}: {}", self.rank, self.timed_out(blocked, idle).kind());
        }
    }

    /// Fails if a rank is gone that was already known to be gone when nothing moved since.
    fn missing(&self, mut blocked: impl Iterator<Item = Rank>, idle: Duration) -> Result<()> {
        if let Some(peer) = self.peers.iter().position(|peer| peer.lost) {
            let what = "its process ended or closed its connection".to_owned();
            return Err(Error::new(ErrorKind::PeerLost { peer, what }));
        }
        if let Some(peer) = self.peers.iter().position(|peer| peer.silent) {
            let what = format!("its host has answered nothing for {:.1} s", self.timeout.as_secs_f64());
            return Err(Error::new(ErrorKind::PeerLost { peer, what }));
        }
        if let Some(peer) = self.peers.iter().position(|peer| peer.cut) {
            let what = "its connection was reset, and nothing shows that its process ended".to_owned();
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
            Event::Silent { from } => self.peers[from].silent = !self.peers[from].left,
            Event::Cut { from } => self.peers[from].cut = !self.peers[from].left,
            Event::Note { from, bytes } => match Note::decode(&bytes) {
                Some(Note::Goodbye) => self.peers[from].left = true,
                Some(Note::Waiting(call)) => {
                    self.peers[from].says(call, false, self.now);
                    self.compare(from, call)?;
                }
                Some(Note::Elsewhere(call)) => {
                    self.peers[from].says(call, true, self.now);
                }
                Some(Note::Failed { kind, .. }) => {
                    self.heard = true;
                    return Err(Error::new(kind));
                }
                Some(Note::Count(count)) => {
                    self.heard = true;
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

    /// Two ranks that called different operations under the same number will wait for ever: also if one of them is through
    /// with its own, which needed nothing of the other.
    fn compare(&self, other: Rank, other_call: Call) -> Result<()> {
        let own = self
            .call
            .filter(|call| call.is_numbered_with(&other_call) && call.sequence == other_call.sequence);
        match own.or_else(|| self.recorder.called(&other_call)) {
            Some(call) if !call.agrees_with(&other_call) => {
                Err(Error::new(ErrorKind::Mismatch { rank: self.rank, call, other, other_call }))
            }
            _ => Ok(()),
        }
    }

    fn timed_out(&self, blocked: impl Iterator<Item = Rank>, after: Duration) -> Error {
        let (mut waiting_for, mut elsewhere): (Vec<(Rank, Option<Call>)>, _) = (Vec::new(), Vec::new());
        for peer in blocked {
            if waiting_for.iter().all(|&(rank, _)| rank != peer) {
                let word = self.word(peer);
                waiting_for.push((peer, word.map(|(call, _)| call)));
                elsewhere.extend(word.filter(|(_, elsewhere)| *elsewhere).map(|_| peer));
            }
        }
        Error::new(ErrorKind::Timeout { waiting_for, elsewhere, after })
    }

    fn post(&self, control: &mut dyn Control, note: &Note) {
        control.post(&note.encode());
    }
}

#[cfg(test)]
mod tests;

/// What becomes of a communicator that is shrunk, on all its ranks.
pub(super) const SHRINKS: &str = "the communicator is being shrunk";
/// Looking at a socket in vain is a system call: what is not waited for is looked at less often.
const ROUNDS_PER_PROGRESS: u32 = 8;
/// Rounds of a wait before the clock is read. From then on each may last long, as it gives the core away: on a busy host a
/// few of them are a tenth of a second.
const ROUNDS_WITHOUT_CLOCK: u32 = 64;
/// From this many rounds on nothing is hot any more.
const ROUNDS_HOT: u32 = 4096;
/// How often notes are read.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// When a rank tells the others what it waits in: first, and then again.
const CRY_AFTER: Duration = Duration::from_millis(250);
const CRY_EVERY: Duration = Duration::from_millis(500);
/// How long a rank is believed to wait in what it said.
const WORD_TIME: Duration = Duration::from_secs(1);
/// When a wait is worth a warning, if half of the time that it may take is not shorter.
const WARN_AFTER: Duration = Duration::from_secs(4);
/// What a rank that left sent before may still be on its way for so long.
const LEAVE_GRACE: Duration = Duration::from_millis(100);
