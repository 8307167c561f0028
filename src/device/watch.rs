//! What a rank's host does while its kernels work: news of the others, and errors of the device.

use super::Shared;
use crate::call::Call;
use crate::error::{Error, ErrorKind, Result};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use unisono_cuda::device::{State as Ending, Status};
use unisono_transports::Tag;

/// Wakes the thread that watches over a communicator.
#[derive(Default)]
pub(super) struct Bell {
    mood: Mutex<Mood>,
    rung: Condvar,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Mood {
    #[default]
    Quiet,
    /// Something was enqueued.
    Rung,
    /// The communicator is gone.
    Closed,
}

impl Bell {
    /// Something was enqueued.
    pub(super) fn ring(&self) {
        self.set(Mood::Rung);
    }

    /// There is nothing to watch any more.
    pub(super) fn close(&self) {
        self.set(Mood::Closed);
    }

    fn set(&self, mood: Mood) {
        let mut now = self.lock();
        if *now != Mood::Closed && *now != mood {
            *now = mood;
            self.rung.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Mood> {
        self.mood.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there may be something to watch.
    pub(super) fn is_open(&self) -> bool {
        *self.lock() != Mood::Closed
    }

    /// Waits until something is enqueued; false: never.
    pub(super) fn wait(&self) -> bool {
        let quiet = |mood: &mut Mood| *mood == Mood::Quiet;
        let mood = self.rung.wait_while(self.lock(), quiet).unwrap_or_else(PoisonError::into_inner);
        *mood != Mood::Closed
    }

    /// Waits for so long; false: the communicator is gone.
    pub(super) fn pause(&self, time: Duration) -> bool {
        let open = |mood: &mut Mood| *mood != Mood::Closed;
        let waited = self.rung.wait_timeout_while(self.lock(), time, open);
        *waited.unwrap_or_else(PoisonError::into_inner).0 != Mood::Closed
    }

    /// Nothing is under way.
    pub(super) fn hush(&self) {
        let mut mood = self.lock();
        if *mood == Mood::Rung {
            *mood = Mood::Quiet;
        }
    }
}

/// Watches over the communicator on a thread of its own until it is dropped.
pub(super) fn watch(shared: &Arc<Shared>) -> Result<()> {
    let (bell, shared) = (Arc::clone(&shared.bells[0]), Arc::downgrade(shared));
    let named = std::thread::Builder::new().name("unisono watch".to_owned());
    let started = named.spawn(move || while bell.wait() && rounds(&bell, &shared) {});
    started.map(drop).map_err(|error| Error::new(ErrorKind::System(format!("a thread to watch: {error}"))))
}

/// Looks again and again until nothing is under way; false: the communicator is gone.
fn rounds(bell: &Bell, shared: &Weak<Shared>) -> bool {
    let (begun, mut cried) = (Instant::now(), Duration::ZERO);
    loop {
        let Some(shared) = shared.upgrade() else { return false };
        // Hushed first, so that what is enqueued meanwhile is not missed.
        bell.hush();
        let idle = shared.progress.is_idle();
        if shared.look().is_err() || idle {
            return true;
        }
        bell.ring();
        if begun.elapsed() > cried + CRY_EVERY {
            cried = begun.elapsed();
            shared.cry();
        }
        drop(shared);
        if !bell.pause(LOOK_EVERY) {
            return false;
        }
    }
}

impl Shared {
    /// Hears what the others have to say and looks whether a launch ended early. An error ends everything.
    pub(super) fn look(&self) -> Result<()> {
        let call = self.progress.call();
        let status = self.endpoint.status();
        let ending = status.state().unwrap_or(Ending::Claimed);
        let heard = self.base.with(|engine| engine.listen(call).map(|()| engine.gone()));
        let gone = heard.inspect_err(|_| {
            self.progress.end();
            self.endpoint.abort();
        })?;
        self.part_from(&gone);
        match ending {
            Ending::Well | Ending::Claimed => Ok(()),
            _ => Err(self.end(self.base.place(self.explained(&status, ending)?), call)),
        }
    }

    /// Ends waits for ranks that have left, whose launches were over by then. What one has sent by way of the host may
    /// be under way for a while.
    fn part_from(&self, gone: &[bool]) {
        for peer in (0..gone.len()).filter(|&peer| gone[peer]) {
            let quiet = self.progress.quiet_since(peer).elapsed();
            if !self.endpoint.is_staged(peer) || quiet > LEAVE_GRACE {
                self.endpoint.part_from(peer);
            }
        }
    }

    /// Tells the others in what this rank is waiting.
    fn cry(&self) {
        if let Some(call) = self.progress.call() {
            // An error is seen by the next look.
            let _ = self.base.with(|engine| {
                engine.cry(call);
                Ok(())
            });
        }
    }

    /// Ends this communicator on all ranks because of an error seen here.
    pub(super) fn end(&self, error: Error, call: Option<Call>) -> Error {
        self.progress.end();
        self.endpoint.abort();
        self.base
            .with(|engine| engine.end_with(error, call))
            .err()
            .unwrap_or_else(|| Error::new(ErrorKind::Bug("an error that ended nothing".to_owned())))
    }

    /// What the record of a launch means. One that waited for a rank which itself waits leaves it to those nearer to the
    /// cause to name it, for a while: their word then comes as the error.
    fn explained(&self, status: &Status, ending: Ending) -> Result<Error> {
        let (rank, peer) = (self.base.rank(), status.peer as usize);
        let [call, other_call] = [status.ours, status.theirs].map(|tag| Call::from_tag(&Tag(tag)));
        let kind = match ending {
            Ending::Mismatch if call != other_call.numbered(call.sequence) => {
                ErrorKind::Mismatch { rank, call, other: peer, other_call }
            }
            Ending::Mismatch => {
                let what =
                    format!("piece {:#x} of {call} where {:#x} was due", status.theirs[3], status.ours[3]);
                ErrorKind::Corrupt { peer, what }
            }
            Ending::Length => {
                let (sent, expected) = (status.seen, status.wanted);
                ErrorKind::Length { sender: peer, sent, receiver: rank, expected }
            }
            Ending::Left => ErrorKind::PeerLeft { peer },
            Ending::Late => {
                let after = self.base.config().timeout;
                let said = self.grace(peer, call, after / 4)?;
                ErrorKind::Timeout { waiting_for: vec![(peer, said)], elsewhere: Vec::new(), after }
            }
            _ => ErrorKind::Aborted { by: rank, reason: "its kernels were told to end".to_owned() },
        };
        let step = (status.act != u32::MAX).then_some(status.act);
        Ok(Error::new(kind).seen_in(call, step))
    }

    /// What `peer` last said it was waiting in; if that is this call too, only after others had time to say more.
    fn grace(&self, peer: usize, call: Call, grace: Duration) -> Result<Option<Call>> {
        let begun = Instant::now();
        loop {
            let said = self.base.with(|engine| {
                engine.listen(Some(call))?;
                Ok(engine.last_word(peer))
            })?;
            if said != Some(call) || begun.elapsed() > grace {
                return Ok(said);
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

/// Lets a rank go, whose own launches may still be needed by others: its goodbye says that they are over.
pub(super) fn leave(shared: &Arc<Shared>) {
    if shared.progress.is_over() {
        return;
    }
    let leaving = Arc::clone(shared);
    let named = std::thread::Builder::new().name("unisono leave".to_owned());
    if named.spawn(move || leaving.linger()).is_err() {
        shared.linger();
    }
}

impl Shared {
    /// Looks after the last launch until it is over: its waits have an end.
    fn linger(&self) {
        while !self.progress.is_over() {
            // An error ends it.
            let _ = self.look();
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

/// How often the host looks after a launch.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// What a rank that left sent before may still be on its way for so long.
const LEAVE_GRACE: Duration = Duration::from_millis(100);
/// How often a rank that waits tells the others in what.
const CRY_EVERY: Duration = Duration::from_millis(250);
