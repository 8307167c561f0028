//! A pool of free memory. A block waits until its last use is over, and then serves the next
//! request of its size or a little less.
//!
//! A stream reuses memory at once if only this stream allocated
//! ([`Stream::alloc`](super::Stream::alloc)) and used it: new work in the stream comes after the
//! old. So a host that runs far ahead of its GPU needs no more memory than one that waits.
//!
//! To free memory, the driver waits for everything that runs on the GPU. This includes kernels that
//! wait for work this thread would enqueue next. So memory is freed only when there is no room
//! left, or on request.

use super::capture_mode::RelaxedCapture;
use super::error::{GpuError, IntoGpuResult};
use super::gpu::lock;
use super::mark::Mark;
use super::stream::Queue;
use cudarc::driver::{result, sys, sys::CUresult};
use std::sync::{Arc, Mutex};

/// Place of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryKind {
    Device,
    /// Page-locked.
    Host,
    /// Another process's.
    Imported,
}

impl MemoryKind {
    /// Returns true if the memory would suffice once everything else is freed.
    fn could_hold(self, bytes: usize) -> bool {
        self != MemoryKind::Device || result::mem_get_info().is_ok_and(|(_, total)| bytes <= total)
    }
}

/// Memory as the driver gave it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    pub(crate) kind: MemoryKind,
    pub(crate) address: u64,
    pub(crate) bytes: usize,
    /// Another process may have the block open: it is neither reused nor freed.
    pub(crate) exported: bool,
    /// The block was allocated in the order of a stream, and holds data only, which kernels may
    /// find overwritten.
    pub(crate) stream_ordered: bool,
}

/// Free blocks of a GPU.
#[derive(Default)]
pub(crate) struct Pool(Mutex<State>);

#[derive(Default)]
struct State {
    retired: Vec<Retired>,
    unused: Vec<Block>,
}

/// A block that work enqueued earlier may still use.
struct Retired {
    block: Block,
    uses: Vec<Usage>,
}

/// A use of memory: it ends when all work that was enqueued in a stream until then is done.
pub(crate) struct Usage {
    queue: Arc<Queue>,
    /// `None` while the stream is captured, or another thread enqueues in it.
    end: Option<Mark>,
}

impl Pool {
    /// Memory with whatever is in it; the GPU's context is current.
    pub(crate) fn alloc(&self, kind: MemoryKind, bytes: usize) -> Result<Block, GpuError> {
        let _exempt = RelaxedCapture::enter();
        if let Some(block) = self.find(kind, bytes) {
            return Ok(block);
        }
        match allocate(kind, bytes) {
            Err(error) if error.is(CUresult::CUDA_ERROR_OUT_OF_MEMORY) && kind.could_hold(bytes) => {
                self.trim()?;
                allocate(kind, bytes)
            }
            answer => answer,
        }
    }

    /// Memory with whatever is in it, for a stream whose work uses it next.
    pub(crate) fn alloc_stream_ordered(&self, queue: &Arc<Queue>, bytes: usize) -> Result<Block, GpuError> {
        // A graph may run on another stream.
        let again = (!queue.is_captured()).then(|| lock(&self.0).reuse_in_stream(queue, bytes)).flatten();
        let block = again.map_or_else(|| self.alloc(MemoryKind::Device, bytes), Ok)?;
        Ok(Block { stream_ordered: true, ..block })
    }

    fn find(&self, kind: MemoryKind, bytes: usize) -> Option<Block> {
        let mut state = lock(&self.0);
        state.sweep();
        let fits = |block: &Block| block.kind == kind && !block.exported && block.has_room_for(bytes);
        let fitting = state.unused.iter().enumerate().filter(|(_, block)| fits(block));
        let (found, _) = fitting.min_by_key(|(_, block)| block.bytes)?;
        Some(state.unused.swap_remove(found))
    }

    /// Takes a block back, with its last uses.
    pub(crate) fn recycle(&self, block: Block, uses: Vec<Usage>) {
        let _exempt = RelaxedCapture::enter();
        let mut state = lock(&self.0);
        state.retired.push(Retired { block, uses });
        state.sweep();
    }

    /// Waits for these uses, if no stream is being captured, and closes memory of another process.
    pub(crate) fn close(&self, block: Block, mut uses: Vec<Usage>) {
        uses.retain_mut(|each| !each.wait());
        self.recycle(block, uses);
    }

    /// Waits for all uses and gives everything back to the driver, except memory that another
    /// process may have open: its kernels may still use it. The GPU's context is current.
    pub(crate) fn trim(&self) -> Result<(), GpuError> {
        let _exempt = RelaxedCapture::enter();
        // The lock is not held while waiting: the work that is waited for may wait for other
        // threads, which drop and allocate memory.
        let mut state = std::mem::take(&mut *lock(&self.0));
        for retired in &mut state.retired {
            retired.uses.retain_mut(|each| !each.wait());
        }
        state.sweep();
        let (exported, unused): (Vec<_>, Vec<_>) = state.unused.into_iter().partition(|block| block.exported);
        let mut left = lock(&self.0);
        left.retired.append(&mut state.retired);
        left.unused.extend(exported);
        drop(left);
        unused.into_iter().map(free).fold(Ok(()), Result::and)
    }
}

impl Block {
    /// Returns true if the block is long enough, and not much longer.
    fn has_room_for(&self, bytes: usize) -> bool {
        (bytes..=bytes.saturating_add(bytes / SLACK_DIVISOR)).contains(&self.bytes)
    }
}

impl State {
    /// Returns the smallest sufficient block that was allocated in the order of this stream and
    /// used by no other.
    fn reuse_in_stream(&mut self, queue: &Arc<Queue>, bytes: usize) -> Option<Block> {
        let fits = |retired: &Retired| {
            let block = &retired.block;
            block.stream_ordered && !block.exported && block.has_room_for(bytes) && retired.is_of(queue)
        };
        let fitting = self.retired.iter().enumerate().filter(|(_, retired)| fits(retired));
        let (found, _) = fitting.min_by_key(|(_, retired)| retired.block.bytes)?;
        Some(self.retired.swap_remove(found).block)
    }

    /// Moves what no work uses any more.
    fn sweep(&mut self) {
        let unused = &mut self.unused;
        self.retired.retain_mut(|retired| {
            retired.uses.retain_mut(|each| !each.is_done());
            if !retired.uses.is_empty() {
                return true;
            }
            match retired.block.kind {
                // An import that cannot be closed is closed when the process ends.
                MemoryKind::Imported => drop(free(retired.block)),
                MemoryKind::Device | MemoryKind::Host => {
                    unused.push(Block { stream_ordered: false, ..retired.block })
                }
            }
            false
        });
    }
}

impl Retired {
    fn is_of(&self, queue: &Arc<Queue>) -> bool {
        self.uses.iter().all(|each| Arc::ptr_eq(&each.queue, queue))
    }
}

impl Usage {
    /// Marks all work that is enqueued in the stream, if an event can be recorded there.
    pub(crate) fn new(queue: Arc<Queue>) -> Self {
        Self { end: queue.mark(), queue }
    }

    /// Returns the event, and records it if that was not possible earlier.
    fn end(&mut self) -> Option<&Mark> {
        if self.end.is_none() {
            self.end = self.queue.mark();
        }
        self.end.as_ref()
    }

    /// Returns true if the use is known to be over. Memory of a GPU that has failed stays in use,
    /// so that it is not given to others before the context ends.
    pub(crate) fn is_done(&mut self) -> bool {
        self.end().is_some_and(Mark::is_passed)
    }

    /// Waits; false if the stream is being captured, or the GPU has failed.
    fn wait(&mut self) -> bool {
        self.end().is_some_and(Mark::wait)
    }
}

/// A block may exceed a request by one byte in this many.
const SLACK_DIVISOR: usize = 4;

fn allocate(kind: MemoryKind, bytes: usize) -> Result<Block, GpuError> {
    if bytes > isize::MAX as usize {
        return Err(GpuError::of("cuMemAlloc", CUresult::CUDA_ERROR_OUT_OF_MEMORY));
    }
    let address = match kind {
        // SAFETY: the memory is given out as bytes, any of which are a value of a `Plain`.
        MemoryKind::Device => unsafe { result::malloc_sync(bytes) }.or_gpu_error("cuMemAlloc")?,
        MemoryKind::Host => {
            // SAFETY: as above.
            unsafe { result::malloc_host(bytes, MAPPED) }.or_gpu_error("cuMemHostAlloc")? as u64
        }
        MemoryKind::Imported => unreachable!("memory of others is opened, not allocated"),
    };
    Ok(Block { kind, address, bytes, exported: false, stream_ordered: false })
}

/// Portable, and mapped: any GPU reaches it.
const MAPPED: u32 = 3;

fn free(block: Block) -> Result<(), GpuError> {
    match block.kind {
        // SAFETY: it came from `allocate`, and this is the only handle.
        MemoryKind::Device => unsafe { result::free_sync(block.address) }.or_gpu_error("cuMemFree"),
        MemoryKind::Host => {
            // SAFETY: as above.
            unsafe { result::free_host(block.address as *mut _) }.or_gpu_error("cuMemFreeHost")
        }
        MemoryKind::Imported => {
            // SAFETY: it was opened, and no work uses it any more.
            unsafe { sys::cuIpcCloseMemHandle(block.address) }.or_gpu_error("cuIpcCloseMemHandle")
        }
    }
}
