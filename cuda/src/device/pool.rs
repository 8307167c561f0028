//! Memory that nobody holds any more, kept until its last use is over, and then for the next who needs as much.
//!
//! To give memory back the driver waits for everything that runs on the GPU, even for kernels that wait for what
//! this thread would do next. So it happens only when there is no room left, or when a program asks for it.

use super::error::{Answer, GpuError};
use super::gpu::lock;
use super::stream::Queue;
use cudarc::driver::{CudaEvent, result, sys, sys::CUresult};
use std::sync::{Arc, Mutex};

/// Where memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Device,
    /// Page-locked.
    Host,
    /// Another process's.
    Imported,
}

impl Kind {
    /// Whether so much could be had if everything else were given back.
    fn could_hold(self, bytes: usize) -> bool {
        self != Kind::Device || result::mem_get_info().is_ok_and(|(_, all)| bytes <= all)
    }
}

/// Memory as the driver gave it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    pub(crate) kind: Kind,
    pub(crate) address: u64,
    pub(crate) bytes: usize,
    /// Another process may have it open: it is never given to somebody else.
    pub(crate) exported: bool,
}

/// Blocks of a GPU that are in nobody's hands.
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
    uses: Vec<Use>,
}

/// Until when.
enum Use {
    /// Until all that is in the stream by then; while it is captured no event can be recorded.
    Queue(Arc<Queue>),
    Event(CudaEvent),
}

impl Pool {
    /// Memory with whatever is in it; the GPU's context is current.
    pub(crate) fn take(&self, kind: Kind, bytes: usize) -> Result<Block, GpuError> {
        if let Some(block) = self.find(kind, bytes) {
            return Ok(block);
        }
        match allocate(kind, bytes) {
            Err(error) if error.is(CUresult::CUDA_ERROR_OUT_OF_MEMORY) && kind.could_hold(bytes) => {
                self.empty()?;
                allocate(kind, bytes)
            }
            answer => answer,
        }
    }

    fn find(&self, kind: Kind, bytes: usize) -> Option<Block> {
        let mut state = lock(&self.0);
        state.sweep();
        let fits = |block: &Block| (block.kind, block.bytes, block.exported) == (kind, bytes, false);
        let found = state.unused.iter().position(fits)?;
        Some(state.unused.swap_remove(found))
    }

    /// Takes a block back that these streams have used.
    pub(crate) fn give(&self, block: Block, users: Vec<Arc<Queue>>) {
        let uses = users.into_iter().map(Use::Queue).collect();
        let mut state = lock(&self.0);
        state.retired.push(Retired { block, uses });
        state.sweep();
    }

    /// Waits for these streams, if none is being captured, and closes memory of another process.
    pub(crate) fn close(&self, block: Block, users: Vec<Arc<Queue>>) {
        for event in users.iter().filter_map(|user| user.mark()) {
            // A GPU that has failed uses nothing any more.
            let _ = event.synchronize();
        }
        self.give(block, users);
    }

    /// Waits for all uses and gives everything back to the driver; the GPU's context is current.
    pub(crate) fn empty(&self) -> Result<(), GpuError> {
        // Others can drop and allocate meanwhile: the work that is waited for may wait for them.
        let mut state = std::mem::take(&mut *lock(&self.0));
        for retired in &mut state.retired {
            retired.uses.retain_mut(|each| !each.wait());
        }
        state.sweep();
        lock(&self.0).retired.append(&mut state.retired);
        state.unused.into_iter().map(free).fold(Ok(()), Result::and)
    }
}

impl State {
    /// Moves what no work uses any more.
    fn sweep(&mut self) {
        let unused = &mut self.unused;
        self.retired.retain_mut(|retired| {
            retired.uses.retain_mut(|each| !each.is_over());
            if !retired.uses.is_empty() {
                return true;
            }
            match retired.block.kind {
                // What cannot be closed is closed when the process ends.
                Kind::Imported => drop(free(retired.block)),
                Kind::Device | Kind::Host => unused.push(retired.block),
            }
            false
        });
    }
}

impl Use {
    /// Records an event if that is possible now.
    fn settle(&mut self) {
        if let Use::Queue(queue) = self
            && let Some(event) = queue.mark()
        {
            *self = Use::Event(event);
        }
    }

    fn is_over(&mut self) -> bool {
        self.settle();
        // A GPU that has failed uses nothing any more.
        matches!(self, Use::Event(event) if event.try_is_complete() != Ok(false))
    }

    /// Waits; false if the stream is being captured.
    fn wait(&mut self) -> bool {
        self.settle();
        match self {
            Use::Event(event) => event.synchronize().is_ok() || self.is_over(),
            Use::Queue(_) => false,
        }
    }
}

fn allocate(kind: Kind, bytes: usize) -> Result<Block, GpuError> {
    if bytes > isize::MAX as usize {
        return Err(GpuError::of("cuMemAlloc", CUresult::CUDA_ERROR_OUT_OF_MEMORY));
    }
    let address = match kind {
        // SAFETY: the memory is given out as bytes, any of which are a value of a `Plain`.
        Kind::Device => unsafe { result::malloc_sync(bytes) }.from("cuMemAlloc")?,
        // SAFETY: as above.
        Kind::Host => unsafe { result::malloc_host(bytes, MAPPED) }.from("cuMemHostAlloc")? as u64,
        Kind::Imported => unreachable!("memory of others is opened, not allocated"),
    };
    Ok(Block { kind, address, bytes, exported: false })
}

/// Portable, and mapped: any GPU reaches it.
const MAPPED: u32 = 3;

fn free(block: Block) -> Result<(), GpuError> {
    match block.kind {
        // SAFETY: it came from `allocate`, and nobody has it.
        Kind::Device => unsafe { result::free_sync(block.address) }.from("cuMemFree"),
        // SAFETY: as above.
        Kind::Host => unsafe { result::free_host(block.address as *mut _) }.from("cuMemFreeHost"),
        // SAFETY: it was opened, and no work uses it any more.
        Kind::Imported => unsafe { sys::cuIpcCloseMemHandle(block.address) }.from("cuIpcCloseMemHandle"),
    }
}
