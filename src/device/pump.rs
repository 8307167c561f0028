//! Moves what GPUs that do not reach each other put into the host's memory.
//!
//! Its thread never calls the driver, nor takes a lock under which others do: what they wait for there may be what it brings.

use super::Shared;
use super::watch::Bell;
use crate::communicator::Communicator;
use crate::error::{Error, ErrorKind, Result};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use unisono_transports::affinity::stay_near;
use unisono_transports::p2p::Stage;

/// Carries messages over `carrier`'s links on a thread of its own, until the communicator is dropped.
pub(super) fn pump(shared: &Arc<Shared>, carrier: Communicator) -> Result<JoinHandle<()>> {
    let (bell, stages) = (Arc::clone(&shared.bells[1]), shared.endpoint.stages());
    let pump = Pump { carrier, stages, shared: Arc::downgrade(shared) };
    let named = std::thread::Builder::new().name("unisono pump".to_owned());
    let node = shared.endpoint.arena().gpu().site().numa_node().ok().flatten();
    let started = named.spawn(move || {
        // What it copies lies there, and is the GPU's to read.
        if let Some(node) = node {
            stay_near(node);
        }
        while bell.wait() && pump.rounds(&bell) {}
        pump.drain();
    });
    started.map_err(|error| Error::new(ErrorKind::System(format!("a thread to move messages: {error}"))))
}

struct Pump {
    carrier: Communicator,
    /// By the rank that they go to and come from.
    stages: Vec<(usize, Arc<Mutex<Stage>>)>,
    shared: Weak<Shared>,
}

impl Pump {
    /// Gives all stages their turns until nothing is under way; false: the communicator is gone.
    fn rounds(&self, bell: &Bell) -> bool {
        let mut quiet_since = Instant::now();
        loop {
            // Hushed first, so that what is enqueued meanwhile is not missed.
            bell.hush();
            let Some(shared) = self.shared.upgrade() else { return false };
            let idle = shared.progress.is_quiet();
            match self.turn() {
                Ok(true) => {
                    quiet_since = Instant::now();
                    shared.progress.moved(quiet_since);
                }
                Ok(false) if idle && !self.is_waiting() => return true,
                Ok(false) => {}
                Err(error) => {
                    let (error, call) = (shared.base.place(error), shared.progress.call());
                    shared.end(error, call);
                    return true;
                }
            }
            drop(shared);
            bell.ring();
            if !bell.pause(pause(quiet_since.elapsed())) {
                return false;
            }
        }
    }

    /// Brings the last messages of this rank on their way, as long as their receivers take them.
    fn drain(&self) {
        let begun = Instant::now();
        while self.is_waiting() && begun.elapsed() < self.carrier.config().timeout && self.turn().is_ok() {
            std::thread::sleep(PAUSE);
        }
    }

    fn turn(&self) -> Result<bool> {
        self.carrier.with(|engine| {
            let mut moved = false;
            for (peer, stage) in &self.stages {
                if let Some(Some(link)) = engine.links().get_mut(*peer) {
                    moved |= lock(stage).turn(&mut **link)?;
                }
            }
            Ok(moved)
        })
    }

    fn is_waiting(&self) -> bool {
        self.stages.iter().any(|(_, stage)| lock(stage).is_waiting())
    }
}

fn lock(stage: &Mutex<Stage>) -> MutexGuard<'_, Stage> {
    stage.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long to wait before the next look, where nothing has come for so long: a small part of that.
fn pause(quiet: Duration) -> Duration {
    if quiet < HOT { Duration::ZERO } else { (quiet / 16).clamp(PAUSE, PAUSE_MAX) }
}

/// For so long after a message another one is looked for without a pause,
const HOT: Duration = Duration::from_micros(200);
/// and then with one.
const PAUSE: Duration = Duration::from_micros(100);
const PAUSE_MAX: Duration = Duration::from_millis(5);
