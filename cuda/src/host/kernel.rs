//! The loops: a target is computed pack by pack, each pack from all sources, in one pass over memory.

use super::Store;
use super::level::{Instructions, Kernel, Portable, STREAM_BYTES, stream_fence};
use super::number::{Number, Value, each, pairs};
use crate::{Finish, Source, Target};
use std::marker::PhantomData;

/// How two values become one.
pub(super) trait Combine {
    /// left ⊕ right, lane by lane.
    fn combine<V: Value, I: Instructions, const N: usize>(cpu: I, left: [V; N], right: [V; N]) -> [V; N];
}

/// Row of [`Combine`]: the sum.
pub(super) struct Sum;
/// Row of [`Combine`]: the product.
pub(super) struct Prod;
/// Row of [`Combine`]: the smaller.
pub(super) struct Min;
/// Row of [`Combine`]: the larger.
pub(super) struct Max;

impl Combine for Sum {
    #[inline(always)]
    fn combine<V: Value, I: Instructions, const N: usize>(_: I, left: [V; N], right: [V; N]) -> [V; N] {
        pairs(left, right, V::sum)
    }
}

impl Combine for Prod {
    #[inline(always)]
    fn combine<V: Value, I: Instructions, const N: usize>(_: I, left: [V; N], right: [V; N]) -> [V; N] {
        pairs(left, right, V::product)
    }
}

impl Combine for Min {
    #[inline(always)]
    fn combine<V: Value, I: Instructions, const N: usize>(cpu: I, left: [V; N], right: [V; N]) -> [V; N] {
        V::all_smaller(cpu, left, right)
    }
}

impl Combine for Max {
    #[inline(always)]
    fn combine<V: Value, I: Instructions, const N: usize>(cpu: I, left: [V; N], right: [V; N]) -> [V; N] {
        V::all_larger(cpu, left, right)
    }
}

/// A value for every position of a target.
pub(super) trait Packs {
    /// Its elements.
    type Number: Number;

    /// The `N` elements from byte `at` on.
    ///
    /// # Safety
    /// They lie within the target.
    unsafe fn pack<I: Instructions, const N: usize>(&self, cpu: I, at: usize) -> [Self::Number; N];
}

/// first ⊕ second.
pub(super) struct Two<'a, T, C> {
    pub(super) operands: [Source<'a>; 2],
    pub(super) finish: Finish,
    pub(super) types: PhantomData<(T, C)>,
}

impl<T: Number, C: Combine> Packs for Two<'_, T, C> {
    type Number = T;

    #[inline(always)]
    unsafe fn pack<I: Instructions, const N: usize>(&self, cpu: I, at: usize) -> [T; N] {
        // SAFETY: sources are as long as the target, within which the caller keeps.
        let first = unsafe { load::<T, I, N>(cpu, self.operands[0], at) };
        // SAFETY: likewise.
        let second = unsafe { load::<T, I, N>(cpu, self.operands[1], at) };
        finish(cpu, self.finish, C::combine(cpu, first, second))
    }
}

/// first ⊕ rest[0] ⊕ rest[1] ⊕ …
pub(super) struct Many<'a, T, C> {
    pub(super) first: Source<'a>,
    pub(super) rest: &'a [Source<'a>],
    pub(super) finish: Finish,
    pub(super) types: PhantomData<(T, C)>,
}

impl<T: Number, C: Combine> Packs for Many<'_, T, C> {
    type Number = T;

    #[inline(always)]
    unsafe fn pack<I: Instructions, const N: usize>(&self, cpu: I, at: usize) -> [T; N] {
        // SAFETY: sources are as long as the target, within which the caller keeps.
        let mut values = unsafe { load::<T, I, N>(cpu, self.first, at) };
        for &source in self.rest {
            // SAFETY: as above.
            values = C::combine(cpu, values, unsafe { load::<T, I, N>(cpu, source, at) });
        }
        finish(cpu, self.finish, values)
    }
}

/// source · factor.
pub(super) struct Scaled<'a, T: Number> {
    pub(super) source: Source<'a>,
    pub(super) factor: T::Value,
}

impl<T: Number> Packs for Scaled<'_, T> {
    type Number = T;

    #[inline(always)]
    unsafe fn pack<I: Instructions, const N: usize>(&self, cpu: I, at: usize) -> [T; N] {
        // SAFETY: the source is as long as the target, within which the caller keeps.
        let values = unsafe { load::<T, I, N>(cpu, self.source, at) };
        T::narrow(cpu, each(values, |value| value.product(self.factor)))
    }
}

/// The source itself.
pub(super) struct Same<'a>(pub(super) Source<'a>);

impl Packs for Same<'_> {
    type Number = u8;

    #[inline(always)]
    unsafe fn pack<I: Instructions, const N: usize>(&self, cpu: I, at: usize) -> [u8; N] {
        // SAFETY: the source is as long as the target, within which the caller keeps.
        unsafe { load::<u8, I, N>(cpu, self.0, at) }
    }
}

/// target = packs, `LANES` elements at a time.
pub(super) struct Assign<'a, P, const LANES: usize> {
    pub(super) target: Target<'a>,
    pub(super) packs: P,
    pub(super) store: Store,
}

impl<P: Packs, const LANES: usize> Kernel for Assign<'_, P, LANES> {
    #[inline(always)]
    fn run<I: Instructions>(mut self, cpu: I) {
        let bytes = self.target.len();
        let mut at = 0;
        if let Some(head) = self.bytes_to_alignment() {
            at = self.singles(at, head.min(bytes));
            at = self.whole_packs::<I, LANES, true>(cpu, at);
            stream_fence();
        } else {
            at = self.whole_packs::<I, LANES, false>(cpu, at);
        }
        at = self.whole_packs::<I, 8, false>(cpu, at);
        if at < bytes {
            self.singles(at, bytes);
        }
    }
}

impl<P: Packs, const LANES: usize> Assign<'_, P, LANES> {
    const SIZE: usize = size_of::<P::Number>();

    /// Where non-temporal stores can begin, if they are wanted and possible.
    #[inline(always)]
    fn bytes_to_alignment(&mut self) -> Option<usize> {
        // Whole cache lines, so that none is written in two halves.
        let head = self.target.as_mut_ptr().addr().wrapping_neg() % CACHE_LINE;
        (self.store == Store::Stream && head.is_multiple_of(Self::SIZE)).then_some(head)
    }

    /// Stores packs of `N` from `at` to as near the end as they go; says where that is.
    #[inline(always)]
    fn whole_packs<I: Instructions, const N: usize, const STREAM: bool>(
        &mut self,
        cpu: I,
        mut at: usize,
    ) -> usize {
        let target = self.target.as_mut_ptr();
        while self.target.len() - at >= N * Self::SIZE {
            // SAFETY: the pack lies within the target, by the condition of the loop. When
            // streaming, `at` began aligned and packs are multiples of STREAM_BYTES.
            unsafe {
                let pack = self.packs.pack::<I, N>(cpu, at);
                if STREAM {
                    stream_pack(cpu, target.add(at), &pack);
                } else {
                    target.add(at).cast::<[P::Number; N]>().write_unaligned(pack);
                }
            }
            at += N * Self::SIZE;
        }
        at
    }

    /// Stores elements one by one; returns `end`. Compiled once for all levels.
    #[inline(never)]
    fn singles(&mut self, mut at: usize, end: usize) -> usize {
        assert!(end <= self.target.len());
        let target = self.target.as_mut_ptr();
        while at < end {
            // SAFETY: one element before `end`, which is within the target, and all three are
            // multiples of its size.
            unsafe {
                let single = self.packs.pack::<Portable, 1>(Portable, at);
                target.add(at).cast::<[P::Number; 1]>().write_unaligned(single);
            }
            at += Self::SIZE;
        }
        end
    }
}

/// Bytes that travel between caches and memory together.
const CACHE_LINE: usize = 64;

const _: () = assert!(CACHE_LINE.is_multiple_of(STREAM_BYTES));

/// Stores a pack past the caches.
///
/// # Safety
/// `target` is valid for writes of the pack and aligned to [`STREAM_BYTES`].
#[inline(always)]
unsafe fn stream_pack<T, I: Instructions, const N: usize>(cpu: I, target: *mut u8, pack: &[T; N]) {
    assert!(size_of_val(pack).is_multiple_of(STREAM_BYTES));
    let from = pack.as_ptr().cast::<u8>();
    for at in (0..size_of_val(pack)).step_by(STREAM_BYTES) {
        // SAFETY: within the pack, and so within what the caller vouches for.
        unsafe { cpu.stream(target.add(at), from.add(at)) };
    }
}

/// The values of `N` elements of `source` from byte `at` on.
///
/// # Safety
/// They lie within the source.
#[inline(always)]
unsafe fn load<T: Number, I: Instructions, const N: usize>(
    cpu: I,
    source: Source<'_>,
    at: usize,
) -> [T::Value; N] {
    debug_assert!(at + N * size_of::<T>() <= source.len());
    // SAFETY: in bounds by the caller's word; any bytes are a T. The memory is copied before it is
    // looked at: should a peer write it meanwhile, the values are wrong and nothing else.
    let pack = unsafe { source.as_ptr().add(at).cast::<[T; N]>().read_unaligned() };
    T::widen(cpu, pack)
}

/// The elements to store for complete sums.
#[inline(always)]
fn finish<T: Number, I: Instructions, const N: usize>(
    cpu: I,
    finish: Finish,
    values: [T::Value; N],
) -> [T; N] {
    match finish {
        Finish::Keep => T::narrow(cpu, values),
        Finish::Divide(ranks) => T::narrow(cpu, each(values, |value| value.divide(ranks))),
    }
}
