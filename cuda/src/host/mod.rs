//! Copying and reducing on the CPU.
//!
//! A call checks its arguments, picks the kernel of its type and operation, and
//! runs the variant of it that was compiled for the best instructions at hand.
//! Floats of 8 and 16 bits are accumulated in f32 over all sources of one call
//! and rounded once. All variants give the same bits; only NaNs may differ in
//! sign and payload.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod formula;
mod kernel;
mod lanes;
mod level;
#[cfg(test)]
mod naive;
mod number;
pub(crate) mod small;
#[cfg(test)]
mod tests;

use crate::{DType, F8E4M3, F8E5M2, Finish, Op, Scalar, Source, Target};
use formula::{Combine, Max, Min, Prod, Reduced, Same, Scaled, Sum};
use half::{bf16, f16};
use kernel::Assign;
use level::Level;
use number::Number;
use std::marker::PhantomData;

/// How results are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Store {
    /// Into the caches: right for what is read again soon, and for everything small.
    #[default]
    Cached,
    /// Past the caches, which saves reading what is overwritten: right for large results that
    /// nobody reads soon. A target that is not aligned to its elements is stored through the caches.
    Stream,
}

/// The target becomes the first source ⊕ the second ⊕ …, in that order, then `finish`.
///
/// # Panics
/// If there is no source, if lengths differ or are no multiple of the element's, or if `finish`
/// divides by zero.
pub fn reduce(dtype: DType, op: Op, finish: Finish, target: Target<'_>, sources: &[Source<'_>]) {
    reduce_to(Store::Cached, dtype, op, finish, target, sources);
}

/// [`reduce`] with a say in how results are written.
///
/// # Panics
/// As [`reduce`].
pub fn reduce_to(
    store: Store,
    dtype: DType,
    op: Op,
    finish: Finish,
    target: Target<'_>,
    sources: &[Source<'_>],
) {
    let (&first, rest) = sources.split_first().expect("a reduction has a source");
    fold(Level::best(), store, dtype, op, finish, target, first, rest);
}

/// The target becomes itself ⊕ the first source ⊕ …, in that order, then `finish`.
///
/// # Panics
/// If lengths differ or are no multiple of the element's, or if `finish` divides by zero.
pub fn reduce_assign(dtype: DType, op: Op, finish: Finish, target: Target<'_>, sources: &[Source<'_>]) {
    let mut target = target;
    let first = itself(&mut target);
    fold(Level::best(), Store::Cached, dtype, op, finish, target, first, sources);
}

/// target = source · scalar. `None` for the source: scale in place.
///
/// # Panics
/// If lengths differ or are no multiple of the element's.
pub fn scale(dtype: DType, scalar: Scalar, target: Target<'_>, source: Option<Source<'_>>) {
    let mut target = target;
    let source = source.unwrap_or_else(|| itself(&mut target));
    scale_at(Level::best(), dtype, scalar, target, source);
}

/// target = source.
///
/// # Panics
/// If lengths differ.
pub fn copy(target: Target<'_>, source: Source<'_>) {
    copy_to(Store::Cached, target, source);
}

/// [`copy`] with a say in how the target is written.
///
/// # Panics
/// If lengths differ.
pub fn copy_to(store: Store, target: Target<'_>, source: Source<'_>) {
    copy_at(Level::best(), store, target, source);
}

/// Sets every byte.
pub fn fill(target: Target<'_>, byte: u8) {
    let mut target = target;
    // SAFETY: a target is valid for writes of its length.
    unsafe { target.as_mut_ptr().write_bytes(byte, target.len()) }
}

/// The target's memory as an operand: kernels read each element before they write it.
fn itself<'a>(target: &mut Target<'a>) -> Source<'a> {
    // SAFETY: a target is valid for reads, and this crate never makes a reference of it.
    unsafe { Source::from_raw(target.as_mut_ptr(), target.len()) }
}

/// Evaluates `$body` with `$number` as the type of `$dtype`.
macro_rules! with_number {
    ($dtype:expr, $number:ident => $body:expr) => {
        with_number!($dtype, $number, $body, {
            I8: i8;
            U8: u8;
            I32: i32;
            U32: u32;
            I64: i64;
            U64: u64;
            F16: f16;
            BF16: bf16;
            F32: f32;
            F64: f64;
            F8E4M3: F8E4M3;
            F8E5M2: F8E5M2;
        })
    };
    ($dtype:expr, $number:ident, $body:expr, {$($row:ident: $type:ty;)*}) => {
        match $dtype {$(
            DType::$row => {
                type $number = $type;
                $body
            }
        )*}
    };
}

#[allow(clippy::too_many_arguments)] // The arguments of `reduce_to`, with the first source apart.
fn fold(
    level: Level,
    store: Store,
    dtype: DType,
    op: Op,
    finish: Finish,
    target: Target<'_>,
    first: Source<'_>,
    rest: &[Source<'_>],
) {
    check(dtype, &target, first);
    rest.iter().for_each(|source| assert_eq!(source.len(), target.len(), "a source as long as the target"));
    assert_ne!(finish, Finish::Divide(0), "no average of no ranks");
    if rest.is_empty() && finish == Finish::Keep {
        return copy_at(level, store, target, first);
    }
    let fold = Fold { level, store, finish, target, first, rest };
    with_number!(dtype, T => match op {
        Op::Sum | Op::Avg | Op::PreMulSum => fold.run::<T, Sum>(),
        Op::Prod => fold.run::<T, Prod>(),
        Op::Min => fold.run::<T, Min>(),
        Op::Max => fold.run::<T, Max>(),
    })
}

/// A reduction whose arguments have been checked.
struct Fold<'a> {
    level: Level,
    store: Store,
    finish: Finish,
    target: Target<'a>,
    first: Source<'a>,
    rest: &'a [Source<'a>],
}

impl Fold<'_> {
    fn run<T: Number, C: Combine>(self) {
        let Self { level, store, finish, target, first, rest } = self;
        let formula = Reduced { first, rest, finish, types: PhantomData::<(T, C)> };
        level.run(Assign { target, formula, store });
    }
}

fn scale_at(level: Level, dtype: DType, scalar: Scalar, target: Target<'_>, source: Source<'_>) {
    check(dtype, &target, source);
    with_number!(dtype, T => {
        let formula = Scaled { source, scalar, types: PhantomData::<T> };
        level.run(Assign { target, formula, store: Store::Cached })
    })
}

fn copy_at(level: Level, store: Store, mut target: Target<'_>, source: Source<'_>) {
    check(DType::U8, &target, source);
    match store {
        // SAFETY: both are valid for this length. They may be the same memory: `copy` allows that.
        Store::Cached if source.len() < LOOP_FROM_BYTES => unsafe {
            target.as_mut_ptr().copy_from(source.as_ptr(), source.len());
        },
        Store::Cached | Store::Stream => level.run(Assign { target, formula: Same(source), store }),
    }
}

/// From here on vector loads and stores copy faster than the C library does: its choice for long copies, one
/// string instruction, is several times slower on lines that another core has written.
const LOOP_FROM_BYTES: usize = 1024;

fn check(dtype: DType, target: &Target<'_>, source: Source<'_>) {
    assert_eq!(source.len(), target.len(), "a source as long as the target");
    assert!(
        target.len().is_multiple_of(dtype.size()),
        "{} bytes are no whole number of {dtype}",
        target.len()
    );
}
