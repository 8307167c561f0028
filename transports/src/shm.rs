//! Links and windows in memory that ranks share. The ranks can be processes or threads.
//!
//! Every rank owns one [`Segment`](crate::sys::segment::Segment) and maps the segments of all
//! ranks. The segment of a rank holds its signal blocks, the FIFOs from every rank *to* it, and its
//! window. See [`Layout`].

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
