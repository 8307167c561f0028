//! One result for several targets: block by block, so that data for the second and all further
//! targets is still in the L1 cache.

use crate::host::element_op::Identity;
use crate::host::isa::{Isa, stream_fence};
use crate::host::kernel::{Assign, CACHE_LINE, Dest};
use crate::host::{Store, as_source};
use crate::{Source, Target};
use std::mem::MaybeUninit;
use std::ops::Range;

/// Has `compute` write the result from some byte on to one target, and copies it to the others.
///
/// `element`: bytes that blocks must not divide.
#[inline]
pub(super) fn store_all(
    level: Isa,
    targets: &mut [Dest<'_>],
    element: usize,
    mut compute: impl FnMut(&mut Dest<'_>, usize),
) {
    match targets {
        [target] => compute(target, 0),
        _ => store_many(level, targets, element, compute),
    }
    fence(targets);
}

/// Copies the source, which has their length, to every target.
#[inline]
pub(super) fn copy_at(level: Isa, targets: &mut [Dest<'_>], source: Source<'_>) {
    match targets {
        [target] => copy_part(level, target, source, 0),
        _ => {
            for range in blocks(targets, 1) {
                for target in &mut *targets {
                    copy_part(level, &mut dest_range(target, &range), source, range.start);
                }
            }
        }
    }
    fence(targets);
}

/// target = source from byte `offset` on
#[inline]
fn copy_part(level: Isa, dest: &mut Dest<'_>, source: Source<'_>, offset: usize) {
    let (store, target) = dest;
    match store {
        // SAFETY: both are valid for this length. They may be the same memory: `copy` allows that.
        Store::Cached if target.len() < VECTOR_COPY_MIN_BYTES => unsafe {
            target.as_mut_ptr().copy_from(source.as_ptr().add(offset), target.len());
        },
        Store::Cached | Store::Stream => level.run(Assign { dest, offset, op: Identity(source) }),
    }
}

/// From this length on, vector loads and stores copy faster than the C library. Its long copies are
/// one string instruction, which is several times slower on lines that another core has written.
pub(super) const VECTOR_COPY_MIN_BYTES: usize = 1024;

#[inline(never)] // Calls with one target have no use for its stack frame.
fn store_many(
    level: Isa,
    targets: &mut [Dest<'_>],
    element: usize,
    compute: impl FnMut(&mut Dest<'_>, usize),
) {
    match targets.iter().position(|(store, _)| *store == Store::Cached) {
        Some(own) => via_cached_target(own, level, targets, element, compute),
        None => via_staging(level, targets, element, compute),
    }
}

/// The result is computed into the target `index`, which stays in the caches.
fn via_cached_target(
    index: usize,
    level: Isa,
    targets: &mut [Dest<'_>],
    element: usize,
    mut compute: impl FnMut(&mut Dest<'_>, usize),
) {
    let ranges = blocks(targets, element);
    let (left, tail) = targets.split_at_mut(index);
    let Some((dest, right)) = tail.split_first_mut() else { return };
    for range in ranges {
        let mut part = dest_range(dest, &range);
        compute(&mut part, range.start);
        let result = as_source(&mut part.1);
        for other in left.iter_mut().chain(right.iter_mut()) {
            copy_part(level, &mut dest_range(other, &range), result, 0);
        }
    }
}

/// No target stays in the caches: the result is computed into memory that does.
pub(super) fn via_staging(
    level: Isa,
    targets: &mut [Dest<'_>],
    element: usize,
    mut compute: impl FnMut(&mut Dest<'_>, usize),
) {
    let mut staging = Staging([MaybeUninit::uninit(); BLOCK_BYTES]);
    for range in blocks(targets, element) {
        // SAFETY: blocks are no longer than staging, which nothing else accesses.
        let result = unsafe { Target::from_raw(staging.0.as_mut_ptr().cast(), range.len()) };
        let mut result = (Store::Cached, result);
        compute(&mut result, range.start);
        let result = as_source(&mut result.1);
        for target in &mut *targets {
            copy_part(level, &mut dest_range(target, &range), result, 0);
        }
    }
}

/// The blocks of a result, each once and in order.
fn blocks(targets: &mut [Dest<'_>], element: usize) -> impl Iterator<Item = Range<usize>> + use<> {
    let bytes = targets.first().map_or(0, |(_, target)| target.len());
    // Blocks end where cache lines do, as a line stored past the caches should be stored at once.
    let past_line = targets
        .iter_mut()
        .find(|(store, _)| *store == Store::Stream)
        .map_or(0, |(_, target)| target.as_mut_ptr().addr() % CACHE_LINE);
    let shift = if past_line.is_multiple_of(element) { past_line } else { 0 };
    let end = move |index: usize| ((index + 1) * BLOCK_BYTES - shift).min(bytes);
    let count = if bytes == 0 { 0 } else { (bytes + shift).div_ceil(BLOCK_BYTES) };
    (0..count).map(move |index| index.checked_sub(1).map_or(0, end)..end(index))
}

fn dest_range<'a>((store, target): &'a mut Dest<'_>, range: &Range<usize>) -> Dest<'a> {
    (*store, target.slice(range.clone()))
}

/// Orders what was written past the caches before whatever follows.
#[inline]
pub(super) fn fence(targets: &[Dest<'_>]) {
    if targets.iter().any(|(store, _)| *store == Store::Stream) {
        stream_fence();
    }
}

/// Small enough for the L1 cache together with the same block of several sources, and large enough
/// to make the calls for each block negligible.
const BLOCK_BYTES: usize = 2048;

#[repr(align(64))]
struct Staging([MaybeUninit<u8>; BLOCK_BYTES]);
