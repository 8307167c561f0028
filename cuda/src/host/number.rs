//! Elements as the kernels see them: a form in memory and a form to compute in.

use super::level::Instructions;
use super::small::narrow_bf16;
use crate::{Element, F8E4M3, F8E5M2, Scalar};
use half::{bf16, f16};

/// An element type; a pack of them is what a kernel loads and stores at once.
pub(super) trait Number: Element {
    /// What a reduction accumulates in.
    type Value: Value;

    /// Exact values of a pack.
    fn widen<I: Instructions, const N: usize>(cpu: I, pack: [Self; N]) -> [Self::Value; N];

    /// A pack of values, each rounded once to the nearest, ties to even.
    fn narrow<I: Instructions, const N: usize>(cpu: I, values: [Self::Value; N]) -> [Self; N];
}

/// A type that reductions compute in.
pub(super) trait Value: Copy + Default {
    /// self + other; integers wrap.
    fn sum(self, other: Self) -> Self;
    /// self · other; integers wrap.
    fn product(self, other: Self) -> Self;
    /// The smaller; NaN above all, and −0 below +0, so that the order of operands never matters.
    fn smaller(self, other: Self) -> Self;
    /// The larger; NaN above all, and −0 below +0, so that the order of operands never matters.
    fn larger(self, other: Self) -> Self;
    /// self / ranks; integers towards zero.
    fn divide(self, ranks: u32) -> Self;
    /// The factor of a pre-multiplied sum.
    fn from_scalar(scalar: Scalar) -> Self;
}

macro_rules! integer {
    // The quotient in `$wide` decides: it is the exact one where $wide is an integer; where it is
    // a float of more than twice the bits, rounding cannot lift it to the next integer.
    ($($type:ty, $wide:ty;)*) => {$(
        impl Value for $type {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            #[inline(always)]
            fn product(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                self.min(other)
            }

            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                self.max(other)
            }

            #[inline(always)]
            fn divide(self, ranks: u32) -> Self {
                (self as $wide / ranks as $wide) as $type
            }

            #[inline(always)]
            fn from_scalar(scalar: Scalar) -> Self {
                match scalar {
                    Scalar::Int(factor) => factor as $type,
                    Scalar::Float(factor) => factor as i64 as $type,
                }
            }
        }

        impl Number for $type {
            type Value = $type;

            #[inline(always)]
            fn widen<I: Instructions, const N: usize>(_: I, pack: [Self; N]) -> [Self; N] {
                pack
            }

            #[inline(always)]
            fn narrow<I: Instructions, const N: usize>(_: I, values: [Self; N]) -> [Self; N] {
                values
            }
        }
    )*};
}

integer! {
    i8, f32;
    u8, f32;
    i32, f64;
    u32, f64;
    i64, i64;
    u64, u64;
}

macro_rules! float {
    ($($type:ty)*) => {$(
        impl Value for $type {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self + other
            }

            #[inline(always)]
            fn product(self, other: Self) -> Self {
                self * other
            }

            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                let number = if self < other { self } else { other };
                let zeros = <$type>::from_bits(self.to_bits() | other.to_bits());
                let number = if self == other { zeros } else { number };
                if self.is_nan() { self } else { number }
            }

            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                let number = if self > other { self } else { other };
                let zeros = <$type>::from_bits(self.to_bits() & other.to_bits());
                let number = if self == other { zeros } else { number };
                if self.is_nan() { self } else { number }
            }

            #[inline(always)]
            fn divide(self, ranks: u32) -> Self {
                self / ranks as $type
            }

            #[inline(always)]
            fn from_scalar(scalar: Scalar) -> Self {
                match scalar {
                    Scalar::Float(factor) => factor as $type,
                    Scalar::Int(factor) => factor as $type,
                }
            }
        }
    )*};
}

float! { f32 f64 }

macro_rules! number {
    ($($type:ty => $value:ty, $widen:expr, $narrow:expr;)*) => {$(
        impl Number for $type {
            type Value = $value;

            #[inline(always)]
            fn widen<I: Instructions, const N: usize>(cpu: I, pack: [Self; N]) -> [$value; N] {
                $widen(cpu, pack)
            }

            #[inline(always)]
            fn narrow<I: Instructions, const N: usize>(cpu: I, values: [$value; N]) -> [Self; N] {
                $narrow(cpu, values)
            }
        }
    )*};
}

number! {
    f32 => f32, |_, pack| pack, |_, values| values;
    f64 => f64, |_, pack| pack, |_, values| values;
    f16 => f32, I::widen_f16, I::narrow_f16;
    bf16 => f32,
        |_, pack| each(pack, |own: bf16| f32::from_bits(u32::from(own.to_bits()) << 16)),
        |_, values| each(values, |value| bf16::from_bits(narrow_bf16(value)));
    F8E4M3 => f32, |_, pack| each(pack, F8E4M3::to_f32), |_, values| each(values, F8E4M3::from_f32);
    F8E5M2 => f32, |_, pack| each(pack, F8E5M2::to_f32), |_, values| each(values, F8E5M2::from_f32);
}

/// `function` of every lane.
#[inline(always)]
pub(super) fn each<A: Copy, B: Copy + Default, const N: usize>(
    pack: [A; N],
    function: impl Fn(A) -> B,
) -> [B; N] {
    let mut result = [B::default(); N];
    for lane in 0..N {
        result[lane] = function(pack[lane]);
    }
    result
}

/// `function` of every pair of lanes.
#[inline(always)]
pub(super) fn pairs<A: Copy, const N: usize>(
    left: [A; N],
    right: [A; N],
    function: impl Fn(A, A) -> A,
) -> [A; N] {
    let mut result = left;
    for lane in 0..N {
        result[lane] = function(left[lane], right[lane]);
    }
    result
}
