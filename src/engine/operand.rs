//! The arithmetic of a step on memory of this rank.

use super::memory::Memory;
use crate::error::{Error, ErrorKind, Result};
use crate::schedule::{Block, Place, Rank, Space};
use unisono_cuda::{DType, Finish, Op, Scalar, Source, Store, copy_to, reduce_assign, reduce_to, scale};

/// How elements are combined, resolved for one operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arithmetic {
    pub(crate) dtype: DType,
    pub(crate) op: Op,
    /// Applied wherever the input is read.
    pub(crate) factor: Option<Scalar>,
    /// Applied where a value is complete.
    pub(crate) finish: Finish,
    /// How values are stored that nobody reads again soon.
    pub(crate) store: Store,
}

impl Arithmetic {
    /// The factor that reading `block` applies.
    pub(crate) fn factor_of(&self, block: Block) -> Option<Scalar> {
        self.factor.filter(|_| block.space == Space::Input)
    }

    /// How to store into `block`.
    pub(crate) fn store_into(&self, block: Block) -> Store {
        if block.space == Space::Output { self.store } else { Store::Cached }
    }
}

/// `into = with ⊕ arrived`.
pub(crate) fn combine(
    memory: &mut Memory<'_, '_>,
    arithmetic: &Arithmetic,
    with: Block,
    into: Block,
    arrived: Source<'_>,
    finish: bool,
) {
    let Arithmetic { dtype, op, .. } = *arithmetic;
    let finish = if finish { arithmetic.finish } else { Finish::Keep };
    if arithmetic.factor_of(with).is_none()
        && let Some((target, source)) = memory.target_and_source(into, with)
    {
        return reduce_to(Store::Cached, dtype, op, finish, target, &[source, arrived]);
    }
    copy_local(memory, arithmetic, with, into, arrived.len());
    reduce_assign(dtype, op, finish, memory.target(into, arrived.len()), &[arrived]);
}

/// `into = from` within this rank, pre-multiplied where the input is read.
pub(crate) fn copy_local(
    memory: &mut Memory<'_, '_>,
    arithmetic: &Arithmetic,
    from: Block,
    into: Block,
    bytes: usize,
) {
    let (dtype, factor) = (arithmetic.dtype, arithmetic.factor_of(from));
    if memory.same(from, into) {
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
    // Two blocks of one memory: by way of staging.
    stage(memory, arithmetic, from, 0, bytes);
    let open = memory.open(into, bytes);
    if let Some(target) = open.target {
        copy_to(Store::Cached, target, Source::from(&open.staging[..bytes]));
    }
}

/// Gathers `blocks`, `bytes` in all, in staging, pre-multiplied where the input is read.
pub(crate) fn stage_scaled(
    memory: &mut Memory<'_, '_>,
    arithmetic: &Arithmetic,
    blocks: &[Block],
    bytes: usize,
) {
    memory.scratch.reserve_staging(bytes);
    let mut offset = 0;
    for &block in blocks {
        let length = memory.bytes(block);
        stage(memory, arithmetic, block, offset, length);
        offset += length;
    }
}

/// Puts every operand into staging that cannot be read where it is while `own` is written:
/// those of this rank, but for an input that needs no factor and is other memory.
pub(crate) fn stage_operands(
    memory: &mut Memory<'_, '_>,
    arithmetic: &Arithmetic,
    from: &[Place],
    own: Block,
    bytes: usize,
) {
    let mut offset = 0;
    for place in from {
        let direct = match place.block.space {
            Space::Window => true,
            Space::Input => memory.has_input_beside(own) && arithmetic.factor.is_none(),
            Space::Output | Space::Scratch => false,
        };
        if !direct {
            stage(memory, arithmetic, place.block, offset, bytes);
            offset += bytes;
        }
    }
}

fn stage(memory: &mut Memory<'_, '_>, arithmetic: &Arithmetic, block: Block, offset: usize, bytes: usize) {
    memory.scratch.reserve_staging(offset + bytes);
    let mut staging = std::mem::take(&mut memory.scratch.staging);
    let target = (&mut staging[offset..offset + bytes]).into();
    let source = memory.source(block);
    match arithmetic.factor_of(block) {
        Some(scalar) => scale(arithmetic.dtype, scalar, target, Some(source)),
        None => copy_to(Store::Cached, target, source),
    }
    memory.scratch.staging = staging;
}

/// Checks a message of `bytes` for `into`; says how long each block is that scratch has to hold.
///
/// Blocks of the caller have their lengths; the rest of the message is shared evenly, as all
/// blocks are equally long where an algorithm keeps whole shares in scratch.
pub(crate) fn message_lengths(
    memory: &Memory<'_, '_>,
    into: &[Block],
    bytes: usize,
    peer: Rank,
    rank: Rank,
) -> Result<usize> {
    let callers = into.iter().filter(|&&block| Memory::is_callers(block));
    let known: usize = callers.clone().map(|&block| memory.bytes(block)).sum();
    let unknown = into.len() - callers.count();
    let each = bytes.saturating_sub(known).checked_div(unknown).unwrap_or(0);
    if known + each * unknown != bytes || each > memory.slice_bytes {
        return Err(wrong_length(peer, bytes, rank, known));
    }
    Ok(each)
}

/// A message longer or shorter than this rank's buffers say.
pub(crate) fn wrong_length(sender: Rank, sent: usize, receiver: Rank, expected: usize) -> Error {
    let (sent, expected) = (sent as u64, expected as u64);
    Error::new(ErrorKind::Length { sender, sent, receiver, expected })
}
