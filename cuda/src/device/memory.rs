//! A block of memory for kernels, and the streams that use it.

use super::error::GpuError;
use super::foreign_graph::drop_released;
use super::gpu::{Gpu, lock};
use super::pool::{Block, MemoryKind, Usage};
use super::stream::Queue;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Streams remembered before those that are idle are forgotten.
const USERS_MAX: usize = 16;

/// Memory that goes back to the pool of its GPU when the last handle is dropped.
pub(crate) struct Memory {
    pub(crate) gpu: Gpu,
    block: Block,
    exported: AtomicBool,
    /// Streams with work that uses it,
    users: Mutex<Vec<Arc<Queue>>>,
    /// and work that was found not to be done.
    ends: Mutex<Vec<Usage>>,
    /// Number of times this process has opened the memory.
    imports: AtomicUsize,
}

impl Memory {
    pub(crate) fn new(gpu: &Gpu, kind: MemoryKind, bytes: usize) -> Result<Arc<Self>, GpuError> {
        drop_released();
        gpu.bind()?;
        let block =
            gpu.0.pool.alloc(kind, bytes.max(1)).map_err(|error| out_of_memory(error, gpu, kind, bytes))?;
        Ok(Self::of(gpu, block))
    }

    /// For this stream, whose work uses it next.
    pub(crate) fn stream_ordered(gpu: &Gpu, queue: &Arc<Queue>, bytes: usize) -> Result<Arc<Self>, GpuError> {
        drop_released();
        gpu.bind()?;
        let block = gpu.0.pool.alloc_stream_ordered(queue, bytes.max(1));
        let memory =
            Self::of(gpu, block.map_err(|error| out_of_memory(error, gpu, MemoryKind::Device, bytes))?);
        // Work that is under way may use it.
        memory.record_stream(queue);
        Ok(memory)
    }

    /// Another process's, which has been opened at this address.
    pub(crate) fn imported(gpu: &Gpu, address: u64, bytes: usize) -> Arc<Self> {
        Self::of(
            gpu,
            Block { kind: MemoryKind::Imported, address, bytes, exported: true, stream_ordered: false },
        )
    }

    fn of(gpu: &Gpu, block: Block) -> Arc<Self> {
        let exported = AtomicBool::new(block.exported);
        let (users, ends, imports) = (Mutex::default(), Mutex::default(), AtomicUsize::new(0));
        Arc::new(Self { gpu: gpu.clone(), block, exported, users, ends, imports })
    }

    pub(crate) fn address(&self) -> u64 {
        self.block.address
    }

    pub(crate) fn bytes(&self) -> usize {
        self.block.bytes
    }

    /// Marks the memory as exported: another process may have it open.
    pub(crate) fn export(&self) {
        self.exported.store(true, Ordering::Relaxed);
    }

    /// No other process uses it any more.
    pub(crate) fn withdraw(&self) {
        self.exported.store(false, Ordering::Relaxed);
    }

    /// This process has opened it once more.
    pub(crate) fn add_import(&self) {
        self.imports.fetch_add(1, Ordering::Relaxed);
    }

    /// This process has closed it once.
    pub(crate) fn remove_import(&self) {
        self.imports.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the number of times this process has the memory open.
    pub(crate) fn imports(&self) -> usize {
        self.imports.load(Ordering::Relaxed)
    }

    /// Returns true if all work that used the memory is done.
    pub(crate) fn is_idle(&self) -> bool {
        let mut ends = lock(&self.ends);
        // A failure here means that the GPU has failed: later calls will report it.
        let _ = self.gpu.bind();
        ends.extend(self.take_users());
        ends.retain_mut(|each| !each.is_done());
        ends.is_empty()
    }

    fn take_users(&self) -> impl Iterator<Item = Usage> {
        std::mem::take(&mut *lock(&self.users)).into_iter().map(Usage::new)
    }

    /// Remembers that work in this stream uses it.
    pub(crate) fn record_stream(&self, queue: &Arc<Queue>) {
        let mut users = lock(&self.users);
        if users.iter().any(|user| Arc::ptr_eq(user, queue)) {
            return;
        }
        if users.len() >= USERS_MAX {
            users.retain(|user| !user.is_idle());
        }
        users.push(queue.clone());
    }
}

/// A handle to memory without its elements: it records uses, and does not wait for readers.
#[derive(Clone)]
pub struct MemoryRef(Arc<Memory>);

impl MemoryRef {
    pub(crate) fn new(memory: &Arc<Memory>) -> Self {
        Self(memory.clone())
    }

    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.0
    }

    /// Ends the export of a buffer: see [`Buffer::withdraw`](super::Buffer::withdraw).
    pub fn withdraw(&self) {
        self.0.withdraw();
    }
}

fn out_of_memory(error: GpuError, gpu: &Gpu, kind: MemoryKind, bytes: usize) -> GpuError {
    if !error.is(cudarc::driver::sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY) {
        return error;
    }
    let place =
        if kind == MemoryKind::Host { "in page-locked memory".to_owned() } else { format!("on {gpu:?}") };
    GpuError::OutOfMemory { bytes, place }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let block = Block { exported: self.exported.load(Ordering::Relaxed), ..self.block };
        // A failure here means that the GPU has failed: later calls will report it.
        let _ = self.gpu.bind();
        let pool = &self.gpu.0.pool;
        let uses = std::mem::take(&mut *lock(&self.ends)).into_iter().chain(self.take_users()).collect();
        if block.kind == MemoryKind::Imported { pool.close(block, uses) } else { pool.recycle(block, uses) }
    }
}
