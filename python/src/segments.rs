//! The memory of an operation: segments at addresses, as the Python side gives them.

use crate::error::argument;
use pyo3::prelude::*;
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};
use unisono::OpBuffers;
use unisono::foreign::{self, Aliasing, RawMemory};

/// Consecutive parts of a buffer, each at an address and with a number of bytes.
///
/// The memory belongs to Python objects. The caller of [`Segments::read`] and its relatives keeps
/// them alive, and lets nobody else write them, until the operation has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Segments(Vec<(usize, usize)>);

impl<'py> FromPyObject<'_, 'py> for Segments {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let mut parts: Vec<(usize, usize)> = object.extract()?;
        parts.iter().try_for_each(|&part| check_address(object.py(), part))?;
        parts.retain(|&(_, bytes)| bytes > 0);
        Ok(Self(parts))
    }
}

/// Refuses bytes without an address, such as those of a tensor whose storage was freed.
pub(crate) fn check_address(py: Python<'_>, (address, bytes): (usize, usize)) -> PyResult<()> {
    if address == 0 && bytes > 0 {
        let what = "have no memory, as if their storage had been freed";
        return Err(argument(py, format!("{bytes} bytes of an array or a tensor {what}")));
    }
    Ok(())
}

impl Segments {
    /// Returns true if two segments share a byte.
    fn overlaps_itself(&self) -> bool {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        sorted.windows(2).any(|pair| pair[0].0 + pair[0].1 > pair[1].0)
    }

    /// Returns the parts of `lengths` bytes each, if they are all bytes and every one lies in one
    /// segment.
    fn split(&self, lengths: impl IntoIterator<Item = usize>) -> Option<Vec<(usize, usize)>> {
        let mut segments = self.0.iter().copied();
        let (mut address, mut length) = (0, 0_usize);
        let mut parts = Vec::new();
        for bytes in lengths {
            if bytes > 0 && length == 0 {
                (address, length) = segments.next()?;
            }
            parts.push((address, bytes));
            address += bytes;
            length = length.checked_sub(bytes)?;
        }
        (length == 0 && segments.next().is_none()).then_some(parts)
    }

    /// Returns the number of bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.0.iter().map(|&(_, bytes)| bytes).sum()
    }

    /// Returns true if a byte belongs to both.
    fn overlaps(&self, other: &Segments) -> bool {
        let meets = |&(address, bytes): &(usize, usize)| {
            let mut others = other.0.iter();
            others.any(|&(other, other_bytes)| address < other + other_bytes && other < address + bytes)
        };
        self.0.iter().any(meets)
    }

    /// Returns the address if all bytes follow each other.
    fn single(&self) -> Option<usize> {
        match self.0[..] {
            [(address, _)] => Some(address),
            _ => None,
        }
    }

    /// Returns a copy of the bytes.
    ///
    /// # Safety
    /// The memory is valid for reads.
    unsafe fn copied(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.bytes());
        for &(address, length) in &self.0 {
            // SAFETY: by the contract.
            bytes.extend_from_slice(unsafe { slice(address, length) });
        }
        bytes
    }

    /// Runs `use_bytes` on the bytes, which are copied only if they are in several parts.
    ///
    /// # Safety
    /// The memory is valid for reads, and nobody writes it meanwhile.
    pub(crate) unsafe fn read<R>(&self, use_bytes: impl FnOnce(&[u8]) -> R) -> R {
        match self.0[..] {
            [] => use_bytes(&[]),
            // SAFETY: by the contract.
            [(address, length)] => use_bytes(unsafe { slice(address, length) }),
            // SAFETY: by the contract.
            _ => use_bytes(&unsafe { self.copied() }),
        }
    }

    /// Runs `fill` on the bytes. Several parts are filled from a temporary buffer, which begins
    /// with their contents.
    ///
    /// # Safety
    /// The memory is valid for reads and writes, and nobody else accesses it meanwhile.
    pub(crate) unsafe fn write<R>(&self, fill: impl FnOnce(&mut [u8]) -> R) -> R {
        match self.0[..] {
            [] => fill(&mut []),
            // SAFETY: by the contract.
            [(address, length)] => fill(unsafe { slice_mut(address, length) }),
            _ => {
                // SAFETY: by the contract.
                let mut bytes = unsafe { self.copied() };
                let result = fill(&mut bytes);
                let mut bytes = &bytes[..];
                for &(address, length) in &self.0 {
                    let (part, remainder) = bytes.split_at(length);
                    // SAFETY: by the contract.
                    unsafe { slice_mut(address, length) }.copy_from_slice(part);
                    bytes = remainder;
                }
                result
            }
        }
    }
}

/// Runs `operation` on an input and an output: in place if one is this rank's share of the other.
///
/// Buffers that overlap in another way are legal: the input is then copied first.
///
/// # Safety
/// The input is valid for reads and the output for writes, and nobody else accesses them
/// meanwhile. An input that the output lies in is valid for writes, too.
pub(crate) unsafe fn with_buffers<R>(
    input: &Segments,
    output: &Segments,
    own_offset: usize,
    operation: impl FnOnce(OpBuffers<'_>) -> R,
) -> R {
    if !input.overlaps(output) {
        // SAFETY: by the contract. The comparison shows that the two are disjoint.
        return unsafe {
            input.read(|input| output.write(|output| operation(OpBuffers::Separate { input, output })))
        };
    }
    let (input_bytes, output_bytes) = (input.bytes(), output.bytes());
    if input == output {
        // SAFETY: by the contract. Both are the same memory, which one slice accesses.
        return unsafe { output.write(|buffer| operation(OpBuffers::InPlace(buffer))) };
    }
    if let (Some(input_address), Some(output_address)) = (input.single(), output.single()) {
        let aliasing = Aliasing::of((input_address, input_bytes), (output_address, output_bytes), own_offset);
        if aliasing == Aliasing::InPlace {
            let longer = if input_bytes <= output_bytes {
                (output_address, output_bytes)
            } else {
                (input_address, input_bytes)
            };
            // SAFETY: by the contract. The shorter one is inside, so that one slice is the only
            // access.
            return operation(OpBuffers::InPlace(unsafe { slice_mut(longer.0, longer.1) }));
        }
    }
    // SAFETY: by the contract. The copy of the input overlaps nothing.
    unsafe {
        let copy = input.copied();
        output.write(|output| operation(OpBuffers::Separate { input: &copy, output }))
    }
}

/// Runs `operation` on the input and the output as lists of parts of these lengths. An input that
/// overlaps the output is copied first.
///
/// Returns nothing if a part does not lie in one segment, or if parts of the output overlap.
///
/// # Safety
/// As [`with_buffers`].
pub(crate) unsafe fn with_lists<R>(
    (input, input_lengths): (&Segments, impl IntoIterator<Item = usize>),
    (output, output_lengths): (&Segments, impl IntoIterator<Item = usize>),
    operation: impl FnOnce(&[&[u8]], &mut [&mut [u8]]) -> R,
) -> Option<R> {
    let (inputs, outputs) = (input.split(input_lengths)?, output.split(output_lengths)?);
    if output.overlaps_itself() {
        return None;
    }
    let overlaps = input.overlaps(output);
    let part = |&(address, bytes): &(usize, usize)| match bytes {
        0 => &[][..],
        // SAFETY: by the contract.
        _ => unsafe { slice(address, bytes) },
    };
    let copies: Vec<Vec<u8>> = inputs.iter().filter(|_| overlaps).map(|place| part(place).to_vec()).collect();
    let inputs: Vec<&[u8]> = match overlaps {
        true => copies.iter().map(|copy| &copy[..]).collect(),
        false => inputs.iter().map(part).collect(),
    };
    let mut outputs: Vec<&mut [u8]> = outputs
        .iter()
        .map(|&(address, bytes)| match bytes {
            0 => &mut [][..],
            // SAFETY: by the contract. No slice of the input overlaps the output, and parts of the
            // output are different memory.
            _ => unsafe { slice_mut(address, bytes) },
        })
        .collect();
    Some(operation(&inputs, &mut outputs))
}

/// # Safety
/// `bytes` bytes at `address`, more than none, are valid for reads for the life of the result.
unsafe fn slice<'a>(address: usize, bytes: usize) -> &'a [u8] {
    // SAFETY: by the contract. The memory was exposed to Python as an integer.
    unsafe { foreign::slice(with_exposed_provenance(address), bytes) }
}

/// # Safety
/// `bytes` bytes at `address`, more than none, are valid for reads and writes for the life of the
/// result, and nobody else accesses them.
unsafe fn slice_mut<'a>(address: usize, bytes: usize) -> &'a mut [u8] {
    // SAFETY: by the contract.
    unsafe { foreign::slice_mut(with_exposed_provenance_mut(address), bytes) }
}

/// Returns the memory of a message, given as address and length.
///
/// # Safety
/// As [`RawMemory::new`]. The memory was exposed to Python as an integer.
pub(crate) unsafe fn memory_at((address, bytes): (usize, usize)) -> RawMemory {
    // SAFETY: by the contract.
    unsafe { RawMemory::new(with_exposed_provenance_mut(address), bytes) }
}
