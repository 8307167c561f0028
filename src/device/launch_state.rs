//! What the threads that watch and move messages know of the last launch.
//!
//! The lock of the state is held across calls of the driver, and a launch may wait there for room in its queue: until a kernel ends that
//! waits for a message, or for word of a rank that is gone. So whoever brings these takes another lock, under which the driver is never called.

use crate::op_desc::OpDesc;
use crate::schedule::Rank;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use unisono_cuda::device::{Event, Stream};

/// The last launch, as far as its threads know it.
#[derive(Default)]
pub(super) struct LaunchState(Mutex<LaunchInfo>);

/// The stream of a launch, and when it is done.
type LastLaunch = Option<(Stream, Arc<Event>)>;

#[derive(Default)]
struct LaunchInfo {
    /// Something is being enqueued just now.
    enqueuing: bool,
    /// The last call, until it is known to be over.
    op: Option<OpDesc>,
    /// Of the last launch that no graph records.
    last: LastLaunch,
    /// Whether another library has made a graph of a launch: it may be repeated at any time.
    in_external_graph: bool,
    /// An error has ended the communicator.
    failed: bool,
    /// When a message last came or went by way of the host.
    last_moved: Option<Instant>,
    /// Since when it is known of ranks that they have left.
    finalized_at: HashMap<Rank, Instant>,
}

impl LaunchState {
    fn lock(&self) -> MutexGuard<'_, LaunchInfo> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something will be enqueued: its kernels may run before that call of the driver returns.
    pub(super) fn begin_enqueue(&self) {
        self.lock().enqueuing = true;
    }

    /// It has been enqueued, as a part of this call, or was not.
    pub(super) fn end_enqueue(&self, call: Option<OpDesc>) {
        let mut known = self.lock();
        known.enqueuing = false;
        known.op = call.or(known.op);
    }

    /// The last call, until it is known to be over.
    pub(super) fn op(&self) -> Option<OpDesc> {
        self.lock().op
    }

    /// What was launched last is in this stream, and done when the event comes.
    pub(super) fn record_last(&self, stream: &Stream, done: Event) {
        self.lock().last = Some((stream.clone(), Arc::new(done)));
    }

    /// Where the last launch is, and when it is done.
    pub(super) fn last(&self) -> LastLaunch {
        self.lock().last.clone()
    }

    /// Another library has made a graph of a launch.
    pub(super) fn mark_external_graph(&self) {
        self.lock().in_external_graph = true;
    }

    /// An error has ended the communicator: nothing is moved for it any more.
    pub(super) fn mark_failed(&self) {
        self.lock().failed = true;
    }

    /// Whether the last launch that no graph records is over. Asks the driver.
    pub(super) fn is_last_done(&self) -> bool {
        is_done(&self.last())
    }

    /// Whether nothing is under way as far as is known now; a call that is over is forgotten. Asks the driver.
    pub(super) fn is_idle(&self) -> bool {
        let last = self.last();
        let over = is_done(&last);
        let mut known = self.lock();
        let event = |last: &LastLaunch| last.as_ref().map(|(_, event)| Arc::as_ptr(event));
        let idle = over && !known.enqueuing && !known.in_external_graph && event(&known.last) == event(&last);
        if idle {
            known.op = None;
        }
        idle
    }

    /// Whether nothing is under way as far as the watch has seen: the driver is not asked.
    pub(super) fn is_quiet(&self) -> bool {
        let known = self.lock();
        known.failed || !known.enqueuing && !known.in_external_graph && known.op.is_none()
    }

    /// A message came or went by way of the host.
    pub(super) fn record_move(&self, when: Instant) {
        self.lock().last_moved = Some(when);
    }

    /// When `peer` was first known to have left, or a message last moved after that.
    pub(super) fn quiet_since(&self, peer: Rank) -> Instant {
        let mut known = self.lock();
        let parted = *known.finalized_at.entry(peer).or_insert_with(Instant::now);
        known.last_moved.map_or(parted, |moved| moved.max(parted))
    }
}

fn is_done(last: &LastLaunch) -> bool {
    // A GPU that has failed does nothing any more.
    last.as_ref().is_none_or(|(_, event)| event.is_done().unwrap_or(true))
}
