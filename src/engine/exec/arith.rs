//! Copies and reductions of a step in the memory of this rank.

use crate::engine::buffers::StepMemory;
use crate::reduce_op::CustomOp;
use crate::schedule::{Chunk, ChunkRef, Space};
use unisono_reducers::{
    DType, PostOp, ReduceKind, Scalar, Source, Store, Target, copy_to, reduce_assign, reduce_into, reduce_to,
    scale,
};

/// The element type and the arithmetic of one operation.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Arithmetic {
    pub(in crate::engine) dtype: DType,
    pub(in crate::engine) op: ReduceKind,
    /// The function of the caller, if that is the operation.
    pub(in crate::engine) custom: Option<CustomOp>,
    /// Factor that is applied where the input is read.
    pub(in crate::engine) factor: Option<Scalar>,
    /// Operation that is applied to a sum that is not complete.
    pub(in crate::engine) partial: PostOp,
    /// Operation that is applied where a value is complete.
    pub(in crate::engine) finish: PostOp,
    /// Store kind for output that is not read again soon.
    pub(in crate::engine) store: Store,
}

impl Arithmetic {
    /// Returns the operation to apply to a result, which is complete if `finish` is true.
    pub(in crate::engine) fn post_op(&self, finish: bool) -> PostOp {
        if finish { self.finish } else { self.partial }
    }

    /// Computes `target = sources[0] ⊕ sources[1] ⊕ …`, then `finish`.
    #[inline]
    pub(in crate::engine) fn reduce(
        &self,
        store: Store,
        finish: PostOp,
        target: Target<'_>,
        sources: &[Source<'_>],
    ) {
        match (self.custom, sources) {
            (Some(custom), [first, others @ ..]) => custom.run(target, Some(*first), others),
            _ => reduce_to(store, self.dtype, self.op, finish, target, sources),
        }
    }

    /// Computes `target = target ⊕ sources[0] ⊕ …`, then `finish`.
    #[inline]
    pub(in crate::engine) fn reduce_assign(
        &self,
        finish: PostOp,
        target: Target<'_>,
        sources: &[Source<'_>],
    ) {
        match self.custom {
            Some(custom) => custom.run(target, None, sources),
            None => reduce_assign(self.dtype, self.op, finish, target, sources),
        }
    }

    /// Computes `window = output = sources[0] ⊕ …`, then `finish`, in one pass.
    #[inline]
    pub(in crate::engine) fn reduce_twice(
        &self,
        finish: PostOp,
        mut targets: [(Store, Target<'_>); 2],
        sources: &[Source<'_>],
    ) {
        match (self.custom, sources) {
            (Some(custom), [first, others @ ..]) => {
                // A function of the caller writes one target, so it runs once for each of them. The
                // second run finds the same operands, because `stage_operands` has copied those
                // that the output overlaps.
                let [window, output] = targets;
                custom.run(output.1, Some(*first), others);
                custom.run(window.1, Some(*first), others);
            }
            _ => reduce_into(self.dtype, self.op, finish, &mut targets, sources),
        }
    }

    /// Returns the factor to apply to `chunk`.
    pub(in crate::engine) fn factor_of(&self, chunk: Chunk) -> Option<Scalar> {
        self.factor.filter(|_| chunk.space == Space::Input)
    }

    /// Returns the store kind for `chunk`.
    pub(in crate::engine) fn store_into(&self, chunk: Chunk) -> Store {
        if chunk.space == Space::Output { self.store } else { Store::Cached }
    }
}

/// Computes `target_chunk = operand_chunk ⊕ arrived`.
pub(in crate::engine) fn reduce_received(
    memory: &mut StepMemory<'_, '_>,
    arithmetic: &Arithmetic,
    operand_chunk: Chunk,
    target_chunk: Chunk,
    arrived: Source<'_>,
    finish: bool,
) {
    let finish = arithmetic.post_op(finish);
    // Without a factor, and in different buffers, operand and message are combined in one pass.
    // Else the operand comes into the target first, where it may be changed.
    if arithmetic.factor_of(operand_chunk).is_none()
        && let Some((target, source)) = memory.target_and_source(target_chunk, operand_chunk)
    {
        return arithmetic.reduce(Store::Cached, finish, target, &[source, arrived]);
    }
    copy_local(memory, arithmetic, operand_chunk, target_chunk, arrived.len());
    arithmetic.reduce_assign(finish, memory.target(target_chunk, arrived.len()), &[arrived]);
}

/// Copies one chunk of this rank to another, with the factor if the source is input.
pub(in crate::engine) fn copy_local(
    memory: &mut StepMemory<'_, '_>,
    arithmetic: &Arithmetic,
    source_chunk: Chunk,
    target_chunk: Chunk,
    bytes: usize,
) {
    let (dtype, factor) = (arithmetic.dtype, arithmetic.factor_of(source_chunk));
    if memory.is_same_memory(source_chunk, target_chunk) {
        // The bytes are in their place, but the input must still be multiplied once.
        if let Some(scalar) = factor {
            scale(dtype, scalar, memory.target(target_chunk, bytes), None);
        }
        return;
    }
    if let Some((target, source)) = memory.target_and_source(target_chunk, source_chunk) {
        return match factor {
            Some(scalar) => scale(dtype, scalar, target, Some(source)),
            None => copy_to(arithmetic.store_into(target_chunk), target, source),
        };
    }
    // Both chunks are in one buffer, which cannot be borrowed for reading and writing at once. So
    // the copy goes through staging.
    stage_chunk(memory, arithmetic, source_chunk, 0, bytes);
    let open = memory.open_target(target_chunk, bytes);
    if let Some(target) = open.target {
        copy_to(Store::Cached, target, Source::from(&open.staging[..bytes]));
    }
}

/// Packs `chunks`, `bytes` in total, into staging, with the factor where a chunk is input.
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

/// Copies every operand into staging that cannot be read in place while `target_chunk`
/// is written.
///
/// Windows can always be read. An operand of this rank can be read if it is input, needs no factor,
/// and is in another buffer than `target_chunk`.
pub(in crate::engine) fn stage_operands(
    memory: &mut StepMemory<'_, '_>,
    arithmetic: &Arithmetic,
    operands: &[ChunkRef],
    target_chunk: Chunk,
    bytes: usize,
) {
    let mut offset = 0;
    for place in operands {
        let direct = match place.chunk.space {
            Space::Window => true,
            Space::Input => memory.is_input_disjoint_from(target_chunk) && arithmetic.factor.is_none(),
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
    // The staging is taken out for a moment, because `source` borrows all other memory of the step.
    let mut staging = std::mem::take(&mut memory.scratch.staging);
    let target = (&mut staging[offset..offset + bytes]).into();
    let source = memory.source(chunk);
    match arithmetic.factor_of(chunk) {
        Some(scalar) => scale(arithmetic.dtype, scalar, target, Some(source)),
        None => copy_to(Store::Cached, target, source),
    }
    memory.scratch.staging = staging;
}
