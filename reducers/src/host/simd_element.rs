//! Loads and stores of registers full of elements. Each element type has one row.

use crate::host::isa::{F32Lanes, Instructions};
use crate::host::lanes::{Array, Lanes, Plain, Value};
use crate::host::narrow_float::{E4M3, E5M2};
use crate::host::structured_lanes::Bits;
use crate::{Bool, F8E4M3, F8E5M2, Located, Scalar};
use half::{bf16, f16};
use num_complex::Complex;

/// An element type, or what the elements of several types are made of.
pub(super) trait SimdElement: Copy + 'static {
    /// Values that a reduction accumulates in, for one register full of elements.
    type Lanes<I: Instructions>: Lanes;
    /// True if values differ from the representation in memory.
    const IS_CONVERTED: bool;
    /// Registers full of elements that are worked on together to hide latencies.
    const REGISTERS: usize;
    /// The largest finite value, for the types that are converted.
    const MAX: f64 = f64::MAX;

    /// Exact values of [`Instructions::REGISTER`] bytes of elements.
    ///
    /// # Safety
    /// `source` is valid for reading them; alignment is not needed.
    unsafe fn load<I: Instructions>(cpu: I, source: *const u8) -> Self::Lanes<I>;

    /// Stores [`Instructions::REGISTER`] bytes of elements, each value rounded once to nearest,
    /// ties to even.
    ///
    /// # Safety
    /// `target` is valid for writing them. Alignment is not needed.
    unsafe fn store<I: Instructions>(cpu: I, lanes: Self::Lanes<I>, target: *mut u8);

    /// The same factor in every lane.
    fn splat<I: Instructions>(cpu: I, scalar: Scalar) -> Self::Lanes<I>;
}

/// Lanes of types that are computed in as they are.
macro_rules! plain {
    ($($type:ty: $lanes:ident;)*) => {$(
        impl SimdElement for $type {
            type Lanes<I: Instructions> = I::$lanes<$type>;
            const IS_CONVERTED: bool = false;
            const REGISTERS: usize = 4;

            #[inline(always)]
            unsafe fn load<I: Instructions>(_: I, source: *const u8) -> I::$lanes<$type> {
                // SAFETY: the caller's word.
                unsafe { I::$lanes::load(source) }
            }

            #[inline(always)]
            unsafe fn store<I: Instructions>(_: I, lanes: I::$lanes<$type>, target: *mut u8) {
                // SAFETY: the caller's word.
                unsafe { lanes.store(target) }
            }

            #[inline(always)]
            fn splat<I: Instructions>(_: I, scalar: Scalar) -> I::$lanes<$type> {
                I::$lanes::splat(<$type>::from_scalar(scalar))
            }
        }
    )*};
}

plain! {
    i8: Bytes;
    u8: Bytes;
    i32: Quads;
    u32: Quads;
    i64: Octs;
    u64: Octs;
    f64: Octs;
    i16: Pairs;
    u16: Pairs;
    Bits: Bytes;
    Bool: Bytes;
    Complex<f32>: Octs;
    Complex<f64>: Sixteens;
    Located<f32>: Octs;
    Located<f64>: Sixteens;
    Located<i32>: Octs;
    Located<i64>: Sixteens;
}

/// Lanes of types that are computed in as f32: the number of f32 registers for one of theirs, and
/// the conversions.
macro_rules! float32 {
    ($($type:ty: $max:expr, $count:literal, $load:ident, $store:ident$(, $format:ty)?;)*) => {$(
        impl SimdElement for $type {
            type Lanes<I: Instructions> = Array<I::F32, $count>;
            const IS_CONVERTED: bool = $count > 1;
            const REGISTERS: usize = 4 / $count;
            const MAX: f64 = $max;

            #[inline(always)]
            unsafe fn load<I: Instructions>(cpu: I, source: *const u8) -> Self::Lanes<I> {
                // SAFETY: the caller's word.
                Array(unsafe { I::F32::$load$(::<$format>)?(cpu, source) })
            }

            #[inline(always)]
            unsafe fn store<I: Instructions>(_: I, lanes: Self::Lanes<I>, target: *mut u8) {
                // SAFETY: the caller's word.
                unsafe { I::F32::$store$(::<$format>)?(lanes.0, target) }
            }

            #[inline(always)]
            fn splat<I: Instructions>(cpu: I, scalar: Scalar) -> Self::Lanes<I> {
                let factor = f32::from_scalar(scalar);
                // A NaN as the conversions want it.
                let factor = if factor.is_nan() { f32::NAN } else { factor };
                Array([I::F32::splat(cpu, factor); $count])
            }
        }
    )*};
}

float32! {
    f32: f32::MAX as f64, 1, load_f32, store_f32;
    f16: 65504.0, 2, load_f16, store_f16;
    bf16: 3.389_531_389_251_535_5e38, 2, load_bf16, store_bf16;
    F8E4M3: 448.0, 4, load_f8, store_f8, E4M3;
    F8E5M2: 57344.0, 4, load_f8, store_f8, E5M2;
}
