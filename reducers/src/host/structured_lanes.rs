//! Lanes of what is no plain number: bits, truth values, complex numbers, values with an index.
//!
//! Bits are the numbers of the field with two elements, where the sum is the exclusive or. As a
//! lattice, the smaller of two is their and, the larger their or.

use crate::host::lanes::{Lanes, Value};
use crate::{Bool, Located};
use num_complex::Complex;

/// Eight bits of an integer of any length.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub(super) struct Bits(u8);

impl Lanes for Bits {
    #[inline(always)]
    fn sum(self, other: Self) -> Self {
        Self(self.0 ^ other.0)
    }

    #[inline(always)]
    fn smaller(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl Value for Bits {}

impl Lanes for Bool {
    #[inline(always)]
    fn sum(self, other: Self) -> Self {
        Bool::from(self.get() ^ other.get())
    }

    #[inline(always)]
    fn smaller(self, other: Self) -> Self {
        Bool::from(self.get() & other.get())
    }

    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        Bool::from(self.get() | other.get())
    }
}

impl Value for Bool {}

macro_rules! complex {
    ($($part:ty)*) => {$(
        impl Lanes for Complex<$part> {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                Complex::new(self.re + other.re, self.im + other.im)
            }

            #[inline(always)]
            fn product(self, other: Self) -> Self {
                let re = self.re * other.re - self.im * other.im;
                Complex::new(re, self.re * other.im + self.im * other.re)
            }

            #[inline(always)]
            fn divide(self, ranks: u32) -> Self {
                Complex::new(self.re / ranks as $part, self.im / ranks as $part)
            }
        }

        impl Value for Complex<$part> {}
    )*};
}

complex! { f32 f64 }

/// `$is_nan` says how a value is found to be no number.
macro_rules! located {
    ($($value:ty, $is_nan:expr;)*) => {$(
        impl Lanes for Located<$value> {
            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                let (nan, other_nan) = ($is_nan(self.value), $is_nan(other.value));
                let wins = nan & !other_nan | (nan == other_nan) & (self.value < other.value);
                let ties = nan & other_nan | (self.value == other.value);
                if wins | ties & (self.index <= other.index) { self } else { other }
            }

            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                let (nan, other_nan) = ($is_nan(self.value), $is_nan(other.value));
                let wins = nan & !other_nan | (nan == other_nan) & (self.value > other.value);
                let ties = nan & other_nan | (self.value == other.value);
                if wins | ties & (self.index <= other.index) { self } else { other }
            }
        }

        impl Value for Located<$value> {}
    )*};
}

located! {
    f32, f32::is_nan;
    f64, f64::is_nan;
    i32, |_| false;
    i64, |_| false;
}
