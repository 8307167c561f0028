//! Instruction sets: the kernels are written once and compiled once for each.
//!
//! A token such as [`Avx2`] exists only where the processor has its
//! instructions, so that holding one is the permission to use them.

#[cfg(target_arch = "x86_64")]
use super::avx2::{self, Avx2};
use super::lanes::{Array, Lanes};
use super::small::{Format, Half, narrow, narrow_bf16, widen, widen_bf16};
use std::sync::LazyLock;

/// Work to be compiled for every instruction set.
///
/// Implementations are `#[inline(always)]` all the way down: only what is
/// inlined into the entry function of a [`Level`] uses its instructions.
pub(super) trait Kernel {
    /// Does it.
    fn run<I: Instructions>(self, cpu: I);
}

/// What the compiler does not make the best of by itself.
pub(super) trait Instructions: Copy {
    /// Eight lanes of f32.
    type F32: F32Lanes<Self>;

    /// Stores [`STREAM_BYTES`] past the caches. [`stream_fence`] must follow before the data is published.
    ///
    /// # Safety
    /// `from` is valid for reads and `to` for writes of [`STREAM_BYTES`], and `to` is a multiple of it.
    unsafe fn stream(self, to: *mut u8, from: *const u8);
}

/// Eight lanes of f32, loaded from and rounded to narrower floats, too.
///
/// Loading is exact. Storing rounds to the nearest, of two equally near to the even one.
///
/// # Safety
/// All but `splat`: the pointer is valid for reading or writing eight such elements; alignment is not needed.
pub(super) trait F32Lanes<I>: Lanes {
    /// The same value in every lane.
    fn splat(cpu: I, value: f32) -> Self;
    /// From f32.
    unsafe fn load_f32(cpu: I, from: *const u8) -> Self;
    /// To f32.
    unsafe fn store_f32(self, to: *mut u8);
    /// From half floats.
    unsafe fn load_f16(cpu: I, from: *const u8) -> Self;
    /// To half floats.
    unsafe fn store_f16(self, to: *mut u8);
    /// From bfloat16s.
    unsafe fn load_bf16(cpu: I, from: *const u8) -> Self;
    /// To bfloat16s.
    unsafe fn store_bf16(self, to: *mut u8);
    /// From floats of 8 bits.
    unsafe fn load_f8<F: Format>(cpu: I, from: *const u8) -> Self;
    /// To floats of 8 bits.
    unsafe fn store_f8<F: Format>(self, to: *mut u8);
}

/// Bytes of one non-temporal store, and their alignment.
pub(super) const STREAM_BYTES: usize = 32;

/// The instructions of this processor, or fewer in tests.
#[derive(Clone, Copy, Debug)]
pub(super) enum Level {
    /// What every processor of this architecture has.
    Portable,
    /// AVX2 and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
}

impl Level {
    /// The best that this processor has; found out once.
    #[inline]
    pub(super) fn best() -> Level {
        static BEST: LazyLock<Level> = LazyLock::new(|| Level::available().pop().unwrap_or(Level::Portable));
        *BEST
    }

    /// All that this processor has, the best last.
    pub(super) fn available() -> Vec<Level> {
        let mut levels = vec![Level::Portable];
        #[cfg(target_arch = "x86_64")]
        levels.extend(Avx2::detect().map(Level::Avx2));
        levels
    }

    /// Runs the variant of `kernel` compiled for this level.
    #[inline]
    pub(super) fn run(self, kernel: impl Kernel) {
        match self {
            Level::Portable => kernel.run(Portable),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2(cpu) => avx2::run(kernel, cpu),
        }
    }
}

/// Orders the stores of [`Instructions::stream`] before all later ones.
pub(super) fn stream_fence() {
    // SAFETY: SSE is part of x86-64.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::x86_64::_mm_sfence()
    };
}

/// No permission needed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Portable;

impl Instructions for Portable {
    type F32 = Array<f32, 8>;

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn stream(self, to: *mut u8, from: *const u8) {
        use std::arch::x86_64::{_mm_loadu_si128, _mm_stream_si128};
        debug_assert!(to.addr().is_multiple_of(STREAM_BYTES));
        for at in [0, 16] {
            // SAFETY: two halves of what the caller vouches for; SSE2 is part of x86-64.
            unsafe { _mm_stream_si128(to.add(at).cast(), _mm_loadu_si128(from.add(at).cast())) };
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    #[inline(always)]
    unsafe fn stream(self, to: *mut u8, from: *const u8) {
        // SAFETY: the caller vouches for both.
        unsafe { to.copy_from_nonoverlapping(from, STREAM_BYTES) }
    }
}

/// Methods of [`F32Lanes`]: a load and a store of `$bits` by a conversion of one lane.
macro_rules! lane_by_lane {
    ($($load:ident, $store:ident$(<$format:ident>)?: $bits:ty, $widen:expr, $narrow:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $load$(<$format: Format>)?(_: Portable, from: *const u8) -> Self {
            // SAFETY: the caller's word; any bytes are eight such integers.
            let codes = unsafe { from.cast::<[$bits; 8]>().read_unaligned() };
            let mut values = [0.0; 8];
            for (value, &code) in values.iter_mut().zip(&codes) {
                *value = $widen(code.into());
            }
            Array(values)
        }

        #[inline(always)]
        unsafe fn $store$(<$format: Format>)?(self, to: *mut u8) {
            let mut codes = [0; 8];
            for (code, &value) in codes.iter_mut().zip(&self.0) {
                *code = $narrow(value) as $bits;
            }
            // SAFETY: the caller's word.
            unsafe { to.cast::<[$bits; 8]>().write_unaligned(codes) }
        }
    )*};
}

impl F32Lanes<Portable> for Array<f32, 8> {
    #[inline(always)]
    fn splat(_: Portable, value: f32) -> Self {
        Array([value; 8])
    }

    lane_by_lane! {
        load_f32, store_f32: u32, f32::from_bits, f32::to_bits;
        load_f16, store_f16: u16, widen::<Half>, narrow::<Half>;
        load_bf16, store_bf16: u16, widen_bf16, narrow_bf16;
        load_f8, store_f8<F>: u8, widen::<F>, narrow::<F>;
    }
}
