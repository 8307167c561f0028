//! Links and windows in memory that ranks share: between processes, and between threads.
//!
//! Every rank owns one [`Segment`] and maps everybody's. Its segment holds the
//! boards with its signals, the FIFOs *into* it from every rank, and its window:
//! see [`Layout`].

pub(crate) mod eager;
pub(crate) mod seqlock;
pub(crate) mod signal;
pub(crate) mod spsc;

#[cfg(not(loom))]
mod connect;
#[cfg(all(any(test, feature = "fuzzing"), not(loom)))]
pub(crate) mod fuzzing;
#[cfg(not(loom))]
mod heap;
#[cfg(not(loom))]
mod layout;
#[cfg(not(loom))]
mod lazy_part;
#[cfg(not(loom))]
mod link;
#[cfg(not(loom))]
pub mod liveness;
#[cfg(not(loom))]
mod mailbox;
#[cfg(not(loom))]
pub mod segment;
#[cfg(not(loom))]
mod window;

#[cfg(not(loom))]
pub use connect::*;
#[cfg(not(loom))]
pub use heap::{HeapAllocation, SymmetricHeap};
#[cfg(not(loom))]
pub use layout::Layout;
#[cfg(not(loom))]
pub use mailbox::ControlMailboxes;
#[cfg(not(loom))]
pub use window::Window;
