//! The memory that a program names, which is user buffers and scratch, as bytes.

use crate::engine::layout::Layout;
use crate::error::{Error, ErrorKind, Result};
use crate::schedule::{Chunk, Space};
use std::ops::Range;
use unisono_reducers::{Source, Target};

/// The user buffers of one operation.
#[derive(Debug)]
pub(crate) struct Buffers<'a> {
    input: Option<&'a [u8]>,
    /// The receive buffer. In place, it is the only buffer.
    buffer: &'a mut [u8],
    /// Offset of the input in `buffer` if the operation is in place.
    input_base: usize,
    /// Offset of the output in `buffer`.
    output_base: usize,
}

impl<'a> Buffers<'a> {
    /// Creates the buffers of an operation that is out of place.
    #[inline]
    pub(crate) fn separate(input: &'a [u8], output: &'a mut [u8]) -> Self {
        Self { input: Some(input), buffer: output, input_base: 0, output_base: 0 }
    }

    /// Creates the buffer of an in-place operation: input at `input_base`, output at `output_base`,
    /// in bytes.
    #[inline]
    pub(crate) fn in_place(buffer: &'a mut [u8], input_base: usize, output_base: usize) -> Self {
        Self { input: None, buffer, input_base, output_base }
    }

    /// Returns the offsets of input and output if the operation is in place.
    pub(crate) fn bases(&self) -> Option<(usize, usize)> {
        self.input.is_none().then_some((self.input_base, self.output_base))
    }

    /// Returns the whole input and the whole output, to find their addresses.
    ///
    /// For an in-place operation, both reach to the end of the buffer.
    pub(crate) fn views(&self) -> (&[u8], &[u8]) {
        (self.input.unwrap_or(&self.buffer[self.input_base..]), &self.buffer[self.output_base..])
    }

    /// Returns a part of the input.
    #[inline]
    pub(crate) fn input(&self, range: Range<usize>) -> &[u8] {
        match self.input {
            Some(input) => &input[range],
            None => &self.buffer[self.input_base + range.start..self.input_base + range.end],
        }
    }

    /// Returns a part of the output.
    #[inline]
    pub(crate) fn output(&mut self, range: Range<usize>) -> &mut [u8] {
        &mut self.buffer[self.output_base + range.start..self.output_base + range.end]
    }

    /// Returns parts of input and output if they are different buffers.
    pub(crate) fn input_and_output(
        &mut self,
        input_range: Range<usize>,
        output_range: Range<usize>,
    ) -> Option<(&[u8], &mut [u8])> {
        // In place, both are parts of one buffer, which cannot be borrowed twice.
        let input = self.input?;
        Some((&input[input_range], self.output(output_range)))
    }

    /// Returns the whole input and a part of the output. The input is empty if the operation is in
    /// place.
    #[inline]
    pub(crate) fn input_and_output_range(&mut self, output_range: Range<usize>) -> (&[u8], &mut [u8]) {
        (self.input.unwrap_or_default(), self.output(output_range))
    }

    /// Copies a part of the input to the output of an in-place operation.
    pub(crate) fn copy_within(&mut self, source_range: Range<usize>, target_range: Range<usize>) {
        let source_range = self.input_base + source_range.start..self.input_base + source_range.end;
        let target_start = self.output_base + target_range.start;
        if source_range.start != target_start {
            self.buffer.copy_within(source_range, target_start);
        }
    }
}

/// The memory of one channel for intermediate values. Its content lives for one slice.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    bytes: Vec<u8>,
    /// Length of each chunk. Chunks are `slice_bytes` apart in `bytes`.
    lengths: Vec<usize>,
    slice_bytes: usize,
    /// Staging for operands that cannot be used in place.
    pub(crate) staging: Vec<u8>,
    /// The lane whose blocked message is in staging.
    pub(crate) staged_lane: Option<usize>,
}

impl Scratch {
    /// Returns the allocated size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.capacity() + self.staging.capacity() + size_of_val(&self.lengths[..])
    }

    /// Reserves `chunks` chunks of `slice_bytes` bytes. Allocates memory only if this is more than
    /// in all earlier calls.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if there is not enough memory, which can happen because users choose
    /// the length of slices.
    pub(crate) fn prepare(&mut self, chunks: usize, slice_bytes: usize) -> Result<()> {
        let bytes = chunks * slice_bytes;
        if self.bytes.len() < bytes {
            self.bytes.try_reserve(bytes - self.bytes.len()).map_err(|error| {
                Error::new(ErrorKind::System(format!(
                    "no memory for {chunks} intermediate chunks of {slice_bytes} bytes: {error}; lower \
                     UNISONO_FIFO_SLOT_BYTES"
                )))
            })?;
            self.bytes.resize(bytes, 0);
        }
        if self.lengths.len() < chunks {
            self.lengths.resize(chunks, 0);
        }
        self.slice_bytes = slice_bytes;
        Ok(())
    }

    /// Reserves `bytes` of staging, and drops a staged message.
    pub(crate) fn reserve_staging(&mut self, bytes: usize) {
        self.staged_lane = None;
        if self.staging.len() < bytes {
            self.staging.resize(bytes, 0);
        }
    }

    fn range(&self, index: usize) -> Range<usize> {
        let start = index * self.slice_bytes;
        start..start + self.lengths[index]
    }
}

/// The memory that the steps of one slice access, and the position of the slice in it.
pub(crate) struct StepMemory<'m, 'a> {
    pub(crate) buffers: &'m mut Buffers<'a>,
    pub(crate) scratch: &'m mut Scratch,
    pub(crate) input: &'m Layout<'m>,
    pub(crate) output: &'m Layout<'m>,
    pub(crate) slice_index: usize,
    pub(crate) slice_bytes: usize,
}

/// A chunk to write, with all memory that can be read at the same time.
pub(crate) struct OpenTarget<'o> {
    pub(crate) target: Option<Target<'o>>,
    pub(crate) input: Option<&'o [u8]>,
    pub(crate) input_layout: &'o Layout<'o>,
    pub(crate) slice_index: usize,
    pub(crate) staging: &'o [u8],
}

impl StepMemory<'_, '_> {
    /// Returns the length of `chunk` in this slice.
    pub(crate) fn bytes(&self, chunk: Chunk) -> usize {
        match chunk.space {
            Space::Input | Space::Output => self.slice(chunk).len(),
            Space::Scratch => self.scratch.lengths[chunk.index as usize],
            Space::Window => 0,
        }
    }

    /// Returns whether the chunk is in a user buffer, so that its length is known.
    pub(crate) fn is_user_buffer(chunk: Chunk) -> bool {
        matches!(chunk.space, Space::Input | Space::Output)
    }

    /// Returns whether two chunks are the same memory.
    pub(crate) fn is_same_memory(&self, chunk: Chunk, other: Chunk) -> bool {
        if chunk.space == Space::Scratch || other.space == Space::Scratch {
            return chunk == other;
        }
        match (self.range(chunk), self.range(other)) {
            (Some(range), Some(other_range)) => range == other_range,
            _ => chunk == other,
        }
    }

    /// Returns the chunk for reading.
    pub(crate) fn source(&self, chunk: Chunk) -> Source<'_> {
        if chunk.space == Space::Scratch {
            return Source::from(&self.scratch.bytes[self.scratch.range(chunk.index as usize)]);
        }
        match (self.range(chunk), self.buffers.input) {
            (Some(range), _) => Source::from(&self.buffers.buffer[range]),
            (None, Some(input)) => Source::from(&input[self.slice(chunk)]),
            (None, None) => Source::from(&[][..]),
        }
    }

    /// Returns the chunk for writing `bytes` bytes.
    ///
    /// A chunk of a user buffer has that length. A scratch chunk takes that length.
    pub(crate) fn target(&mut self, chunk: Chunk, bytes: usize) -> Target<'_> {
        if chunk.space == Space::Scratch {
            self.scratch.lengths[chunk.index as usize] = bytes;
            let range = self.scratch.range(chunk.index as usize);
            return Target::from(&mut self.scratch.bytes[range]);
        }
        match self.range(chunk) {
            Some(range) => Target::from(&mut self.buffers.buffer[range]),
            None => Target::from(&mut [][..]),
        }
    }

    /// Returns whether the input can be read while `target_chunk` is written.
    pub(crate) fn is_input_disjoint_from(&self, target_chunk: Chunk) -> bool {
        self.buffers.input.is_some() || self.range(target_chunk).is_none()
    }

    /// Returns a chunk for writing, with all memory that can be read at the same time. A window
    /// chunk has no target.
    pub(crate) fn open_target(&mut self, target_chunk: Chunk, bytes: usize) -> OpenTarget<'_> {
        let range = self.range(target_chunk);
        let StepMemory { buffers, scratch, input, slice_index, .. } = self;
        let (input_layout, slice_index) = (*input, *slice_index);
        let (target, input) = match (target_chunk.space, range) {
            // Scratch is no memory of the caller, so the whole input can be read meanwhile.
            (Space::Scratch, _) => {
                scratch.lengths[target_chunk.index as usize] = bytes;
                let range = scratch.range(target_chunk.index as usize);
                (Some(Target::from(&mut scratch.bytes[range])), Some(buffers.views().0))
            }
            (_, Some(range)) => (Some(Target::from(&mut buffers.buffer[range])), buffers.input),
            (_, None) => (None, Some(buffers.views().0)),
        };
        OpenTarget { target, input, input_layout, slice_index, staging: &scratch.staging }
    }

    /// Returns one chunk for writing and another one for reading, if they are in different buffers.
    pub(crate) fn target_and_source(
        &mut self,
        target_chunk: Chunk,
        source_chunk: Chunk,
    ) -> Option<(Target<'_>, Source<'_>)> {
        let input = match (source_chunk.space, self.buffers.input) {
            (Space::Input, Some(input)) => Some(&input[self.slice(source_chunk)]),
            _ => None,
        };
        let bytes = self.bytes(source_chunk);
        match (input, target_chunk.space, source_chunk.space) {
            (Some(input), Space::Output | Space::Scratch, _) => {
                Some((self.target(target_chunk, bytes), Source::from(input)))
            }
            (None, Space::Scratch, Space::Input | Space::Output) => {
                let index = target_chunk.index as usize;
                self.scratch.lengths[index] = bytes;
                let (range, source_range) = (self.scratch.range(index), self.range(source_chunk)?);
                let target = Target::from(&mut self.scratch.bytes[range]);
                Some((target, Source::from(&self.buffers.buffer[source_range])))
            }
            (None, Space::Output, Space::Scratch) => {
                let (range, source_range) =
                    (self.range(target_chunk)?, self.scratch.range(source_chunk.index as usize));
                let target = Target::from(&mut self.buffers.buffer[range]);
                Some((target, Source::from(&self.scratch.bytes[source_range])))
            }
            _ => None,
        }
    }

    /// Returns the range of the chunk in the writable user buffer, if it is there.
    fn range(&self, chunk: Chunk) -> Option<Range<usize>> {
        let slice = self.slice(chunk);
        let base = match chunk.space {
            Space::Output => self.buffers.output_base,
            Space::Input if self.buffers.input.is_none() => self.buffers.input_base,
            Space::Input | Space::Scratch | Space::Window => return None,
        };
        Some(base + slice.start..base + slice.end)
    }

    fn slice(&self, chunk: Chunk) -> Range<usize> {
        let layout = match chunk.space {
            Space::Input => self.input,
            _ => self.output,
        };
        layout.slice(chunk.index as usize, self.slice_index, self.slice_bytes)
    }
}
