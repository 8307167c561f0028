//! Copying and reducing on the CPU.
//!
//! A call checks its arguments, picks the kernel of its type and operation, and
//! runs the variant of it that was compiled for the best instructions at hand.
//! Floats of 8 and 16 bits are accumulated in f32 over all sources of one call
//! and rounded once. All variants give the same bits; only NaNs may differ in
//! sign and payload.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod by_function;
mod convert;
mod element_op;
mod gradients;
mod isa;
mod kernel;
mod lanes;
mod multi_store;
#[cfg(test)]
mod naive;
pub(crate) mod narrow_float;
mod portable;
mod reduction;
mod simd_element;
mod strided;
mod structured_lanes;
#[cfg(test)]
mod tests;

pub use by_function::reduce_by;
pub use convert::{narrow, widen};
pub use gradients::{average, block_square_sums, clip_factor, scale_and_clip};
pub use strided::{pack, unpack};

use crate::host::isa::Isa;
use crate::host::multi_store::{VECTOR_COPY_MIN_BYTES, copy_at};
use crate::host::reduction::{Reduction, check, scale_at};
use crate::{DType, PostOp, ReduceKind, Scalar, Source, Target};

/// Returns the name of the instruction set with which this process copies and reduces memory:
/// `AVX-512` (F, BW and VL), `AVX2` (with F16C), or `portable` for the instructions of every
/// processor of the architecture.
///
/// All of them give the same bits.
///
/// ```
/// assert!(["AVX-512", "AVX2", "portable"].contains(&unisono_reducers::instruction_set()));
/// ```
pub fn instruction_set() -> &'static str {
    Isa::best().name()
}

/// Kinds of stores for results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Store {
    /// Into the caches: right for what is read again soon, and for everything small.
    #[default]
    Cached,
    /// Non-temporal stores. They save reading the overwritten lines, and suit large results that
    /// are not read soon. A target that is not aligned to its elements is stored through the
    /// caches.
    Stream,
}

/// The target becomes the first source ⊕ the second ⊕ …, in that order, then `finish`.
///
/// # Panics
/// If the operation is not defined for the type, if there is no source, if lengths differ or are no
/// multiple of the element's, or if `finish` divides by zero.
#[inline]
pub fn reduce(dtype: DType, op: ReduceKind, finish: PostOp, target: Target<'_>, sources: &[Source<'_>]) {
    reduce_to(Store::Cached, dtype, op, finish, target, sources);
}

/// [`reduce`] with a say in how results are written.
///
/// # Panics
/// As [`reduce`].
#[inline]
pub fn reduce_to(
    store: Store,
    dtype: DType,
    op: ReduceKind,
    finish: PostOp,
    target: Target<'_>,
    sources: &[Source<'_>],
) {
    reduce_into(dtype, op, finish, &mut [(store, target)], sources);
}

/// Reduces like [`reduce_to`] into any number of targets, in one pass over the sources.
///
/// It serves results for the caller and for peers: sources are read once, and each target is
/// written with its own kind of store. Targets with non-temporal stores should begin equally far
/// after a multiple of 64 bytes.
///
/// # Panics
/// Same as [`reduce`].
#[inline]
pub fn reduce_into(
    dtype: DType,
    op: ReduceKind,
    finish: PostOp,
    targets: &mut [(Store, Target<'_>)],
    sources: &[Source<'_>],
) {
    let (first, further) = sources.split_first().expect("a reduction has a source");
    Reduction { finish, first, rest: further, offset: 0 }.store_to(dtype, op, targets);
}

/// The target becomes itself ⊕ the first source ⊕ …, in that order, then `finish`.
///
/// # Panics
/// If lengths differ or are no multiple of the element's, or if `finish` divides by zero.
#[inline]
pub fn reduce_assign(
    dtype: DType,
    op: ReduceKind,
    finish: PostOp,
    target: Target<'_>,
    sources: &[Source<'_>],
) {
    reduce_assign_into(dtype, op, finish, &mut [(Store::Cached, target)], sources);
}

/// [`reduce_assign`] for any number of targets: all become the first target ⊕ the first source ⊕ ….
///
/// # Panics
/// As [`reduce_assign`], and if there is no target.
#[inline]
pub fn reduce_assign_into(
    dtype: DType,
    op: ReduceKind,
    finish: PostOp,
    targets: &mut [(Store, Target<'_>)],
    sources: &[Source<'_>],
) {
    let (_, target) = targets.first_mut().expect("a target to begin with");
    let first = as_source(target);
    Reduction { finish, first: &first, rest: sources, offset: 0 }.store_to(dtype, op, targets);
}

/// Reduces the first operand ⊕ the second ⊕ …, in that order, then `finish`, into the target. The
/// operand `own`, if any, is the target itself, and its entry of `sources` is ignored.
///
/// # Panics
/// Same as [`reduce`], and if there is no such operand.
#[inline]
pub fn reduce_among<'a>(
    dtype: DType,
    op: ReduceKind,
    finish: PostOp,
    target: Target<'a>,
    sources: &mut [Source<'a>],
    own: Option<usize>,
) {
    let mut target = target;
    if let Some(index) = own {
        sources[index] = as_source(&mut target);
    }
    reduce_into(dtype, op, finish, &mut [(Store::Cached, target)], sources);
}

/// Computes target = source · scalar. `None` for the source scales in place.
///
/// # Panics
/// Lengths differ, or are no multiple of the element's, or the type is no plain number.
#[inline]
pub fn scale(dtype: DType, scalar: Scalar, target: Target<'_>, source: Option<Source<'_>>) {
    let mut target = target;
    let source = source.unwrap_or_else(|| as_source(&mut target));
    scale_at(Isa::best(), dtype, scalar, target, source);
}

/// target = source.
///
/// # Panics
/// If lengths differ.
#[inline]
pub fn copy(target: Target<'_>, source: Source<'_>) {
    copy_to(Store::Cached, target, source);
}

/// [`copy`] with a say in how the target is written.
///
/// # Panics
/// If lengths differ.
#[inline]
pub fn copy_to(store: Store, target: Target<'_>, source: Source<'_>) {
    let mut target = target;
    if store == Store::Cached && target.len() < VECTOR_COPY_MIN_BYTES {
        check(DType::U8, target.len(), source.len());
        // SAFETY: both are valid for this length. They may be the same memory: `copy` allows that.
        return unsafe { target.as_mut_ptr().copy_from(source.as_ptr(), target.len()) };
    }
    copy_into(&mut [(store, target)], source);
}

/// [`copy_to`] for any number of targets, in one pass over the source.
///
/// # Panics
/// As [`copy`].
#[inline]
pub fn copy_into(targets: &mut [(Store, Target<'_>)], source: Source<'_>) {
    targets.iter().for_each(|(_, target)| check(DType::U8, target.len(), source.len()));
    copy_at(Isa::best(), targets, source);
}

/// Sets every byte.
pub fn fill(target: Target<'_>, byte: u8) {
    let mut target = target;
    // SAFETY: a target is valid for writes of its length.
    unsafe { target.as_mut_ptr().write_bytes(byte, target.len()) }
}

/// The target's memory as an operand: kernels read each element before they write it.
#[inline]
fn as_source<'a>(target: &mut Target<'a>) -> Source<'a> {
    // SAFETY: a target is valid for reads, and this crate never makes a reference of it.
    unsafe { Source::from_raw(target.as_mut_ptr(), target.len()) }
}
