//! Operations at one position: the target's value, computed from the sources at that position.

use crate::host::isa::Instructions;
use crate::host::lanes::{Array, Lanes};
use crate::host::simd_element::SimdElement;
use crate::{PostOp, Scalar, Source};
use std::marker::PhantomData;

/// Combination of two values.
pub(super) trait Combine {
    /// True if the kernel can finish results by a [`PostOp`] and store them past the caches. The
    /// code for both is most of a kernel, so only sums have it, because only sums are divided, and
    /// other operations are rare.
    const IS_SUM: bool = false;

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
    const IS_SUM: bool = true;

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
pub(super) type Pack<T, I, const N: usize> = Array<<T as SimdElement>::Lanes<I>, N>;

/// Access to one position of any source.
///
/// A trait and not a closure, because only what is marked `#[inline(always)]` is compiled for the
/// right instructions.
pub(super) trait Read {
    /// Loads the values of `source` at the position.
    ///
    /// # Safety
    /// `source` reaches to the end of the range that is computed.
    unsafe fn pack<T: SimdElement, I: Instructions, const N: usize>(
        &self,
        cpu: I,
        source: Source<'_>,
    ) -> Pack<T, I, N>;
}

/// An operation. Its sources reach to the end of every range that is computed with it.
pub(super) trait ElementOp {
    /// Type of the elements.
    type Elem: SimdElement;
    /// Bytes that must not be divided.
    const GRANULARITY: usize = size_of::<Self::Elem>();
    /// False if results are only stored through the caches.
    const IS_STREAMED: bool = true;

    /// The result at the position of `read`.
    fn evaluate<I: Instructions, const N: usize>(&self, cpu: I, read: impl Read) -> Pack<Self::Elem, I, N>;
}

/// first ⊕ rest[0] ⊕ rest[1] ⊕ …, then `finish`.
pub(super) struct Nary<'a, T, C> {
    pub(super) first: Source<'a>,
    pub(super) rest: &'a [Source<'a>],
    pub(super) finish: PostOp,
    pub(super) types: PhantomData<(T, C)>,
}

impl<T: SimdElement, C: Combine> ElementOp for Nary<'_, T, C> {
    type Elem = T;
    const IS_STREAMED: bool = C::IS_SUM;

    #[inline(always)]
    fn evaluate<I: Instructions, const N: usize>(&self, cpu: I, read: impl Read) -> Pack<T, I, N> {
        // SAFETY: sources of a op reach to the end of the part.
        let mut pack = unsafe { read.pack::<T, I, N>(cpu, self.first) };
        for &source in self.rest {
            // SAFETY: likewise.
            pack = C::combine(pack, unsafe { read.pack::<T, I, N>(cpu, source) });
        }
        if !C::IS_SUM {
            return pack;
        }
        match self.finish {
            PostOp::Identity => pack,
            PostOp::Divide(ranks) => pack.divide(ranks),
            _ if !T::IS_CONVERTED => pack, // Refused before.
            PostOp::Saturate => saturated::<T, I, N>(cpu, pack),
            PostOp::DivideScaled(ranks) => {
                let power = splat::<T, I, N>(cpu, power_not_below(ranks));
                saturated::<T, I, N>(cpu, pack.product(power).divide(ranks))
            }
        }
    }
}

/// Returns the least power of two that is not below a number of ranks.
///
/// It has no branch, because the compiler moves this out of the `match` on the operation, where
/// other operations have no number.
#[inline(always)]
fn power_not_below(ranks: u32) -> f64 {
    const EXPONENT: u64 = 0x7ff << 52;
    f64::from_bits((2.0 * f64::from(ranks) - 1.0).to_bits() & EXPONENT)
}

#[inline(always)]
fn splat<T: SimdElement, I: Instructions, const N: usize>(cpu: I, value: f64) -> Pack<T, I, N> {
    Array([T::splat(cpu, Scalar::Float(value)); N])
}

/// Moves finite values that are out of the type's range to its ends. Infinite values and NaN stay.
#[inline(always)]
fn saturated<T: SimdElement, I: Instructions, const N: usize>(cpu: I, pack: Pack<T, I, N>) -> Pack<T, I, N> {
    let clamped = pack.smaller(splat::<T, I, N>(cpu, T::MAX)).larger(splat::<T, I, N>(cpu, -T::MAX));
    let missing = clamped.sum(pack.product(splat::<T, I, N>(cpu, -1.0)));
    // A tiny part of what is missing is lost when it is added, unless it is infinite. If nothing is
    // missing, the product is -0, which changes no value, not even the sign of a zero.
    clamped.sum(missing.product(splat::<T, I, N>(cpu, -TINY)))
}

/// A factor that makes what is missing of a sum less than half of the last bit of the range's end.
const TINY: f64 = 1.0 / (1u64 << 40) as f64;

/// first ⊕ second: the case that is frequent, and that calls of a few bytes are.
pub(super) struct Binary<'a, T, C> {
    pub(super) first: Source<'a>,
    pub(super) second: Source<'a>,
    pub(super) types: PhantomData<(T, C)>,
}

impl<T: SimdElement, C: Combine> ElementOp for Binary<'_, T, C> {
    type Elem = T;

    #[inline(always)]
    fn evaluate<I: Instructions, const N: usize>(&self, cpu: I, read: impl Read) -> Pack<T, I, N> {
        // SAFETY: sources of a op reach to the end of the part.
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

impl<T: SimdElement> ElementOp for Scaled<'_, T> {
    type Elem = T;

    #[inline(always)]
    fn evaluate<I: Instructions, const N: usize>(&self, cpu: I, read: impl Read) -> Pack<T, I, N> {
        // SAFETY: sources of a op reach to the end of the part.
        let pack = unsafe { read.pack::<T, I, N>(cpu, self.source) };
        pack.product(Array([T::splat(cpu, self.scalar); N]))
    }
}

/// The source itself.
pub(super) struct Identity<'a>(pub(super) Source<'a>);

impl ElementOp for Identity<'_> {
    // Values are moved and not computed with, so that all bits survive. The compiler would put
    // registers full of bytes on the stack.
    type Elem = f32;
    const GRANULARITY: usize = 1;

    #[inline(always)]
    fn evaluate<I: Instructions, const N: usize>(&self, cpu: I, read: impl Read) -> Pack<f32, I, N> {
        // SAFETY: sources of a op reach to the end of the part.
        unsafe { read.pack::<f32, I, N>(cpu, self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::power_not_below;

    #[test]
    fn power_not_below_is_next_power_of_two() {
        for ranks in (1..70).chain([1023, 1024, 1025, (1 << 31) - 1, 1 << 31]) {
            assert_eq!(power_not_below(ranks), f64::from(ranks.next_power_of_two()), "{ranks}");
        }
    }
}
