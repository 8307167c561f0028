//! The proxy thread, which moves messages through host memory between GPUs that cannot reach each
//! other.
//!
//! The thread does not call the driver while an operation runs. It takes no lock under which other
//! threads call the driver, because such a call may wait for a message that the proxy must deliver.
//! It calls the driver only when it starts, and when it drops the last handle of a communicator,
//! after the operations.

use crate::communicator::Communicator;
use crate::device::Shared;
use crate::device::monitor::Notifier;
use crate::error::{Error, Result};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use unisono_cuda::device::exempt_thread_from_captures;
use unisono_transports::gpu::HostStaging;
use unisono_transports::sys::affinity::pin_near;

/// Starts a thread that moves messages over `carrier`'s links until the communicator is dropped.
pub(super) fn spawn_proxy(shared: &Arc<Shared>, carrier: Communicator) -> Result<JoinHandle<()>> {
    let (notifier, stages) = (Arc::clone(&shared.notifiers[1]), shared.endpoint.staged_peers());
    let pump = Proxy { relay_comm: carrier, staging: stages, shared: Arc::downgrade(shared) };
    let named = std::thread::Builder::new().name("unisono pump".to_owned());
    let node = shared.endpoint.memory().gpu().info().numa_node().ok().flatten();
    let started = named.spawn(move || {
        exempt_thread_from_captures();
        // The staging memory lies on this NUMA node, near the GPU that reads it.
        if let Some(node) = node {
            pin_near(node);
        }
        while notifier.wait() && pump.run(&notifier) {}
        pump.drain();
    });
    started.map_err(|error| Error::system("cannot start the proxy thread", error))
}

struct Proxy {
    relay_comm: Communicator,
    /// Staging buffers, each with the peer whose messages it holds.
    staging: Vec<(usize, Arc<Mutex<HostStaging>>)>,
    shared: Weak<Shared>,
}

impl Proxy {
    /// Polls all staging buffers until nothing is in progress. Returns false if the communicator
    /// was dropped.
    fn run(&self, notifier: &Notifier) -> bool {
        let mut quiet_since = Instant::now();
        loop {
            // The state is cleared first, so that a notification during the poll is not missed.
            notifier.clear();
            let Some(shared) = self.shared.upgrade() else { return false };
            let idle = shared.launch_state.is_quiet();
            match self.poll() {
                Ok(true) => {
                    quiet_since = Instant::now();
                    shared.launch_state.record_move(quiet_since);
                }
                Ok(false) if idle && !self.has_pending() => return true,
                Ok(false) => {}
                Err(error) => {
                    let (error, call) = (shared.host_comm.attach_rank(error), shared.launch_state.op());
                    shared.fail(error, call);
                    return true;
                }
            }
            drop(shared);
            notifier.notify();
            if !notifier.wait_timeout(idle_pause(quiet_since.elapsed())) {
                return false;
            }
        }
    }

    /// Sends the last messages of this rank, as long as their receivers accept them.
    fn drain(&self) {
        let begun = Instant::now();
        while self.has_pending() && begun.elapsed() < self.relay_comm.config().timeout && self.poll().is_ok()
        {
            std::thread::sleep(PAUSE_MIN);
        }
    }

    fn poll(&self) -> Result<bool> {
        self.relay_comm.with_engine(|engine| {
            let mut moved = false;
            for (peer, stage) in &self.staging {
                if let Some(Some(link)) = engine.links().get_mut(*peer) {
                    moved |= lock(stage).poll(&mut **link)?;
                }
            }
            Ok(moved)
        })
    }

    fn has_pending(&self) -> bool {
        self.staging.iter().any(|(_, stage)| lock(stage).has_pending())
    }
}

fn lock(stage: &Mutex<HostStaging>) -> MutexGuard<'_, HostStaging> {
    stage.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the pause before the next poll: a small part of the time without messages.
fn idle_pause(quiet: Duration) -> Duration {
    if quiet < SPIN_TIME { Duration::ZERO } else { (quiet / 16).clamp(PAUSE_MIN, PAUSE_MAX) }
}

/// Time after a message during which the thread polls without a pause.
const SPIN_TIME: Duration = Duration::from_micros(200);
/// Shortest pause between polls after that time.
const PAUSE_MIN: Duration = Duration::from_micros(100);
const PAUSE_MAX: Duration = Duration::from_millis(5);
