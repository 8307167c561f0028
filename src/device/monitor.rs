//! The monitor thread of a rank, which handles control messages of peers and device errors while
//! kernels run.

use crate::device::Shared;
use crate::error::{Error, ErrorKind, Result};
use crate::op_desc::OpDesc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use unisono_cuda::device::{WaitReport, WaitState as Ending, exempt_thread_from_captures};
use unisono_transports::Tag;

/// Wakes the monitor thread or the proxy thread of a communicator.
#[derive(Default)]
pub(super) struct Notifier {
    state: Mutex<NotifyState>,
    changed: Condvar,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum NotifyState {
    #[default]
    Idle,
    /// An operation was enqueued.
    Notified,
    /// The communicator was dropped.
    Closed,
}

impl Notifier {
    /// Reports that an operation was enqueued.
    pub(super) fn notify(&self) {
        self.set(NotifyState::Notified);
    }

    /// Reports that the communicator was dropped.
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

    /// Returns true until the communicator is dropped.
    pub(super) fn is_open(&self) -> bool {
        *self.lock() != NotifyState::Closed
    }

    /// Waits until an operation is enqueued. Returns false if the communicator was dropped.
    pub(super) fn wait(&self) -> bool {
        let quiet = |mood: &mut NotifyState| *mood == NotifyState::Idle;
        let mood = self.changed.wait_while(self.lock(), quiet).unwrap_or_else(PoisonError::into_inner);
        *mood != NotifyState::Closed
    }

    /// Waits for at most `time`. Returns false if the communicator was dropped.
    pub(super) fn wait_timeout(&self, time: Duration) -> bool {
        let open = |mood: &mut NotifyState| *mood != NotifyState::Closed;
        let waited = self.changed.wait_timeout_while(self.lock(), time, open);
        *waited.unwrap_or_else(PoisonError::into_inner).0 != NotifyState::Closed
    }

    /// Records that no operation is running.
    pub(super) fn clear(&self) {
        let mut mood = self.lock();
        if *mood == NotifyState::Notified {
            *mood = NotifyState::Idle;
        }
    }
}

/// Starts a thread that monitors the communicator until it is dropped.
pub(super) fn spawn_monitor(shared: &Arc<Shared>) -> Result<JoinHandle<()>> {
    let (notifier, shared) = (Arc::clone(&shared.notifiers[0]), Arc::downgrade(shared));
    let named = std::thread::Builder::new().name("unisono watch".to_owned());
    let started = named.spawn(move || {
        exempt_thread_from_captures();
        while notifier.wait() && monitor(&notifier, &shared) {}
    });
    started.map_err(|error| Error::system("cannot start the monitor thread", error))
}

/// Polls until no operation is running. Returns false if the communicator was dropped.
fn monitor(notifier: &Notifier, shared: &Weak<Shared>) -> bool {
    let (begun, mut cried) = (Instant::now(), Duration::ZERO);
    loop {
        let Some(shared) = shared.upgrade() else { return false };
        // The state is cleared first, so that a notification during the check is not missed.
        notifier.clear();
        let idle = shared.launch_state.is_idle(&shared.endpoint);
        if shared.poll().is_err() || idle {
            return true;
        }
        // The operation goes on, so the next wait must not sleep until another one is enqueued.
        notifier.notify();
        if begun.elapsed() > cried + ANNOUNCE_INTERVAL {
            cried = begun.elapsed();
            shared.announce_wait();
        }
        // A thread that pauses must not keep the communicator alive.
        drop(shared);
        if !notifier.wait_timeout(POLL_INTERVAL) {
            return false;
        }
    }
}

impl Shared {
    /// Receives control messages of peers and checks for launches that ended early. An error ends
    /// the communicator.
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

    /// Ends waits for ranks that have left after their launches had completed. Messages that such a
    /// rank sent through the host may still arrive for some time.
    fn end_waits_for(&self, gone: &[bool]) {
        for peer in (0..gone.len()).filter(|&peer| gone[peer]) {
            let quiet = self.launch_state.quiet_since(peer).elapsed();
            if !self.endpoint.is_staged(peer) || quiet > FINALIZE_GRACE {
                self.endpoint.mark_finalized(peer);
            }
        }
    }

    /// Tells the other ranks in which operation this rank is waiting.
    fn announce_wait(&self) {
        if let Some(call) = self.launch_state.op() {
            // The next poll reports an error.
            let _ = self.host_comm.with_engine(|engine| {
                engine.announce_wait(call);
                Ok(())
            });
        }
    }

    /// Ends this communicator on all ranks because of an error on this rank.
    pub(super) fn fail(&self, error: Error, call: Option<OpDesc>) -> Error {
        self.launch_state.mark_failed();
        self.endpoint.abort();
        self.host_comm
            .with_engine(|engine| engine.fail_with(error, call))
            .err()
            .unwrap_or_else(|| Error::new(ErrorKind::Bug("an error that ended nothing".to_owned())))
    }

    /// Converts the wait report of a launch into an error.
    ///
    /// If this rank waited for another waiting rank, it first waits some time for the report of
    /// ranks nearer to the cause. Their report then arrives as the error.
    fn explain(&self, status: &WaitReport, ending: Ending) -> Result<Error> {
        let (rank, peer) = (self.host_comm.rank(), status.peer as usize);
        let [call, other_call] = [status.local_tag, status.remote_tag].map(|tag| OpDesc::from_tag(&Tag(tag)));
        let kind = match ending {
            Ending::Mismatch if call != other_call.with_sequence(call.sequence()) => {
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
            Ending::PeerFinalized => self.host_comm.with_engine(|engine| Ok(engine.departure(peer)))?,
            Ending::TimedOut => {
                let config = self.host_comm.config();
                let timeout = config.gpu.timeout;
                let said = self.wait_for_report(peer, call, timeout.min(config.timeout) / 4)?;
                ErrorKind::Timeout { waiting_for: vec![(peer, said)], elsewhere: Vec::new(), after: timeout }
            }
            _ => ErrorKind::abort_request(rank, "its kernels were told to end"),
        };
        let step = (status.instr != u32::MAX).then_some(status.instr);
        Ok(Error::new(kind).with_op(call, step))
    }

    /// Returns the operation in which `peer` last reported that it waits. If that is `call` itself,
    /// returns only after other ranks had time to report more.
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

/// Closes a rank whose launches may still be needed by peers. Its last message tells them that the
/// launches are complete.
pub(super) fn close(shared: &Arc<Shared>) {
    if shared.endpoint.is_idle() {
        return;
    }
    let leaving = Arc::clone(shared);
    // The caller does not wait for the launches, because they may wait for launches that the same
    // thread makes next: docs/decisions/0023-launches-are-counted-by-kernels.md.
    let named = std::thread::Builder::new().name("unisono leave".to_owned());
    let drain = move || {
        exempt_thread_from_captures();
        leaving.drain_launches();
    };
    if named.spawn(drain).is_err() {
        shared.drain_launches();
    }
}

impl Shared {
    /// Polls until the last launch is complete. Every wait of a launch has a time limit.
    fn drain_launches(&self) {
        let mut rounds = 0u32;
        while !self.endpoint.is_idle() {
            // An error ends the launch.
            let _ = self.poll();
            rounds = rounds.wrapping_add(1);
            if rounds.is_multiple_of(ROUNDS_PER_GPU_CHECK) && self.endpoint.check_gpu().is_err() {
                return;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

/// Interval at which the host polls a launch.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Number of polls between two queries of the driver, which reports if the GPU has failed.
const ROUNDS_PER_GPU_CHECK: u32 = 64;
/// Time for which messages of a rank that left may still arrive.
const FINALIZE_GRACE: Duration = Duration::from_millis(100);
/// Interval at which a waiting rank tells the others its operation.
const ANNOUNCE_INTERVAL: Duration = Duration::from_millis(250);
