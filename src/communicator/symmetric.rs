//! Memory that peers reach without staging.

use crate::communicator::Communicator;
use crate::error::{Error, Result};
use crate::reduce_op::ReduceOp::Max;
use std::ops::{Deref, DerefMut};
use unisono_cuda::Element;
use unisono_transports::HeapAllocation;

/// Elements in memory that the other ranks of a communicator reach: a slice like any other.
///
/// Large collectives called with such memory on all ranks, as input and as output, read and
/// write it where it is; nothing is staged. They mix freely with ordinary buffers.
///
/// While an operation has a buffer, peers read or write it directly; at all other times they do not,
/// as long as they run this library. Ranks that do not trust each other use ordinary memory.
#[derive(Debug)]
pub struct SymmetricBuffer<T> {
    storage: Storage<T>,
    count: usize,
}

#[derive(Debug)]
enum Storage<T> {
    Heap(HeapAllocation),
    /// Where ranks share no memory.
    Private(Vec<T>),
}

impl Communicator {
    /// `count` zeros in memory that the other ranks reach. All ranks call it at the same time, each with its
    /// own count. Where ranks share no memory it is ordinary memory, so that programs run anywhere. Between
    /// processes, from 2 MiB on, it is there at once, in huge pages if the system has any; else it comes with the pages
    /// that are touched.
    ///
    /// # Errors
    /// On every rank, if one of them has not that much memory left: see `UNISONO_SYMMETRIC_HEAP_BYTES`.
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
        let bytes = count.checked_mul(size_of::<T>());
        let lent = match bytes {
            Some(bytes) => self.with_engine(|engine| engine.alloc_symmetric(bytes)),
            None => Err(self.attach_rank(Error::invalid_usage(format!(
                "{count} elements are more than can be addressed"
            )))),
        };
        let mut failed = [u8::from(lent.is_err())];
        self.all_reduce(&mut failed, Max)?;
        match lent? {
            _ if failed != [0] => {
                let text = "another rank has not the memory that it asked for";
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
            Storage::Private(own) => own,
        }
    }
}

impl<T: Element> DerefMut for SymmetricBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.storage {
            Storage::Heap(block) => &mut block.as_mut_slice()[..self.count],
            Storage::Private(own) => own,
        }
    }
}
