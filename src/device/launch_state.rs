//! The part of the launch state that the monitor and the proxy thread know.
//!
//! The lock of the communicator state is held across calls of the driver. A launch may wait there
//! for space in its queue, until a kernel ends. That kernel may wait for a message, or for the news
//! that a rank has left. The threads that deliver these therefore take another lock, under which
//! the driver is never called.

use crate::op_desc::OpDesc;
use crate::schedule::Rank;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use unisono_cuda::device::Stream;
use unisono_transports::gpu::Endpoint;

/// The last launch, as far as its threads know it.
#[derive(Default)]
pub(super) struct LaunchState(Mutex<LaunchInfo>);

#[derive(Default)]
struct LaunchInfo {
    /// True while something is being enqueued.
    enqueuing: bool,
    /// The last call, until it is known to be complete.
    op: Option<OpDesc>,
    /// The stream of the last launch that no graph records.
    last: Option<Stream>,
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
        // If nothing was enqueued, the call before may still run, so it stays the last one.
        known.op = call.or(known.op);
    }

    /// Returns the last call, until it is known to be complete.
    pub(super) fn op(&self) -> Option<OpDesc> {
        self.lock().op
    }

    /// Records the stream of the last launch.
    pub(super) fn record_last(&self, stream: &Stream) {
        let mut known = self.lock();
        if known.last.as_ref() != Some(stream) {
            known.last = Some(stream.clone());
        }
    }

    /// Returns the stream of the last launch, unless it is `stream`.
    pub(super) fn last_other_than(&self, stream: &Stream) -> Option<Stream> {
        self.lock().last.as_ref().filter(|last| *last != stream).cloned()
    }

    /// Records that another library has captured a launch in a graph.
    pub(super) fn mark_external_graph(&self) {
        self.lock().in_external_graph = true;
    }

    /// Records that an error has ended the communicator. No more messages are moved for it.
    pub(super) fn mark_failed(&self) {
        self.lock().failed = true;
    }

    /// Returns true if no known operation is running, and forgets a call that is complete. Does not
    /// call the driver.
    pub(super) fn is_idle(&self, endpoint: &Endpoint) -> bool {
        let mut known = self.lock();
        // An enqueue marks its end after it has counted its launch, so the counts are read last.
        let idle = !known.enqueuing && !known.in_external_graph && endpoint.is_idle();
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
