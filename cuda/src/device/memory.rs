//! A piece of memory that kernels reach, and the streams that use it.

use super::error::GpuError;
use super::gpu::{Gpu, lock};
use super::pool::{Block, Kind};
use super::stream::Queue;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Streams remembered before those that are idle are forgotten.
const USERS_MAX: usize = 16;

/// Memory that goes back to its GPU's pool when nobody holds it any more.
pub(crate) struct Memory {
    pub(crate) gpu: Gpu,
    block: Block,
    exported: AtomicBool,
    /// Streams with work that uses it.
    users: Mutex<Vec<Arc<Queue>>>,
}

impl Memory {
    pub(crate) fn new(gpu: &Gpu, kind: Kind, bytes: usize) -> Result<Arc<Self>, GpuError> {
        gpu.bind()?;
        let block = gpu.0.pool.take(kind, bytes.max(1)).map_err(|error| named(error, gpu, kind, bytes))?;
        Ok(Self::of(gpu, block))
    }

    /// Another process's, which has been opened at this address.
    pub(crate) fn imported(gpu: &Gpu, address: u64, bytes: usize) -> Arc<Self> {
        Self::of(gpu, Block { kind: Kind::Imported, address, bytes, exported: true })
    }

    fn of(gpu: &Gpu, block: Block) -> Arc<Self> {
        let (exported, users) = (AtomicBool::new(block.exported), Mutex::default());
        Arc::new(Self { gpu: gpu.clone(), block, exported, users })
    }

    pub(crate) fn address(&self) -> u64 {
        self.block.address
    }

    pub(crate) fn bytes(&self) -> usize {
        self.block.bytes
    }

    /// From now on another process may have it open.
    pub(crate) fn export(&self) {
        self.exported.store(true, Ordering::Relaxed);
    }

    /// Remembers that work in this stream uses it.
    pub(crate) fn used_by(&self, queue: &Arc<Queue>) {
        let mut users = lock(&self.users);
        if users.iter().any(|user| Arc::ptr_eq(user, queue)) {
            return;
        }
        if users.len() == USERS_MAX {
            users.retain(|user| !user.is_idle());
        }
        users.push(queue.clone());
    }
}

fn named(error: GpuError, gpu: &Gpu, kind: Kind, bytes: usize) -> GpuError {
    if !error.is(cudarc::driver::sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY) {
        return error;
    }
    let place = if kind == Kind::Host { "in page-locked memory".to_owned() } else { format!("on {gpu:?}") };
    GpuError::OutOfMemory { bytes, place }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let block = Block { exported: self.exported.load(Ordering::Relaxed), ..self.block };
        // Where that fails, the GPU has failed, and so will what follows.
        let _ = self.gpu.bind();
        let (pool, users) = (&self.gpu.0.pool, std::mem::take(&mut *lock(&self.users)));
        if block.kind == Kind::Imported { pool.close(block, users) } else { pool.give(block, users) }
    }
}
