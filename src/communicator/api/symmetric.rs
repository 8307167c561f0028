//! Symmetric memory: buffers that peers access in place.

use crate::communicator::Communicator;
use crate::communicator::calls::memory::check_room;
use crate::error::{Error, Result};
use crate::reduce_op::ReduceOp::Max;
use std::ops::{Deref, DerefMut};
use unisono_reducers::Element;
use unisono_transports::HeapAllocation;

/// A slice in memory that the other ranks of a communicator can access.
///
/// Large collectives read and write such buffers in place, without staging, if all ranks give them
/// as input and output. Any call may use ordinary buffers instead.
///
/// Peers that run this library access a buffer only during an operation that was called with it.
/// This also holds if the operation fails: it returns when no peer can access the buffer any more,
/// even if a peer is stopped in the middle of a copy. If the peers are threads, the operation waits
/// until they have stopped their access. If a peer process does not stop soon, the buffer is
/// replaced by a private copy at the same address, which takes additional memory of the same size.
///
/// A buffer outlives its communicator. Other communicators treat it as ordinary memory. Ranks that
/// do not trust each other should use ordinary memory.
///
/// # Panics
/// A forked child cannot access the shared memory, so it panics when it dereferences the buffer.
#[derive(Debug)]
pub struct SymmetricBuffer<T> {
    storage: Storage<T>,
    count: usize,
}

#[derive(Debug)]
enum Storage<T> {
    Heap(HeapAllocation),
    /// Ordinary memory, for ranks that share no memory.
    Private(Vec<T>),
}

impl Communicator {
    /// Allocates `count` zeros in memory that the other ranks can access.
    ///
    /// All ranks must call this method, and each gives its own count. Ranks that share no memory
    /// get ordinary memory, so that programs run anywhere. Between processes, the pages of a buffer
    /// of 2 MiB or more are allocated at once, as huge pages if the system has any. Smaller buffers
    /// are allocated page by page when they are first used.
    ///
    /// # Errors
    /// Fails on every rank if one of them has too little memory left.
    /// `UNISONO_SYMMETRIC_HEAP_BYTES` sets the limit.
    ///
    /// ```
    /// # use unisono::{Communicator, Sum};
    /// # for comm in Communicator::local(1)? {
    /// let mut gradients = comm.alloc_symmetric::<f32>(1 << 20)?;
    /// gradients.fill(1.0);
    /// comm.all_reduce(&mut gradients, Sum)?;
    /// # }
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn alloc_symmetric<T: Element>(&self, count: usize) -> Result<SymmetricBuffer<T>> {
        // A count that is too large is also exchanged, so that every rank knows afterwards that
        // ranks may have symmetric memory.
        let bytes = count.checked_mul(size_of::<T>());
        let block = self.with_engine(|engine| engine.alloc_symmetric(bytes.unwrap_or(isize::MAX as usize)));
        let refused =
            |what: &str| Err(self.attach_rank(Error::invalid_usage(format!("{count} elements {what}"))));
        let allocation = match block {
            _ if bytes.is_none() => refused("are more than can be addressed"),
            // Ranks without a common heap allocate the memory below. A failure there would come too
            // late to be told to the others, so this looks for room in advance.
            Ok(None) if check_room::<T>(count).is_err() => refused("are more than memory holds"),
            block => block,
        };
        let mut failed = [u8::from(allocation.is_err())];
        self.all_reduce(&mut failed, Max)?;
        match allocation? {
            _ if failed != [0] => {
                let text = "another rank has too little symmetric memory left";
                Err(self.attach_rank(Error::invalid_usage(text)))
            }
            Some(block) => Ok(SymmetricBuffer { storage: Storage::Heap(block), count }),
            None => Ok(SymmetricBuffer { storage: Storage::Private(vec![T::default(); count]), count }),
        }
    }
}

impl<T: Element> Deref for SymmetricBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match &self.storage {
            Storage::Heap(block) => &block.as_slice()[..self.count],
            Storage::Private(elements) => elements,
        }
    }
}

impl<T: Element> DerefMut for SymmetricBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.storage {
            Storage::Heap(block) => &mut block.as_mut_slice()[..self.count],
            Storage::Private(elements) => elements,
        }
    }
}
