//! Elements as the kernels see them: a form in memory and a form to compute in.

use super::level::Instructions;
use super::small::{E4M3, E5M2};
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

    /// [`Value::smaller`] of each pair.
    #[inline(always)]
    fn all_smaller<I: Instructions, const N: usize>(_: I, left: [Self; N], right: [Self; N]) -> [Self; N] {
        pairs(left, right, Self::smaller)
    }

    /// [`Value::larger`] of each pair.
    #[inline(always)]
    fn all_larger<I: Instructions, const N: usize>(_: I, left: [Self; N], right: [Self; N]) -> [Self; N] {
        pairs(left, right, Self::larger)
    }

    /// The factor of a pre-multiplied sum.
    fn from_scalar(scalar: Scalar) -> Self;
}

macro_rules! integer {
    // Division is done in `$wide`, a float where that is exact enough: a quotient that is no integer
    // is at least 1/ranks away from the next one, and rounding moves it by less, because
    // quotient · ranks has fewer bits than the mantissa.
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
    ($($type:ty { $($own:item)* })*) => {$(
        impl Value for $type {
            $($own)*

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

float! {
    f32 {
        #[inline(always)]
        fn all_smaller<I: Instructions, const N: usize>(cpu: I, left: [f32; N], right: [f32; N]) -> [f32; N] {
            cpu.smaller_f32(left, right)
        }

        #[inline(always)]
        fn all_larger<I: Instructions, const N: usize>(cpu: I, left: [f32; N], right: [f32; N]) -> [f32; N] {
            cpu.larger_f32(left, right)
        }
    }
    f64 {}
}

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
    bf16 => f32, I::widen_bf16, I::narrow_bf16;
    F8E4M3 => f32,
        |cpu: I, pack| cpu.widen_f8::<E4M3, N>(each(pack, |own: F8E4M3| own.0)),
        |cpu: I, values| each(cpu.narrow_f8::<E4M3, N>(values), F8E4M3);
    F8E5M2 => f32,
        |cpu: I, pack| cpu.widen_f8::<E5M2, N>(each(pack, |own: F8E5M2| own.0)),
        |cpu: I, values| each(cpu.narrow_f8::<E5M2, N>(values), F8E5M2);
}

/// `function` of every lane.
#[inline(always)]
pub(super) fn each<A: Copy, B: Copy + Default, const N: usize>(
    pack: [A; N],
    function: impl Fn(A) -> B,
) -> [B; N] {
    let mut result = [B::default(); N];
    for (result, lane) in result.iter_mut().zip(&pack) {
        *result = function(*lane);
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
    for (result, lane) in result.iter_mut().zip(&right) {
        *result = function(*result, *lane);
    }
    result
}
