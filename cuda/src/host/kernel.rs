//! The loop: a target is computed pack by pack, each pack from all sources, in one pass over memory.

use super::Store;
use super::lanes::Lanes;
use super::level::{Instructions, Kernel, STREAM_BYTES, stream_fence};
use super::number::Number;
use crate::{Finish, Scalar, Source, Target};
use std::marker::PhantomData;

/// How two values become one.
pub(super) trait Combine {
    /// left ⊕ right.
    fn combine<L: Lanes>(left: L, right: L) -> L;
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
    fn combine<L: Lanes>(left: L, right: L) -> L {
        left.sum(right)
    }
}

impl Combine for Prod {
    #[inline(always)]
    fn combine<L: Lanes>(left: L, right: L) -> L {
        left.product(right)
    }
}

impl Combine for Min {
    #[inline(always)]
    fn combine<L: Lanes>(left: L, right: L) -> L {
        left.smaller(right)
    }
}

impl Combine for Max {
    #[inline(always)]
    fn combine<L: Lanes>(left: L, right: L) -> L {
        left.larger(right)
    }
}

/// A pack: a few registers of elements of type `T`, worked on together to hide latencies.
type Pack<T, I, const N: usize> = [<T as Number>::Lanes<I>; N];

/// What is computed for one position from the sources at that position.
pub(super) trait Formula {
    /// Type of the elements.
    type Number: Number;

    /// The result where `read` says what a source holds.
    fn evaluate<I: Instructions, const N: usize>(
        &self,
        cpu: I,
        read: impl Fn(Source<'_>) -> Pack<Self::Number, I, N>,
    ) -> Pack<Self::Number, I, N>;
}

/// first ⊕ rest[0] ⊕ rest[1] ⊕ …, then `finish`.
pub(super) struct Reduced<'a, T, C> {
    pub(super) first: Source<'a>,
    pub(super) rest: &'a [Source<'a>],
    pub(super) finish: Finish,
    pub(super) types: PhantomData<(T, C)>,
}

impl<T: Number, C: Combine> Formula for Reduced<'_, T, C> {
    type Number = T;

    #[inline(always)]
    fn evaluate<I: Instructions, const N: usize>(
        &self,
        _: I,
        read: impl Fn(Source<'_>) -> Pack<T, I, N>,
    ) -> Pack<T, I, N> {
        let mut pack = read(self.first);
        for &source in self.rest {
            let other = read(source);
            for (own, other) in pack.iter_mut().zip(&other) {
                *own = C::combine(*own, *other);
            }
        }
        if let Finish::Divide(ranks) = self.finish {
            for own in &mut pack {
                *own = own.divide(ranks);
            }
        }
        pack
    }
}

/// source · scalar
pub(super) struct Scaled<'a, T> {
    pub(super) source: Source<'a>,
    pub(super) scalar: Scalar,
    pub(super) types: PhantomData<T>,
}

impl<T: Number> Formula for Scaled<'_, T> {
    type Number = T;

    #[inline(always)]
    fn evaluate<I: Instructions, const N: usize>(
        &self,
        cpu: I,
        read: impl Fn(Source<'_>) -> Pack<T, I, N>,
    ) -> Pack<T, I, N> {
        let factor = T::splat(cpu, self.scalar);
        let mut pack = read(self.source);
        for own in &mut pack {
            *own = own.product(factor);
        }
        pack
    }
}

/// The source itself.
pub(super) struct Same<'a>(pub(super) Source<'a>);

impl Formula for Same<'_> {
    type Number = u8;

    #[inline(always)]
    fn evaluate<I: Instructions, const N: usize>(
        &self,
        _: I,
        read: impl Fn(Source<'_>) -> Pack<u8, I, N>,
    ) -> Pack<u8, I, N> {
        read(self.0)
    }
}

/// target = formula
pub(super) struct Assign<'a, F> {
    pub(super) target: Target<'a>,
    pub(super) formula: F,
    pub(super) store: Store,
}

/// Registers of one pack.
const REGISTERS: usize = 4;

impl<F: Formula> Kernel for Assign<'_, F> {
    #[inline(always)]
    fn run<I: Instructions>(mut self, cpu: I) {
        let bytes = self.target.len();
        let head = self.bytes_to_alignment();
        let mut at = head.unwrap_or(0).min(bytes);
        while bytes - at >= Self::PACK {
            self.whole::<I, REGISTERS>(cpu, at, head.is_some());
            at += Self::PACK;
        }
        if head.is_some() {
            stream_fence();
        }
        for (mut from, to) in [(0, head.unwrap_or(0).min(bytes)), (at, bytes)] {
            while to - from >= Self::REGISTER {
                self.whole::<I, 1>(cpu, from, false);
                from += Self::REGISTER;
            }
            if from < to {
                self.partial(cpu, from, to - from);
            }
        }
    }
}

impl<F: Formula> Assign<'_, F> {
    /// Bytes in memory of what fills one register.
    const REGISTER: usize = F::Number::LANES * size_of::<F::Number>();
    /// Bytes in memory of one pack.
    const PACK: usize = REGISTERS * Self::REGISTER;

    /// Where non-temporal stores can begin, if they are wanted and possible.
    #[inline(always)]
    fn bytes_to_alignment(&mut self) -> Option<usize> {
        if self.store == Store::Cached {
            return None;
        }
        // Whole cache lines, so that none is written in two halves.
        let head = self.target.as_mut_ptr().addr().wrapping_neg() % CACHE_LINE;
        head.is_multiple_of(size_of::<F::Number>()).then_some(head)
    }

    /// Computes `N` registers of elements from byte `at` on.
    #[inline(always)]
    fn whole<I: Instructions, const N: usize>(&mut self, cpu: I, at: usize, stream: bool) {
        debug_assert!(at + N * Self::REGISTER <= self.target.len());
        let pack = self.formula.evaluate::<I, N>(cpu, |source| {
            debug_assert_eq!(source.len(), self.target.len());
            // SAFETY: within the target, and sources are as long.
            unsafe { load_pack::<F::Number, I, N>(cpu, source.as_ptr().add(at)) }
        });
        // SAFETY: within the target.
        let target = unsafe { self.target.as_mut_ptr().add(at) };
        if stream {
            let mut staging = Staging::new();
            // SAFETY: a pack fits into `staging`.
            unsafe { store_pack::<F::Number, I, N>(cpu, pack, staging.0.as_mut_ptr()) };
            for at in (0..N * Self::REGISTER).step_by(STREAM_BYTES) {
                // SAFETY: within the pack, whose length and address are multiples of STREAM_BYTES.
                unsafe { cpu.stream(target.add(at), staging.0.as_ptr().add(at)) };
            }
        } else {
            // SAFETY: within the target.
            unsafe { store_pack::<F::Number, I, N>(cpu, pack, target) };
        }
    }

    /// Computes the `bytes` from byte `at` on, less than a register of them.
    #[inline(always)]
    fn partial<I: Instructions>(&mut self, cpu: I, at: usize, bytes: usize) {
        debug_assert!(at + bytes <= self.target.len() && bytes < Self::REGISTER);
        let pack = self.formula.evaluate::<I, 1>(cpu, |source| {
            let mut staging = Staging::new();
            // SAFETY: the bytes are within the source and fit into `staging`, where zeros follow.
            [unsafe {
                staging.0.as_mut_ptr().copy_from_nonoverlapping(source.as_ptr().add(at), bytes);
                F::Number::load(cpu, staging.0.as_ptr())
            }]
        });
        let mut staging = Staging::new();
        // SAFETY: a register fits into `staging`, and `bytes` from `at` on into the target.
        unsafe {
            store_pack::<F::Number, I, 1>(cpu, pack, staging.0.as_mut_ptr());
            self.target.as_mut_ptr().add(at).copy_from_nonoverlapping(staging.0.as_ptr(), bytes);
        }
    }
}

/// Room for any pack.
#[repr(align(32))]
struct Staging([u8; 32 * REGISTERS]);

impl Staging {
    #[inline(always)]
    fn new() -> Self {
        Self([0; 32 * REGISTERS])
    }
}

/// Loads a pack.
///
/// Bytes are copied before they are looked at: should a peer write them meanwhile, the values are
/// wrong and nothing else.
///
/// # Safety
/// `from` is valid for reading it.
#[inline(always)]
unsafe fn load_pack<T: Number, I: Instructions, const N: usize>(cpu: I, from: *const u8) -> Pack<T, I, N> {
    // SAFETY: the first register of the pack, then the others.
    let mut pack = [unsafe { T::load(cpu, from) }; N];
    for (index, lanes) in pack.iter_mut().enumerate().skip(1) {
        // SAFETY: as above.
        *lanes = unsafe { T::load(cpu, from.add(index * T::LANES * size_of::<T>())) };
    }
    pack
}

/// Stores a pack.
///
/// # Safety
/// `to` is valid for writing it.
#[inline(always)]
unsafe fn store_pack<T: Number, I: Instructions, const N: usize>(cpu: I, pack: Pack<T, I, N>, to: *mut u8) {
    for (index, &lanes) in pack.iter().enumerate() {
        // SAFETY: within the pack.
        unsafe { T::store(cpu, lanes, to.add(index * T::LANES * size_of::<T>())) };
    }
}

/// Bytes that travel between caches and memory together.
const CACHE_LINE: usize = 64;

const _: () = assert!(CACHE_LINE.is_multiple_of(STREAM_BYTES));
