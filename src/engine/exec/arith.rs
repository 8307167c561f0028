//! The arithmetic of a step on memory of this rank.

use crate::engine::buffers::StepMemory;
use crate::error::{Error, ErrorKind, Result};
use crate::schedule::{Chunk, ChunkRef, Rank, Space};
use unisono_cuda::{
    DType, PostOp, ReduceKind, Scalar, Source, Store, copy_to, reduce_assign, reduce_to, scale,
};

/// How elements are combined, resolved for one operation.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Arithmetic {
    pub(in crate::engine) dtype: DType,
    pub(in crate::engine) op: ReduceKind,
    /// Applied wherever the input is read.
    pub(in crate::engine) factor: Option<Scalar>,
    /// Applied where a value is complete.
    pub(in crate::engine) finish: PostOp,
    /// How values are stored that nobody reads again soon.
    pub(in crate::engine) store: Store,
}

impl Arithmetic {
    /// The factor that reading `chunk` applies.
    pub(in crate::engine) fn factor_of(&self, chunk: Chunk) -> Option<Scalar> {
        self.factor.filter(|_| chunk.space == Space::Input)
    }

    /// How to store into `chunk`.
    pub(in crate::engine) fn store_into(&self, chunk: Chunk) -> Store {
        if chunk.space == Space::Output { self.store } else { Store::Cached }
    }
}

/// `into = with ⊕ arrived`.
pub(in crate::engine) fn reduce_received(
    memory: &mut StepMemory<'_, '_>,
    arithmetic: &Arithmetic,
    with: Chunk,
    into: Chunk,
    arrived: Source<'_>,
    finish: bool,
) {
    let Arithmetic { dtype, op, .. } = *arithmetic;
    let finish = if finish { arithmetic.finish } else { PostOp::Identity };
    if arithmetic.factor_of(with).is_none()
        && let Some((target, source)) = memory.target_and_source(into, with)
    {
        return reduce_to(Store::Cached, dtype, op, finish, target, &[source, arrived]);
    }
    copy_local(memory, arithmetic, with, into, arrived.len());
    reduce_assign(dtype, op, finish, memory.target(into, arrived.len()), &[arrived]);
}

/// `into = from` within this rank, pre-multiplied where the input is read.
pub(in crate::engine) fn copy_local(
    memory: &mut StepMemory<'_, '_>,
    arithmetic: &Arithmetic,
    from: Chunk,
    into: Chunk,
    bytes: usize,
) {
    let (dtype, factor) = (arithmetic.dtype, arithmetic.factor_of(from));
    if memory.is_same_memory(from, into) {
        if let Some(scalar) = factor {
            scale(dtype, scalar, memory.target(into, bytes), None);
        }
        return;
    }
    if let Some((target, source)) = memory.target_and_source(into, from) {
        return match factor {
            Some(scalar) => scale(dtype, scalar, target, Some(source)),
            None => copy_to(arithmetic.store_into(into), target, source),
        };
    }
    // Two chunks of one memory: by way of staging.
    stage_chunk(memory, arithmetic, from, 0, bytes);
    let open = memory.open_target(into, bytes);
    if let Some(target) = open.target {
        copy_to(Store::Cached, target, Source::from(&open.staging[..bytes]));
    }
}

/// Gathers `chunks`, `bytes` in all, in staging, pre-multiplied where the input is read.
pub(in crate::engine) fn pack_scaled(
    memory: &mut StepMemory<'_, '_>,
    arithmetic: &Arithmetic,
    chunks: &[Chunk],
    bytes: usize,
) {
    memory.scratch.reserve_staging(bytes);
    let mut offset = 0;
    for &chunk in chunks {
        let length = memory.bytes(chunk);
        stage_chunk(memory, arithmetic, chunk, offset, length);
        offset += length;
    }
}

/// Puts every operand into staging that cannot be read where it is while `own` is written:
/// those of this rank, but for an input that needs no factor and is other memory.
pub(in crate::engine) fn stage_operands(
    memory: &mut StepMemory<'_, '_>,
    arithmetic: &Arithmetic,
    from: &[ChunkRef],
    own: Chunk,
    bytes: usize,
) {
    let mut offset = 0;
    for place in from {
        let direct = match place.chunk.space {
            Space::Window => true,
            Space::Input => memory.is_input_disjoint_from(own) && arithmetic.factor.is_none(),
            Space::Output | Space::Scratch => false,
        };
        if !direct {
            stage_chunk(memory, arithmetic, place.chunk, offset, bytes);
            offset += bytes;
        }
    }
}

fn stage_chunk(
    memory: &mut StepMemory<'_, '_>,
    arithmetic: &Arithmetic,
    chunk: Chunk,
    offset: usize,
    bytes: usize,
) {
    memory.scratch.reserve_staging(offset + bytes);
    let mut staging = std::mem::take(&mut memory.scratch.staging);
    let target = (&mut staging[offset..offset + bytes]).into();
    let source = memory.source(chunk);
    match arithmetic.factor_of(chunk) {
        Some(scalar) => scale(arithmetic.dtype, scalar, target, Some(source)),
        None => copy_to(Store::Cached, target, source),
    }
    memory.scratch.staging = staging;
}

/// Checks a message of `bytes` for `into`; says how long each chunk is that scratch has to hold.
///
/// Blocks of the caller have their lengths; the rest of the message is shared evenly, as all
/// chunks are equally long where an algorithm keeps whole shares in scratch.
pub(in crate::engine) fn message_lengths(
    memory: &StepMemory<'_, '_>,
    into: &[Chunk],
    bytes: usize,
    peer: Rank,
    rank: Rank,
) -> Result<usize> {
    let callers = into.iter().filter(|&&chunk| StepMemory::is_user_buffer(chunk));
    let known: usize = callers.clone().map(|&chunk| memory.bytes(chunk)).sum();
    let unknown = into.len() - callers.count();
    let each = bytes.saturating_sub(known).checked_div(unknown).unwrap_or(0);
    if known + each * unknown != bytes || each > memory.slice_bytes {
        return Err(count_mismatch(peer, bytes, rank, known));
    }
    Ok(each)
}

/// A message longer or shorter than this rank's buffers say.
pub(in crate::engine) fn count_mismatch(sender: Rank, sent: usize, receiver: Rank, expected: usize) -> Error {
    let (sent, expected) = (sent as u64, expected as u64);
    Error::new(ErrorKind::CountMismatch { sender, sent, receiver, expected })
}
