//! What a kernel computes at one position from the sources at that position.

use super::lanes::{Array, Lanes};
use super::level::Instructions;
use super::number::Number;
use crate::{Finish, Scalar, Source};
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
pub(super) type Pack<T, I, const N: usize> = Array<<T as Number>::Lanes<I>, N>;

/// Access to one position of any source.
///
/// A trait and not a closure, because only what is marked `#[inline(always)]` is compiled for the
/// right instructions.
pub(super) trait Read {
    /// What `source` holds there.
    ///
    /// # Safety
    /// `source` reaches to the end of the part that is computed.
    unsafe fn pack<T: Number, I: Instructions, const N: usize>(
        &self,
        cpu: I,
        source: Source<'_>,
    ) -> Pack<T, I, N>;
}

/// What is computed. Its sources reach to the end of every part that is computed of it.
pub(super) trait Formula {
    /// Type of the elements.
    type Number: Number;
    /// Bytes that must not be divided.
    const GRAIN: usize = size_of::<Self::Number>();

    /// The result at the position of `read`.
    fn evaluate<I: Instructions, const N: usize>(&self, cpu: I, read: impl Read) -> Pack<Self::Number, I, N>;
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
    fn evaluate<I: Instructions, const N: usize>(&self, cpu: I, read: impl Read) -> Pack<T, I, N> {
        // SAFETY: sources of a formula reach to the end of the part.
        let mut pack = unsafe { read.pack::<T, I, N>(cpu, self.first) };
        for &source in self.rest {
            // SAFETY: likewise.
            pack = C::combine(pack, unsafe { read.pack::<T, I, N>(cpu, source) });
        }
        match self.finish {
            Finish::Keep => pack,
            Finish::Divide(ranks) => pack.divide(ranks),
        }
    }
}

/// first ⊕ second: the case that is frequent, and that calls of a few bytes are.
pub(super) struct Both<'a, T, C> {
    pub(super) first: Source<'a>,
    pub(super) second: Source<'a>,
    pub(super) types: PhantomData<(T, C)>,
}

impl<T: Number, C: Combine> Formula for Both<'_, T, C> {
    type Number = T;

    #[inline(always)]
    fn evaluate<I: Instructions, const N: usize>(&self, cpu: I, read: impl Read) -> Pack<T, I, N> {
        // SAFETY: sources of a formula reach to the end of the part.
        let first = unsafe { read.pack::<T, I, N>(cpu, self.first) };
        // SAFETY: likewise.
        C::combine(first, unsafe { read.pack::<T, I, N>(cpu, self.second) })
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
    fn evaluate<I: Instructions, const N: usize>(&self, cpu: I, read: impl Read) -> Pack<T, I, N> {
        // SAFETY: sources of a formula reach to the end of the part.
        let pack = unsafe { read.pack::<T, I, N>(cpu, self.source) };
        pack.product(Array([T::splat(cpu, self.scalar); N]))
    }
}

/// The source itself.
pub(super) struct Same<'a>(pub(super) Source<'a>);

impl Formula for Same<'_> {
    // Moved, not computed with: any bits survive. Registers full of bytes the compiler puts on the stack.
    type Number = f32;
    const GRAIN: usize = 1;

    #[inline(always)]
    fn evaluate<I: Instructions, const N: usize>(&self, cpu: I, read: impl Read) -> Pack<f32, I, N> {
        // SAFETY: sources of a formula reach to the end of the part.
        unsafe { read.pack::<f32, I, N>(cpu, self.0) }
    }
}
