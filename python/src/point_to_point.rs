//! Sends and receives, run one by one or together.

use crate::error::argument;
use crate::operation::checked_dtype;
use crate::segments::{check_address, memory_at};
use pyo3::prelude::*;
use unisono::foreign::{RawMemory, written_is_shared};
use unisono::{Communicator, DType, Result};

/// The memory of a send or a receive, its element type, and the other rank.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    memory: (usize, usize),
    dtype: DType,
    peer: usize,
}

/// Sends and receives that run together. Their user keeps the memory alive.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    sends: Vec<Entry>,
    receives: Vec<Entry>,
}

/// An entry as Python gives it: the address and the bytes, the element type, and the other rank.
pub(crate) type Described = ((usize, usize), String, usize);

impl Group {
    /// Checks types and addresses, and that no receive shares memory with another one.
    pub(crate) fn new(py: Python<'_>, sends: Vec<Described>, receives: Vec<Described>) -> PyResult<Self> {
        let checked = |(memory, dtype, peer): Described| {
            check_address(py, memory)?;
            Ok(Entry { memory, dtype: checked_dtype(py, "group", &dtype)?, peer })
        };
        let checked_list = |list: Vec<Described>| list.into_iter().map(checked).collect::<PyResult<Vec<_>>>();
        let (sends, receives) = (checked_list(sends)?, checked_list(receives)?);
        let places = |list: &[Entry]| list.iter().map(|entry| entry.memory).collect::<Vec<_>>();
        if written_is_shared(&places(&sends), &places(&receives)) {
            return Err(argument(py, "the buffer of a receive overlaps another buffer"));
        }
        Ok(Self { sends, receives })
    }

    /// Runs all of them concurrently.
    ///
    /// # Safety
    /// The memory is valid, that of receives for writes, and nobody else accesses it during the
    /// call.
    pub(crate) unsafe fn run(&self, comm: &Communicator) -> Result<()> {
        // SAFETY: by the contract. No other slice has a byte of a receive.
        let memories =
            |list: &[Entry]| list.iter().map(|entry| unsafe { memory_at(entry.memory) }).collect::<Vec<_>>();
        let (sent, mut received): (Vec<RawMemory>, Vec<RawMemory>) =
            (memories(&self.sends), memories(&self.receives));
        comm.group(|group| {
            for (Entry { dtype, peer, .. }, memory) in self.sends.iter().zip(&sent) {
                group.send_bytes(*dtype, memory.as_slice(), *peer);
            }
            for (Entry { dtype, peer, .. }, memory) in self.receives.iter().zip(&mut received) {
                group.recv_bytes(*dtype, memory.as_mut_slice(), *peer);
            }
        })
    }
}
