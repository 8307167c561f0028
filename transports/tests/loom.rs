//! The shared-memory protocols under every interleaving of their threads, by loom.
//!
//! `RUSTFLAGS="--cfg loom"` replaces the atomics of the protocols. The library does not exist in
//! this configuration, because the operating system knows nothing of loom's atomics. So this crate
//! contains the sources of the protocols, and what they use of the library.

#![cfg(loom)]
// Each protocol is used in part only.
#![allow(dead_code, unused_imports, unreachable_pub, missing_docs)]

#[path = "../src/shm/eager.rs"]
mod eager;
#[path = "../src/shm/epoch.rs"]
mod epoch;
#[path = "../src/shm/seqlock.rs"]
mod seqlock;
#[path = "../src/shm/signal.rs"]
mod signal;
#[path = "../src/shm/spsc.rs"]
mod spsc;
#[path = "../src/sync/mod.rs"]
mod sync;
#[path = "../src/interface/tag.rs"]
mod tag;
#[path = "../src/shm/wake.rs"]
mod wake;

pub use tag::Tag;

/// As in the library.
pub const MAX_CONTROL_MSG_BYTES: usize = 1024;
