//! The part of the launch state that the monitor and the proxy thread know.
//!
//! The lock of the communicator state is held across calls of the driver. A launch may wait there
//! for space in its queue, until a kernel ends. That kernel may wait for a message, or for the news
//! that a rank has left. The threads that deliver these therefore take another lock, under which
//! the driver is never called.

use crate::op_desc::OpDesc;
use crate::schedule::Rank;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use unisono_cuda::device::{Event, Stream};

/// The last launch, as far as its threads know it.
#[derive(Default)]
pub(super) struct LaunchState(Mutex<LaunchInfo>);

/// The stream of a launch, and the event that is recorded when it is done.
type LastLaunch = Option<(Stream, Arc<Event>)>;

#[derive(Default)]
struct LaunchInfo {
    /// True while something is being enqueued.
    enqueuing: bool,
    /// The last call, until it is known to be complete.
    op: Option<OpDesc>,
    /// The last launch that no graph records.
    last: LastLaunch,
    /// True if another library has captured a launch in a graph. The graph may be launched at any
    /// time.
    in_external_graph: bool,
    /// True if an error has ended the communicator.
    failed: bool,
    /// Time at which a message last passed through the host.
    last_moved: Option<Instant>,
    /// Times at which this rank learned that other ranks had left.
    finalized_at: HashMap<Rank, Instant>,
}

impl LaunchState {
    fn lock(&self) -> MutexGuard<'_, LaunchInfo> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the start of an enqueue. Its kernels may run before the call of the driver returns.
    pub(super) fn begin_enqueue(&self) {
        self.lock().enqueuing = true;
    }

    /// Marks the end of an enqueue, as a part of `call` if something was enqueued.
    pub(super) fn end_enqueue(&self, call: Option<OpDesc>) {
        let mut known = self.lock();
        known.enqueuing = false;
        known.op = call.or(known.op);
    }

    /// Returns the last call, until it is known to be complete.
    pub(super) fn op(&self) -> Option<OpDesc> {
        self.lock().op
    }

    /// Records the stream and the completion event of the last launch.
    pub(super) fn record_last(&self, stream: &Stream, done: Event) {
        self.lock().last = Some((stream.clone(), Arc::new(done)));
    }

    /// Returns the stream of the last launch and its completion event.
    pub(super) fn last(&self) -> LastLaunch {
        self.lock().last.clone()
    }

    /// Records that another library has captured a launch in a graph.
    pub(super) fn mark_external_graph(&self) {
        self.lock().in_external_graph = true;
    }

    /// Records that an error has ended the communicator. No more messages are moved for it.
    pub(super) fn mark_failed(&self) {
        self.lock().failed = true;
    }

    /// Returns true if the last launch that no graph records is complete. Queries the driver.
    pub(super) fn is_last_done(&self) -> bool {
        is_done(&self.last())
    }

    /// Returns true if no known operation is running, and forgets a call that is complete. Queries
    /// the driver.
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

    /// Returns true if the monitor knows of no running operation. Does not query the driver.
    pub(super) fn is_quiet(&self) -> bool {
        let known = self.lock();
        known.failed || !known.enqueuing && !known.in_external_graph && known.op.is_none()
    }

    /// Records that a message passed through the host.
    pub(super) fn record_move(&self, when: Instant) {
        self.lock().last_moved = Some(when);
    }

    /// Returns the time at which `peer` was first known to have left, or the time of the last
    /// message after that.
    pub(super) fn quiet_since(&self, peer: Rank) -> Instant {
        let mut known = self.lock();
        let parted = *known.finalized_at.entry(peer).or_insert_with(Instant::now);
        known.last_moved.map_or(parted, |moved| moved.max(parted))
    }
}

fn is_done(last: &LastLaunch) -> bool {
    // A GPU that has failed runs nothing more.
    last.as_ref().is_none_or(|(_, event)| event.is_done().unwrap_or(true))
}
