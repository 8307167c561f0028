//! What reductions compute in: single values, and registers full of them.

use crate::Scalar;

/// As many values as fill one vector register.
pub(super) trait Lanes: Copy {
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
}

/// A single value.
pub(super) trait Value: Lanes + Default {
    /// The factor of a pre-multiplied sum.
    fn from_scalar(scalar: Scalar) -> Self;
}

/// Lanes that the compiler turns into a register by itself.
#[derive(Clone, Copy)]
pub(super) struct Array<V, const N: usize>(pub(super) [V; N]);

impl<V: Value, const N: usize> Array<V, N> {
    #[inline(always)]
    fn pairs(mut self, other: Self, function: impl Fn(V, V) -> V) -> Self {
        for (own, other) in self.0.iter_mut().zip(&other.0) {
            *own = function(*own, *other);
        }
        self
    }
}

impl<V: Value, const N: usize> Lanes for Array<V, N> {
    #[inline(always)]
    fn sum(self, other: Self) -> Self {
        self.pairs(other, V::sum)
    }

    #[inline(always)]
    fn product(self, other: Self) -> Self {
        self.pairs(other, V::product)
    }

    #[inline(always)]
    fn smaller(self, other: Self) -> Self {
        self.pairs(other, V::smaller)
    }

    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        self.pairs(other, V::larger)
    }

    #[inline(always)]
    fn divide(self, ranks: u32) -> Self {
        self.pairs(self, |own, _| own.divide(ranks))
    }
}

macro_rules! integer {
    // Division is done in `$wide`, a float where that is exact enough: a quotient that is no integer
    // is at least 1/ranks away from the next one, and rounding moves it by less, because
    // quotient · ranks has fewer bits than the mantissa.
    ($($type:ty, $wide:ty, $back:ty;)*) => {$(
        impl Lanes for $type {
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
                (self as $wide / ranks as $wide) as $back as $type
            }
        }

        impl Value for $type {
            #[inline(always)]
            fn from_scalar(scalar: Scalar) -> Self {
                match scalar {
                    Scalar::Int(factor) => factor as $type,
                    Scalar::Float(factor) => factor as i64 as $type,
                }
            }
        }
    )*};
}

integer! {
    i8, f32, i32;
    u8, f32, i32;
    i32, f64, i32;
    u32, f64, u32;
    i64, i64, i64;
    u64, u64, u64;
}

macro_rules! float {
    ($($type:ty)*) => {$(
        impl Lanes for $type {
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
        }

        impl Value for $type {
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
