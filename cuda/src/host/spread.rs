//! One result for several targets: block by block, so that what the second target and all further
//! ones are given is still in the nearest cache.

use super::formula::Same;
use super::kernel::{Assign, CACHE_LINE, Part};
use super::level::{Level, stream_fence};
use super::{Store, itself};
use crate::{Source, Target};
use std::mem::MaybeUninit;
use std::ops::Range;

/// Has `compute` write the result to one target, and copies it to the others.
///
/// `element`: bytes that blocks must not divide.
pub(super) fn spread(
    level: Level,
    targets: &mut [(Store, Target<'_>)],
    element: usize,
    compute: impl Fn(Part<'_>),
) {
    match targets {
        [] => return,
        [(store, target)] => compute(Part { target: whole(target), at: 0, store: *store }),
        _ => {
            let ranges = blocks(targets, element);
            match targets.iter().position(|(store, _)| *store == Store::Cached) {
                Some(own) => by_way_of(own, level, targets, ranges, compute),
                None => by_way_of_staging(level, targets, ranges, compute),
            }
        }
    }
    fence(targets);
}

/// Every target becomes the source, which is as long.
pub(super) fn copy_at(level: Level, targets: &mut [(Store, Target<'_>)], source: Source<'_>) {
    match targets {
        [] => return,
        [(store, target)] => copy_part(level, Part { target: whole(target), at: 0, store: *store }, source),
        _ => {
            for range in blocks(targets, 1) {
                targets.iter_mut().for_each(|target| copy_part(level, part(target, &range), source));
            }
        }
    }
    fence(targets);
}

/// part = source
fn copy_part(level: Level, mut part: Part<'_>, source: Source<'_>) {
    let bytes = part.target.len();
    match part.store {
        // SAFETY: both are valid for this length. They may be the same memory: `copy` allows that.
        Store::Cached if bytes < LOOP_FROM_BYTES => unsafe {
            part.target.as_mut_ptr().copy_from(source.as_ptr().add(part.at), bytes);
        },
        Store::Cached | Store::Stream => level.run(Assign { part, formula: Same(source) }),
    }
}

/// From here on vector loads and stores copy faster than the C library does: its choice for long copies, one
/// string instruction, is several times slower on lines that another core has written.
const LOOP_FROM_BYTES: usize = 1024;

/// The result is computed into the target `own`, which stays in the caches.
fn by_way_of(
    own: usize,
    level: Level,
    targets: &mut [(Store, Target<'_>)],
    ranges: impl Iterator<Item = Range<usize>>,
    compute: impl Fn(Part<'_>),
) {
    let (before, rest) = targets.split_at_mut(own);
    let Some((own, after)) = rest.split_first_mut() else { return };
    for range in ranges {
        compute(part(own, &range));
        let result = itself(&mut own.1.slice(range.clone()));
        for other in before.iter_mut().chain(after.iter_mut()) {
            copy_part(level, Part { at: 0, ..part(other, &range) }, result);
        }
    }
}

/// No target stays in the caches: the result is computed into memory that does.
fn by_way_of_staging(
    level: Level,
    targets: &mut [(Store, Target<'_>)],
    ranges: impl Iterator<Item = Range<usize>>,
    compute: impl Fn(Part<'_>),
) {
    let mut staging = Staging([MaybeUninit::uninit(); BLOCK_BYTES]);
    for range in ranges {
        // SAFETY: blocks are no longer than staging, which nobody else knows.
        let mut result = unsafe { Target::from_raw(staging.0.as_mut_ptr().cast(), range.len()) };
        compute(Part { target: whole(&mut result), at: range.start, store: Store::Cached });
        let result = itself(&mut result);
        for target in targets.iter_mut() {
            copy_part(level, Part { at: 0, ..part(target, &range) }, result);
        }
    }
}

/// The blocks of a result, each once and in order.
fn blocks(targets: &mut [(Store, Target<'_>)], element: usize) -> impl Iterator<Item = Range<usize>> + use<> {
    let bytes = targets[0].1.len();
    // Blocks end where cache lines do, as a line stored past the caches should be stored at once.
    let past_line = targets
        .iter_mut()
        .find(|(store, _)| *store == Store::Stream)
        .map_or(0, |(_, target)| target.as_mut_ptr().addr() % CACHE_LINE);
    let shift = if past_line.is_multiple_of(element) { past_line } else { 0 };
    let end = move |index: usize| ((index + 1) * BLOCK_BYTES - shift).min(bytes);
    (0..(bytes + shift).div_ceil(BLOCK_BYTES)).map(move |index| {
        let start = if index == 0 { 0 } else { end(index - 1) };
        start..end(index)
    })
}

fn part<'a>((store, target): &'a mut (Store, Target<'_>), range: &Range<usize>) -> Part<'a> {
    Part { target: target.slice(range.clone()), at: range.start, store: *store }
}

fn whole<'a>(target: &'a mut Target<'_>) -> Target<'a> {
    target.slice(0..target.len())
}

fn fence(targets: &[(Store, Target<'_>)]) {
    if targets.iter().any(|(store, _)| *store == Store::Stream) {
        stream_fence();
    }
}

/// Small enough to stay in the nearest cache with as many bytes of several sources; long enough that
/// the calls for each do not count.
const BLOCK_BYTES: usize = 4096;

#[repr(align(64))]
struct Staging([MaybeUninit<u8>; BLOCK_BYTES]);
