//! Instructions of every processor: arrays, which the compiler vectorizes as it can.

use super::lanes::{Array, Value};
use crate::host::isa::{F32Lanes, Instructions, SimdKernel};
use crate::host::narrow_float::{Format, Half, narrow, narrow_bf16, widen, widen_bf16};

/// No permission needed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Portable;

impl Instructions for Portable {
    const REGISTER: usize = 16;
    type Bytes<V: Value> = Array<V, 16>;
    type Pairs<V: Value> = Array<V, 8>;
    type Quads<V: Value> = Array<V, 4>;
    type Octs<V: Value> = Array<V, 2>;
    type Sixteens<V: Value> = Array<V, 1>;
    type F32 = Array<f32, 4>;

    #[inline(never)]
    fn run(self, kernel: impl SimdKernel) {
        kernel.run(self);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn stream(self, target: *mut u8, source: *const u8) {
        use std::arch::x86_64::{_mm_loadu_si128, _mm_stream_si128};
        debug_assert!(target.addr().is_multiple_of(Self::REGISTER));
        // SAFETY: the caller vouches for both; SSE2 is part of x86-64.
        unsafe { _mm_stream_si128(target.cast(), _mm_loadu_si128(source.cast())) };
    }

    #[cfg(not(target_arch = "x86_64"))]
    #[inline(always)]
    unsafe fn stream(self, target: *mut u8, source: *const u8) {
        // SAFETY: the caller vouches for both.
        unsafe { target.copy_from_nonoverlapping(source, Self::REGISTER) }
    }
}

/// Methods of [`F32Lanes`]: a load and a store of `$bits` by a conversion of one lane.
macro_rules! lane_by_lane {
    ($($load:ident, $store:ident$(<$format:ident>)?: $count:literal of $bits:ty, $widen:expr, $narrow:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $load$(<$format: Format>)?(_: Portable, source: *const u8) -> [Self; $count] {
            // SAFETY: the caller's word; any bytes are such integers.
            let codes = unsafe { source.cast::<[[$bits; 4]; $count]>().read_unaligned() };
            let mut registers = [Array([0.0; 4]); $count];
            for (values, codes) in registers.iter_mut().zip(&codes) {
                for (value, &code) in values.0.iter_mut().zip(codes) {
                    *value = $widen(code.into());
                }
            }
            registers
        }

        #[inline(always)]
        unsafe fn $store$(<$format: Format>)?(registers: [Self; $count], target: *mut u8) {
            let mut codes = [[0; 4]; $count];
            for (codes, values) in codes.iter_mut().zip(&registers) {
                for (code, &value) in codes.iter_mut().zip(&values.0) {
                    *code = $narrow(value) as $bits;
                }
            }
            // SAFETY: the caller's word.
            unsafe { target.cast::<[[$bits; 4]; $count]>().write_unaligned(codes) }
        }
    )*};
}

impl F32Lanes<Portable> for Array<f32, 4> {
    #[inline(always)]
    fn splat(_: Portable, value: f32) -> Self {
        Array([value; 4])
    }

    lane_by_lane! {
        load_f32, store_f32: 1 of u32, f32::from_bits, f32::to_bits;
        load_f16, store_f16: 2 of u16, widen::<Half>, narrow::<Half>;
        load_bf16, store_bf16: 2 of u16, widen_bf16, narrow_bf16;
        load_f8, store_f8<F>: 4 of u8, widen::<F>, narrow::<F>;
    }
}
