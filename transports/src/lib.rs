//! Transports that move bytes from one rank to another.
//!
//! A [`Fabric`] is the set of connections of one rank of one communicator:
//!
//! * a [`Link`] to every peer,
//! * a [`Window`], if every rank can access the memory of every other rank,
//! * a [`ControlChannel`] for small messages that are separate from the data,
//! * a [`WaitStrategy`] with a clock.
//!
//! Four transports make fabrics: [`threads`], [`shm`], [`tcp`] and [`sim`]. [`loopback`] makes
//! fabrics of TCP among the threads of one process. No transport knows the collective operations.

// Loom compiles only the shared-memory protocols, in `tests/loom.rs`.
#![cfg(not(loom))]

pub mod control;
mod fabric;
#[cfg(feature = "gpu")]
pub mod gpu;
mod interface;
pub mod loopback;
pub mod net;
pub mod rng;
pub mod secure;
pub mod shm;
pub mod sim;
#[doc(hidden)]
pub mod sync;
pub mod sys;
pub mod tcp;
pub mod testing;
pub mod text;
pub mod threads;
pub mod wait;

pub use fabric::*;
pub use interface::*;
pub use shm::eager::SlotClass;
pub use shm::{HeapAccess, HeapAllocation, HeapExposure, SymmetricHeap, Window};

// Numbers and elements travel in the byte order of memory, so it must be the same on all ranks.
// Sizes must have 64 bits.
const _: () = assert!(
    cfg!(all(target_endian = "little", target_pointer_width = "64")),
    "unisono runs on little-endian processors of 64 bits"
);
