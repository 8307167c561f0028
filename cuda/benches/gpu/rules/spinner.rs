//! A kernel that runs until the host tells it to end, by page-locked memory alone: neither its
//! beginning nor its end needs a call of the driver.

use super::raw::{Driver, RawStream};
use crate::BenchResult;
use cudarc::driver::sys;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use unisono_cuda::device::{Channel, Deadline, Exchange, Fifo, WaitReport};

/// Memory of a launch. It is never freed: a kernel that hangs may still use it.
pub(super) struct Spinner {
    memory: *mut u8,
    arguments: Exchange,
}

// SAFETY: the memory is shared with the kernel only, by atomic words.
unsafe impl Send for Spinner {}
// SAFETY: as above.
unsafe impl Sync for Spinner {}

/// Places in the memory, in bytes.
const ABORT: usize = 128;
const CHANNEL: usize = 256;
const OUT: usize = 512;
const INTO: usize = 576;
const DATA: usize = 640;
const BYTES: usize = 1024;
/// The word that the kernel raises when it has sent, before it waits.
const SENT: usize = OUT + 32;

impl Spinner {
    /// Prepares a launch that sends 16 bytes to nobody and waits for an answer. With `spins` false,
    /// it does nothing.
    pub(super) fn new(driver: &Driver, spins: bool) -> BenchResult<Self> {
        let memory = driver.pin(BYTES)?.cast::<u8>();
        let address = |offset: usize| memory.wrapping_add(offset);
        let fifo = |offset: usize| Fifo {
            slots: address(offset),
            tail: address(offset + 32).cast(),
            head: address(offset + 40).cast(),
            slot_count: 1,
            slot_bytes: 16,
        };
        let channel = Channel {
            input: address(DATA),
            output: address(DATA + 64),
            bytes: if spins { 16 } else { 0 },
            out: fifo(OUT),
            into: fifo(INTO),
            step: 0,
            rank: 0,
            peer: 1,
        };
        // SAFETY: the memory has room there and is aligned, and no kernel uses it yet.
        unsafe { address(CHANNEL).cast::<Channel>().write(channel) };
        let deadline = Deadline {
            abort: address(ABORT).cast(),
            report: address(0).cast::<WaitReport>(),
            timeout_ns: 20_000_000_000,
            failed: std::ptr::null_mut(),
        };
        Ok(Self { memory, arguments: Exchange { channels: address(CHANNEL).cast(), deadline } })
    }

    pub(super) fn launch(&self, driver: &Driver, stream: RawStream, cooperative: bool) -> sys::CUresult {
        // SAFETY: the arguments are the kernel's, and their memory is never freed.
        unsafe { driver.exchange(stream, &self.arguments, cooperative) }
    }

    /// Returns true once the kernel runs.
    pub(super) fn has_begun(&self) -> bool {
        // SAFETY: the word is aligned and lives; only the kernel writes it.
        let sent = unsafe { AtomicU64::from_ptr(self.memory.wrapping_add(SENT).cast()) };
        sent.load(Ordering::Acquire) > 0
    }

    /// Waits until the kernel runs, and returns false if it does not in time.
    pub(super) fn wait_begun(&self, limit: Duration) -> bool {
        let begun = Instant::now();
        while !self.has_begun() && begun.elapsed() < limit {
            std::thread::sleep(Duration::from_micros(50));
        }
        self.has_begun()
    }

    /// Ends the kernel, or lets it end as soon as it begins.
    pub(super) fn end(&self) {
        // SAFETY: as above; only this writes it.
        unsafe { AtomicU32::from_ptr(self.memory.wrapping_add(ABORT).cast()) }.store(1, Ordering::Release);
    }
}
