//! Waits for other ranks, as passes record them.

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
