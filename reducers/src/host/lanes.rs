//! Values that reductions compute with: single values, and registers full of them.

use crate::Scalar;

/// As many values as fill one vector register.
///
/// A method without a body of its type belongs to an operation that is not defined for it.
pub(super) trait Lanes: Copy {
    /// self + other; integers wrap.
    fn sum(self, _other: Self) -> Self {
        undefined()
    }
    /// self · other; integers wrap.
    fn product(self, _other: Self) -> Self {
        undefined()
    }
    /// The smaller; NaN above all, and −0 below +0, so that the order of operands never matters.
    fn smaller(self, _other: Self) -> Self {
        undefined()
    }
    /// The larger; NaN above all, and −0 below +0, so that the order of operands never matters.
    fn larger(self, _other: Self) -> Self {
        undefined()
    }
    /// self / ranks; integers towards zero.
    fn divide(self, _ranks: u32) -> Self {
        undefined()
    }
}

/// Ends a call of an operation that is not defined for its type. Kernels are chosen so that none
/// gets here.
#[cold]
pub(super) fn undefined() -> ! {
    unreachable!("an operation that `ReduceKind::is_defined_for` refuses")
}

/// A single value.
pub(super) trait Value: Lanes + Default {
    /// The factor of a pre-multiplied sum.
    fn from_scalar(_scalar: Scalar) -> Self {
        undefined()
    }
}

/// Several lanes as one: values that the compiler makes a register of by itself, or registers.
#[derive(Clone, Copy)]
pub(super) struct Array<L, const N: usize>(pub(super) [L; N]);

impl<L: Lanes, const N: usize> Array<L, N> {
    #[inline(always)]
    fn pairs(mut self, other: Self, function: impl Fn(L, L) -> L) -> Self {
        for (lane, other) in self.0.iter_mut().zip(&other.0) {
            *lane = function(*lane, *other);
        }
        self
    }
}

impl<L: Lanes, const N: usize> Lanes for Array<L, N> {
    #[inline(always)]
    fn sum(self, other: Self) -> Self {
        self.pairs(other, L::sum)
    }

    #[inline(always)]
    fn product(self, other: Self) -> Self {
        self.pairs(other, L::product)
    }

    #[inline(always)]
    fn smaller(self, other: Self) -> Self {
        self.pairs(other, L::smaller)
    }

    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        self.pairs(other, L::larger)
    }

    #[inline(always)]
    fn divide(self, ranks: u32) -> Self {
        self.pairs(self, |lane, _| lane.divide(ranks))
    }
}

/// A register of values that are in memory what they are in the register.
pub(super) trait Plain<V>: Lanes {
    /// Reads it.
    ///
    /// # Safety
    /// `source` is valid for reading a register; alignment is not needed.
    unsafe fn load(source: *const u8) -> Self;
    /// Writes it.
    ///
    /// # Safety
    /// `target` is valid for writing a register; alignment is not needed.
    unsafe fn store(self, target: *mut u8);
    /// The same value in every lane.
    fn splat(value: V) -> Self;
}

impl<V: Value, const N: usize> Plain<V> for Array<V, N> {
    #[inline(always)]
    unsafe fn load(source: *const u8) -> Self {
        // SAFETY: the caller's word; any bytes are such values.
        Array(unsafe { source.cast::<[V; N]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(self, target: *mut u8) {
        // SAFETY: the caller's word.
        unsafe { target.cast::<[V; N]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    fn splat(value: V) -> Self {
        Array([value; N])
    }
}

macro_rules! integer {
    ($($type:ty, $quotient:ident;)*) => {$(
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
                $quotient!(self, ranks) as $type
            }
        }

        impl Value for $type {
            #[inline(always)]
            fn from_scalar(scalar: Scalar) -> Self {
                match scalar {
                    Scalar::Int(factor) => factor as $type,
                    Scalar::Uint(factor) => factor as $type,
                    Scalar::Float(factor) => factor as i64 as $type,
                }
            }
        }
    )*};
}

/// Divides through floats, which are divided many at a time. The result is exact: a quotient that
/// is no integer is at least 1/ranks away from the next one. Rounding moves it by less, because
/// quotient · ranks has fewer bits than the mantissa.
macro_rules! by_f32 {
    ($dividend:expr, $ranks:expr) => {
        // SAFETY: no larger than the dividend, which has 8 or 16 bits.
        unsafe { ($dividend as f32 / $ranks as f32).to_int_unchecked::<i32>() }
    };
}

/// Likewise.
macro_rules! by_f64 {
    ($dividend:expr, $ranks:expr) => {
        match $ranks {
            1 => $dividend as i32,
            // SAFETY: at most half of the dividend, which has 32 bits.
            _ => unsafe { ($dividend as f64 / $ranks as f64).to_int_unchecked::<i32>() },
        }
    };
}

macro_rules! by_itself {
    ($dividend:expr, $ranks:expr) => {
        quotient($dividend, $ranks as Self)
    };
}

/// Vectors cannot do it, and inlined once for each lane it would be most of the program.
#[inline(never)]
fn quotient<T: std::ops::Div<Output = T>>(dividend: T, divisor: T) -> T {
    dividend / divisor
}

integer! {
    i8, by_f32;
    u8, by_f32;
    i16, by_f32;
    u16, by_f32;
    i32, by_f64;
    u32, by_f64;
    i64, by_itself;
    u64, by_itself;
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
                    Scalar::Uint(factor) => factor as $type,
                }
            }
        }
    )*};
}

float! { f32 f64 }
