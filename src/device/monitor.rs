//! What a rank's host does while its kernels work: news of the others, and errors of the device.

use crate::device::Shared;
use crate::error::{Error, ErrorKind, Result};
use crate::op_desc::OpDesc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use unisono_cuda::device::{WaitReport, WaitState as Ending};
use unisono_transports::Tag;

/// Wakes the thread that watches over a communicator.
#[derive(Default)]
pub(super) struct Notifier {
    state: Mutex<NotifyState>,
    changed: Condvar,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum NotifyState {
    #[default]
    Idle,
    /// Something was enqueued.
    Notified,
    /// The communicator is gone.
    Closed,
}

impl Notifier {
    /// Something was enqueued.
    pub(super) fn notify(&self) {
        self.set(NotifyState::Notified);
    }

    /// There is nothing to watch any more.
    pub(super) fn close(&self) {
        self.set(NotifyState::Closed);
    }

    fn set(&self, mood: NotifyState) {
        let mut now = self.lock();
        if *now != NotifyState::Closed && *now != mood {
            *now = mood;
            self.changed.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, NotifyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there may be something to watch.
    pub(super) fn is_open(&self) -> bool {
        *self.lock() != NotifyState::Closed
    }

    /// Waits until something is enqueued; false: never.
    pub(super) fn wait(&self) -> bool {
        let quiet = |mood: &mut NotifyState| *mood == NotifyState::Idle;
        let mood = self.changed.wait_while(self.lock(), quiet).unwrap_or_else(PoisonError::into_inner);
        *mood != NotifyState::Closed
    }

    /// Waits for so long; false: the communicator is gone.
    pub(super) fn wait_timeout(&self, time: Duration) -> bool {
        let open = |mood: &mut NotifyState| *mood != NotifyState::Closed;
        let waited = self.changed.wait_timeout_while(self.lock(), time, open);
        *waited.unwrap_or_else(PoisonError::into_inner).0 != NotifyState::Closed
    }

    /// Nothing is under way.
    pub(super) fn clear(&self) {
        let mut mood = self.lock();
        if *mood == NotifyState::Notified {
            *mood = NotifyState::Idle;
        }
    }
}

/// Watches over the communicator on a thread of its own until it is dropped.
pub(super) fn spawn_monitor(shared: &Arc<Shared>) -> Result<()> {
    let (bell, shared) = (Arc::clone(&shared.notifiers[0]), Arc::downgrade(shared));
    let named = std::thread::Builder::new().name("unisono watch".to_owned());
    let started = named.spawn(move || while bell.wait() && monitor(&bell, &shared) {});
    started.map(drop).map_err(|error| Error::system("cannot start the monitor thread", error))
}

/// Looks again and again until nothing is under way; false: the communicator is gone.
fn monitor(bell: &Notifier, shared: &Weak<Shared>) -> bool {
    let (begun, mut cried) = (Instant::now(), Duration::ZERO);
    loop {
        let Some(shared) = shared.upgrade() else { return false };
        // Hushed first, so that what is enqueued meanwhile is not missed.
        bell.clear();
        let idle = shared.launch_state.is_idle();
        if shared.poll().is_err() || idle {
            return true;
        }
        bell.notify();
        if begun.elapsed() > cried + ANNOUNCE_INTERVAL {
            cried = begun.elapsed();
            shared.announce_wait();
        }
        drop(shared);
        if !bell.wait_timeout(POLL_INTERVAL) {
            return false;
        }
    }
}

impl Shared {
    /// Hears what the others have to say and looks whether a launch ended early. An error ends everything.
    pub(super) fn poll(&self) -> Result<()> {
        let call = self.launch_state.op();
        let status = self.endpoint.wait_report();
        let ending = status.state().unwrap_or(Ending::Claimed);
        let heard =
            self.host_comm.with_engine(|engine| engine.poll_events(call).map(|()| engine.failed_ranks()));
        let gone = heard.inspect_err(|_| {
            self.launch_state.mark_failed();
            self.endpoint.abort();
        })?;
        self.end_waits_for(&gone);
        match ending {
            Ending::Ok | Ending::Claimed => Ok(()),
            _ => Err(self.fail(self.host_comm.attach_rank(self.explain(&status, ending)?), call)),
        }
    }

    /// Ends waits for ranks that have left, whose launches were over by then. What one has sent by way of the host may
    /// be under way for a while.
    fn end_waits_for(&self, gone: &[bool]) {
        for peer in (0..gone.len()).filter(|&peer| gone[peer]) {
            let quiet = self.launch_state.quiet_since(peer).elapsed();
            if !self.endpoint.is_staged(peer) || quiet > FINALIZE_GRACE {
                self.endpoint.mark_finalized(peer);
            }
        }
    }

    /// Tells the others in what this rank is waiting.
    fn announce_wait(&self) {
        if let Some(call) = self.launch_state.op() {
            // An error is seen by the next look.
            let _ = self.host_comm.with_engine(|engine| {
                engine.announce_wait(call);
                Ok(())
            });
        }
    }

    /// Ends this communicator on all ranks because of an error seen here.
    pub(super) fn fail(&self, error: Error, call: Option<OpDesc>) -> Error {
        self.launch_state.mark_failed();
        self.endpoint.abort();
        self.host_comm
            .with_engine(|engine| engine.fail_with(error, call))
            .err()
            .unwrap_or_else(|| Error::new(ErrorKind::Bug("an error that ended nothing".to_owned())))
    }

    /// What the record of a launch means. One that waited for a rank which itself waits leaves it to those nearer to the
    /// cause to name it, for a while: their word then comes as the error.
    fn explain(&self, status: &WaitReport, ending: Ending) -> Result<Error> {
        let (rank, peer) = (self.host_comm.rank(), status.peer as usize);
        let [call, other_call] = [status.local_tag, status.remote_tag].map(|tag| OpDesc::from_tag(&Tag(tag)));
        let kind = match ending {
            Ending::Mismatch if call != other_call.with_sequence(call.sequence) => {
                ErrorKind::Mismatch { rank, op: call, other: peer, other_op: other_call }
            }
            Ending::Mismatch => {
                let what = format!(
                    "slice {:#x} of {call} where {:#x} was expected",
                    status.remote_tag[3], status.local_tag[3]
                );
                ErrorKind::ProtocolViolation { peer, what }
            }
            Ending::LengthMismatch => {
                let (sent, expected) = (status.seen, status.wanted);
                ErrorKind::CountMismatch { sender: peer, sent, receiver: rank, expected }
            }
            Ending::PeerFinalized => ErrorKind::PeerFinalized { peer },
            Ending::TimedOut => {
                let after = self.host_comm.config().timeout;
                let said = self.wait_for_report(peer, call, after / 4)?;
                ErrorKind::Timeout { waiting_for: vec![(peer, said)], elsewhere: Vec::new(), after }
            }
            _ => ErrorKind::Aborted { by: rank, reason: "its kernels were told to end".to_owned() },
        };
        let step = (status.instr != u32::MAX).then_some(status.instr);
        Ok(Error::new(kind).with_op(call, step))
    }

    /// What `peer` last said it was waiting in; if that is this call too, only after others had time to say more.
    fn wait_for_report(&self, peer: usize, call: OpDesc, grace: Duration) -> Result<Option<OpDesc>> {
        let begun = Instant::now();
        loop {
            let said = self.host_comm.with_engine(|engine| {
                engine.poll_events(Some(call))?;
                Ok(engine.last_report(peer))
            })?;
            if said != Some(call) || begun.elapsed() > grace {
                return Ok(said);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

/// Lets a rank go, whose own launches may still be needed by others: its goodbye says that they are over.
pub(super) fn close(shared: &Arc<Shared>) {
    if shared.launch_state.is_last_done() {
        return;
    }
    let leaving = Arc::clone(shared);
    let named = std::thread::Builder::new().name("unisono leave".to_owned());
    if named.spawn(move || leaving.drain_launches()).is_err() {
        shared.drain_launches();
    }
}

impl Shared {
    /// Looks after the last launch until it is over: its waits have an end.
    fn drain_launches(&self) {
        while !self.launch_state.is_last_done() {
            // An error ends it.
            let _ = self.poll();
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

/// How often the host looks after a launch.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// What a rank that left sent before may still be on its way for so long.
const FINALIZE_GRACE: Duration = Duration::from_millis(100);
/// How often a rank that waits tells the others in what.
const ANNOUNCE_INTERVAL: Duration = Duration::from_millis(250);
