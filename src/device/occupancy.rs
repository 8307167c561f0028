//! Reservation of thread blocks that wait for each other. All of them must run at once, or none may
//! start.

use crate::error::{Error, ErrorKind, Result};
use std::sync::{Mutex, PoisonError};
use unisono_cuda::device::Gpu;

/// Blocks that the communicators of this process have reserved on each GPU, by its number.
static RESERVED: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// A block reservation of one communicator, released when it is dropped.
#[derive(Debug)]
pub(super) struct BlockReservation {
    ordinal: usize,
    blocks: usize,
}

/// Returns the number of blocks on `gpu` that communicators of this process have reserved.
pub(super) fn reserved_blocks(gpu: &Gpu) -> usize {
    with_reserved(gpu.ordinal(), |taken| *taken)
}

impl BlockReservation {
    /// Reserves `blocks` blocks of the `room` that the GPU has for this process.
    ///
    /// # Errors
    /// If too few blocks are free.
    pub(super) fn reserve(gpu: &Gpu, blocks: usize, room: usize) -> Result<Self> {
        let ordinal = gpu.ordinal();
        with_reserved(ordinal, |taken| {
            if *taken + blocks > room {
                let text = format!(
                    "{gpu:?} runs {room} blocks at once for this process, of which other communicators hold {taken}: \
                     {blocks} more would wait for each other for ever; drop a communicator, or join the first \
                     ones with fewer channels (UNISONO_GPU_CHANNELS)"
                );
                return Err(Error::new(ErrorKind::Unsupported(text)));
            }
            *taken += blocks;
            Ok(Self { ordinal, blocks })
        })
    }
}

impl Drop for BlockReservation {
    fn drop(&mut self) {
        with_reserved(self.ordinal, |taken| *taken -= self.blocks);
    }
}

fn with_reserved<R>(ordinal: usize, change: impl FnOnce(&mut usize) -> R) -> R {
    let mut reserved = RESERVED.lock().unwrap_or_else(PoisonError::into_inner);
    if reserved.len() <= ordinal {
        reserved.resize(ordinal + 1, 0);
    }
    change(&mut reserved[ordinal])
}
