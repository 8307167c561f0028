//! The atomics of the shared-memory protocols: the standard library's, or loom's when they are
//! model-checked (`RUSTFLAGS="--cfg loom"`).

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};
