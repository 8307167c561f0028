//! Where connections stay until they have proved themselves, each on a thread of its own: one that says
//! nothing holds up nobody.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// Guests who are being heard, and what became of those who have been.
pub(super) struct Porch<T> {
    heard: Receiver<T>,
    door: Sender<T>,
    /// Held by every guest's thread: its count says how many there are.
    inside: Arc<()>,
}

impl<T: Send + 'static> Porch<T> {
    pub(super) fn new() -> Self {
        let (door, heard) = channel();
        Self { heard, door, inside: Arc::new(()) }
    }

    /// Whether another guest may come in; until then, connections wait in the listener's backlog.
    pub(super) fn has_room(&self) -> bool {
        Arc::strong_count(&self.inside) <= GUESTS_MAX
    }

    /// Hears one guest. `hear` gets the moment by which it must have ended.
    pub(super) fn enter(&self, deadline: Instant, hear: impl FnOnce(Instant) -> T + Send + 'static) {
        let patience = deadline.min(Instant::now() + STRANGER_TIME_MAX);
        let (door, inside) = (self.door.clone(), Arc::clone(&self.inside));
        let guest = std::thread::Builder::new().name("unisono guest".to_owned()).stack_size(STACK_BYTES);
        let thread = guest.spawn(move || {
            // Nobody listens any more when the meeting is over.
            let _ = door.send(hear(patience));
            drop(inside);
        });
        if let Err(error) = thread {
            // The connection is closed with the closure; whoever it was may try again.
            tracing::warn!("no thread for a connection: {error}");
        }
    }

    /// What became of the next guest, if that is known within `time`.
    pub(super) fn next(&self, time: Duration) -> Option<T> {
        self.heard.recv_timeout(time).ok()
    }
}

/// How long one connection may take to prove itself.
const STRANGER_TIME_MAX: Duration = Duration::from_secs(2);
/// Guests at once: enough for a port scan and all ranks of a large host.
const GUESTS_MAX: usize = 512;
/// A handshake needs little.
const STACK_BYTES: usize = 128 << 10;
