//! Waits for other ranks, as passes record them.

use std::cell::RefCell;
use std::time::{Duration, Instant};

/// Reason of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitKind {
    /// Operation within a layer.
    Layer,
    /// Message of another pipeline stage.
    Stage,
}

/// Wait for other ranks, between the visits of units or within them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitSpan {
    /// Reason.
    pub kind: WaitKind,
    /// Name of the operation.
    pub name: &'static str,
    /// Start of the wait.
    pub start: Instant,
    /// Duration of the wait.
    pub time: Duration,
}

/// Waits for other ranks that a pass has recorded.
#[derive(Debug, Default)]
pub struct Waits(RefCell<Vec<WaitSpan>>);

impl Waits {
    /// Runs an operation of a layer that waits for other ranks, and records the duration.
    pub fn time<R>(&self, name: &'static str, body: impl FnOnce() -> R) -> R {
        self.time_for(WaitKind::Layer, name, body)
    }

    /// Runs an operation that waits for other ranks for this reason, and records the duration.
    pub fn time_for<R>(&self, kind: WaitKind, name: &'static str, body: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let result = body();
        self.0.borrow_mut().push(WaitSpan { kind, name, start, time: start.elapsed() });
        result
    }

    /// Returns every wait since the last call.
    pub fn take(&self) -> Vec<WaitSpan> {
        self.0.take()
    }
}
