//! The Rust types of elements.

use crate::{Bool, DType, F8E4M3, F8E5M2, Located};
use half::{bf16, f16};
use num_complex::Complex;
use std::fmt::Debug;

mod sealed {
    pub trait Sealed {}
}

/// A type whose slices can be sent and reduced.
///
/// Any bytes are a value of it and it has no padding: [`as_bytes_mut`] relies on that. Counts and
/// indices need no conversion: `usize` travels as `u64`, and `isize` as `i64`.
pub trait Element: sealed::Sealed + Copy + Send + Sync + 'static + Default + PartialEq + Debug {
    /// Element type.
    const DTYPE: DType;

    /// The nearest to `value`; integers truncate and saturate, 8-bit floats round by way of f32.
    ///
    /// A complex number has no imaginary part, the index of a located value is 0, and every
    /// number but 0 is true.
    fn from_f64(value: f64) -> Self;

    /// Converts to f64: the real part of a complex number, the value of a located one, and 1 for
    /// true. Integers beyond 2^53 are rounded.
    fn to_f64(self) -> f64;
}

macro_rules! element {
    ($($type:ty => $dtype:ident, $from:expr, $to:expr;)*) => {$(
        impl sealed::Sealed for $type {}

        impl Element for $type {
            const DTYPE: DType = DType::$dtype;

            #[inline]
            fn from_f64(value: f64) -> Self {
                $from(value)
            }

            #[inline]
            fn to_f64(self) -> f64 {
                $to(self)
            }
        }

        const _: () = assert!(size_of::<$type>() == DType::$dtype.size());
    )*};
}

element! {
    i8 => I8, |value| value as i8, f64::from;
    u8 => U8, |value| value as u8, f64::from;
    i32 => I32, |value| value as i32, f64::from;
    u32 => U32, |value| value as u32, f64::from;
    i64 => I64, |value| value as i64, |value| value as f64;
    u64 => U64, |value| value as u64, |value| value as f64;
    isize => I64, |value| value as isize, |value| value as f64;
    usize => U64, |value| value as usize, |value| value as f64;
    f16 => F16, f16::from_f64, f64::from;
    bf16 => BF16, bf16::from_f64, f64::from;
    f32 => F32, |value| value as f32, f64::from;
    f64 => F64, |value| value, |value| value;
    F8E4M3 => F8E4M3, |value| F8E4M3::from_f32(value as f32), |value: F8E4M3| value.to_f32().into();
    F8E5M2 => F8E5M2, |value| F8E5M2::from_f32(value as f32), |value: F8E5M2| value.to_f32().into();
    i16 => I16, |value| value as i16, f64::from;
    u16 => U16, |value| value as u16, f64::from;
    Bool => Bool, |value| Bool::from(value != 0.0), |value: Bool| f64::from(u8::from(value.get()));
    Complex<f32> => C64, |value| Complex::from(value as f32), |value: Complex<f32>| value.re.into();
    Complex<f64> => C128, Complex::from, |value: Complex<f64>| value.re;
    Located<f32> => F32I32, |value| Located { value: value as f32, index: 0 }, |pair: Self| pair.value.into();
    Located<f64> => F64I64, |value| Located { value, index: 0 }, |pair: Self| pair.value;
    Located<i32> => I32I32, |value| Located { value: value as i32, index: 0 }, |pair: Self| pair.value.into();
    Located<i64> => I64I64, |value| Located { value: value as i64, index: 0 }, |pair: Self| pair.value as f64;
}

/// The bytes of a slice.
pub fn as_bytes<T: Element>(elements: &[T]) -> &[u8] {
    // SAFETY: an element has no padding, so all bytes are initialized. u8 has no alignment. The
    // result borrows `elements`.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
}

/// The bytes of a slice, to write.
pub fn as_bytes_mut<T: Element>(elements: &mut [T]) -> &mut [u8] {
    // SAFETY: as in `as_bytes`; whatever is written is a value of T, as any bytes are, and the
    // borrow is exclusive.
    unsafe { std::slice::from_raw_parts_mut(elements.as_mut_ptr().cast(), size_of_val(elements)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_the_elements_in_memory_order() {
        let mut elements = [1u32, 0x0403_0201];
        assert_eq!(as_bytes(&elements)[4..], 0x0403_0201u32.to_ne_bytes());
        as_bytes_mut(&mut elements)[..4].copy_from_slice(&7u32.to_ne_bytes());
        assert_eq!(elements, [7, 0x0403_0201]);
    }

    #[test]
    fn conversions_keep_small_numbers() {
        fn there_and_back<T: Element>() {
            for value in [0.0, 1.0, 2.0, 3.5, 112.0] {
                let kept = if T::DTYPE.is_float() { value } else { f64::trunc(value) };
                assert_eq!(T::from_f64(value).to_f64(), kept, "{}", T::DTYPE);
            }
        }
        there_and_back::<i8>();
        there_and_back::<u8>();
        there_and_back::<i32>();
        there_and_back::<u32>();
        there_and_back::<i64>();
        there_and_back::<u64>();
        there_and_back::<isize>();
        there_and_back::<usize>();
        there_and_back::<f16>();
        there_and_back::<bf16>();
        there_and_back::<f32>();
        there_and_back::<f64>();
        there_and_back::<F8E4M3>();
        there_and_back::<F8E5M2>();
        there_and_back::<i16>();
        there_and_back::<u16>();
        for value in [true, false] {
            assert_eq!(Bool::from_f64(Bool::from(value).to_f64()).get(), value);
        }
        assert_eq!(Complex::<f32>::from_f64(3.5), Complex::new(3.5, 0.0));
        assert_eq!(Located::<i64>::from_f64(-3.0).to_f64(), -3.0);
    }
}
