//! Elements as the kernels see them: how a register full of values is loaded and stored. One row each.

use super::lanes::{Array, Lanes, Value};
use super::level::{F32Lanes, Instructions};
use super::small::{E4M3, E5M2};
use crate::{Element, F8E4M3, F8E5M2, Scalar};
use half::{bf16, f16};

/// An element type.
pub(super) trait Number: Element {
    /// What a reduction accumulates in.
    type Lanes<I: Instructions>: Lanes;
    /// How many elements that are.
    const LANES: usize;

    /// Exact values of [`Self::LANES`] elements.
    ///
    /// # Safety
    /// `from` is valid for reading them; alignment is not needed.
    unsafe fn load<I: Instructions>(cpu: I, from: *const u8) -> Self::Lanes<I>;

    /// Stores [`Self::LANES`] values, each rounded once to the nearest, ties to even.
    ///
    /// # Safety
    /// `to` is valid for writing them; alignment is not needed.
    unsafe fn store<I: Instructions>(cpu: I, lanes: Self::Lanes<I>, to: *mut u8);

    /// The same factor in every lane.
    fn splat<I: Instructions>(cpu: I, scalar: Scalar) -> Self::Lanes<I>;
}

/// Types that are computed in as they are.
macro_rules! plain {
    ($($type:ty, $count:literal;)*) => {$(
        impl Number for $type {
            type Lanes<I: Instructions> = Array<$type, $count>;
            const LANES: usize = $count;

            #[inline(always)]
            unsafe fn load<I: Instructions>(_: I, from: *const u8) -> Array<$type, $count> {
                // SAFETY: the caller's word; any bytes are such elements.
                Array(unsafe { from.cast::<[$type; $count]>().read_unaligned() })
            }

            #[inline(always)]
            unsafe fn store<I: Instructions>(_: I, lanes: Array<$type, $count>, to: *mut u8) {
                // SAFETY: the caller's word.
                unsafe { to.cast::<[$type; $count]>().write_unaligned(lanes.0) }
            }

            #[inline(always)]
            fn splat<I: Instructions>(_: I, scalar: Scalar) -> Array<$type, $count> {
                Array([<$type>::from_scalar(scalar); $count])
            }
        }
    )*};
}

plain! {
    i8, 32;
    u8, 32;
    i32, 8;
    u32, 8;
    i64, 4;
    u64, 4;
    f64, 4;
}

/// Types that are computed in as f32.
macro_rules! float32 {
    ($($type:ty, $load:ident, $store:ident$(, $format:ty)?;)*) => {$(
        impl Number for $type {
            type Lanes<I: Instructions> = I::F32;
            const LANES: usize = 8;

            #[inline(always)]
            unsafe fn load<I: Instructions>(cpu: I, from: *const u8) -> I::F32 {
                // SAFETY: the caller's word.
                unsafe { I::F32::$load$(::<$format>)?(cpu, from) }
            }

            #[inline(always)]
            unsafe fn store<I: Instructions>(_: I, lanes: I::F32, to: *mut u8) {
                // SAFETY: the caller's word.
                unsafe { lanes.$store$(::<$format>)?(to) }
            }

            #[inline(always)]
            fn splat<I: Instructions>(cpu: I, scalar: Scalar) -> I::F32 {
                F32Lanes::splat(cpu, f32::from_scalar(scalar))
            }
        }
    )*};
}

float32! {
    f32, load_f32, store_f32;
    f16, load_f16, store_f16;
    bf16, load_bf16, store_bf16;
    F8E4M3, load_f8, store_f8, E4M3;
    F8E5M2, load_f8, store_f8, E5M2;
}
