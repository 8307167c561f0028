//! Counts the launches that a rank has enqueued, and the launches that have ended.
//!
//! The last block of a launch writes the number of launches that have ended to page-locked memory.
//! So a thread that waits for kernels need not call the driver. The driver might refuse the call
//! during a capture, or let it wait for a launch of another thread.

use crate::Result;
use std::sync::atomic::{AtomicU64, Ordering};
use unisono_cuda::device::{Buffer, CaptureState, Completion, Gpu, MemoryRef, Pinned};

/// The counts of one endpoint.
pub(crate) struct LaunchCounter {
    enqueued: AtomicU64,
    /// Blocks of the running launch that have ended.
    blocks: Buffer<u32>,
    /// Launches that have ended, for the kernels,
    launches: Buffer<u64>,
    /// and for the host.
    done: Pinned<u64>,
}

impl LaunchCounter {
    /// Makes counts of no launch.
    pub(crate) fn new(gpu: &Gpu) -> Result<Self> {
        Ok(Self {
            enqueued: AtomicU64::new(0),
            blocks: gpu.alloc(1)?,
            launches: gpu.alloc(1)?,
            done: gpu.pin(1)?,
        })
    }

    /// Returns the counters that a launch gets. A graph of another library repeats its launches
    /// unseen by the host, so they are not counted.
    pub(crate) fn completion(&self, capture: CaptureState) -> Completion {
        if capture == CaptureState::Foreign {
            return Completion::NONE;
        }
        Completion {
            blocks: self.blocks.address() as *mut _,
            launches: self.launches.address() as *mut _,
            done: self.done.address() as *mut _,
        }
    }

    /// Counts launches that were enqueued, by a call or by a graph.
    pub(crate) fn add_enqueued(&self, launches: u64) {
        self.enqueued.fetch_add(launches, Ordering::AcqRel);
    }

    /// Returns the number of launches that were enqueued.
    pub(crate) fn enqueued(&self) -> u64 {
        self.enqueued.load(Ordering::Acquire)
    }

    /// Returns the number of launches that have ended.
    pub(crate) fn completed(&self) -> u64 {
        self.done.words()[0].load(Ordering::Acquire)
    }

    /// Returns handles to its memory.
    pub(crate) fn memory_refs(&self) -> [MemoryRef; 3] {
        [self.blocks.memory_ref(), self.launches.memory_ref(), self.done.memory_ref()]
    }
}
