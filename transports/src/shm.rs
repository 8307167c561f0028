//! Links and windows in memory that ranks share: between processes, and between threads.
//!
//! Every rank owns one [`Segment`](crate::sys::segment::Segment) and maps those of all ranks. Its segment holds
//! its signal blocks, the FIFOs *into* it from every rank, and its window: see [`Layout`].

pub(crate) mod eager;
pub(crate) mod epoch;
pub(crate) mod seqlock;
pub(crate) mod signal;
pub(crate) mod spsc;
pub(crate) mod wake;

mod connect;
mod exposure;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod heap;
mod layout;
mod link;
pub mod liveness;
mod mailbox;
mod private_pages;
pub(crate) mod raw_memory;
pub mod sleep;
mod window;

pub use connect::*;
pub use exposure::{HeapAccess, HeapExposure};
pub use heap::{HeapAllocation, SymmetricHeap};
pub use layout::Layout;
pub use mailbox::ControlMailboxes;
pub use window::Window;
