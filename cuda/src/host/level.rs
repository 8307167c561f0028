//! Instruction sets: the kernels are written once and compiled once for each.
//!
//! A token such as [`Avx2`] exists only where the processor has its
//! instructions, so that holding one is the permission to use them.

use super::small::{Half, narrow, widen};
use half::f16;
use std::sync::LazyLock;

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m128i, __m256i, _MM_FROUND_TO_NEAREST_INT, _mm_loadu_si128, _mm_sfence, _mm_storeu_si128,
    _mm_stream_si128, _mm256_cvtph_ps, _mm256_cvtps_ph, _mm256_loadu_ps, _mm256_loadu_si256,
    _mm256_storeu_ps, _mm256_stream_si256,
};

/// Work to be compiled for every instruction set.
///
/// Implementations are `#[inline(always)]` all the way down: only what is
/// inlined into the entry function of a [`Level`] uses its instructions.
pub(super) trait Kernel {
    /// Does it.
    fn run<I: Instructions>(self, cpu: I);
}

/// What differs between instruction sets beyond what the compiler sees by itself.
pub(super) trait Instructions: Copy {
    /// Exact values of half floats.
    #[inline(always)]
    fn widen_f16<const N: usize>(self, pack: [f16; N]) -> [f32; N] {
        let mut wide = [0.0; N];
        for lane in 0..N {
            wide[lane] = widen::<Half>(pack[lane].to_bits().into());
        }
        wide
    }

    /// The nearest half floats, ties to even.
    #[inline(always)]
    fn narrow_f16<const N: usize>(self, values: [f32; N]) -> [f16; N] {
        let mut halves = [f16::ZERO; N];
        for lane in 0..N {
            halves[lane] = f16::from_bits(narrow::<Half>(values[lane]) as u16);
        }
        halves
    }

    /// Stores [`STREAM_BYTES`] past the caches. [`stream_fence`] must follow before the data is published.
    ///
    /// # Safety
    /// `from` is valid for reads and `to` for writes of [`STREAM_BYTES`], and `to` is a multiple of it.
    unsafe fn stream(self, to: *mut u8, from: *const u8);
}

/// Bytes of one non-temporal store, and their alignment.
pub(super) const STREAM_BYTES: usize = 32;

/// The best instructions of this processor, or a lesser set in tests.
#[derive(Clone, Copy, Debug)]
pub(super) enum Level {
    /// What every processor of this architecture has.
    Portable(Portable),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

/// No permission needed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Portable;

/// The processor has AVX2 and F16C.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
pub(super) struct Avx2(());

/// The processor has AVX-512 F, BW, DQ and VL besides.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
pub(super) struct Avx512(());

impl Level {
    /// The best that this processor has; found out once.
    #[inline]
    pub(super) fn best() -> Level {
        static BEST: LazyLock<Level> =
            LazyLock::new(|| Level::available().pop().unwrap_or(Level::Portable(Portable)));
        *BEST
    }

    /// All that this processor has, the best last.
    pub(super) fn available() -> Vec<Level> {
        let mut levels = vec![Level::Portable(Portable)];
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") {
            levels.push(Level::Avx2(Avx2(())));
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
            {
                levels.push(Level::Avx512(Avx512(())));
            }
        }
        levels
    }

    /// Runs the variant of `kernel` compiled for this level.
    #[inline]
    pub(super) fn run(self, kernel: impl Kernel) {
        match self {
            Level::Portable(cpu) => kernel.run(cpu),
            // SAFETY: the token says that the processor has these instructions.
            #[cfg(target_arch = "x86_64")]
            Level::Avx2(cpu) => unsafe { run_avx2(kernel, cpu) },
            // SAFETY: likewise.
            #[cfg(target_arch = "x86_64")]
            Level::Avx512(cpu) => unsafe { run_avx512(kernel, cpu) },
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
fn run_avx2(kernel: impl Kernel, cpu: Avx2) {
    kernel.run(cpu);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn run_avx512(kernel: impl Kernel, cpu: Avx512) {
    kernel.run(cpu);
}

/// Orders the stores of [`Instructions::stream`] before all later ones.
pub(super) fn stream_fence() {
    // SAFETY: SSE is part of x86-64.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        _mm_sfence()
    };
}

impl Instructions for Portable {
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn stream(self, to: *mut u8, from: *const u8) {
        debug_assert!(to.addr().is_multiple_of(STREAM_BYTES));
        for at in [0, 16] {
            // SAFETY: two halves of what the caller vouches for; SSE2 is part of x86-64.
            unsafe {
                let half = _mm_loadu_si128(from.add(at).cast::<__m128i>());
                _mm_stream_si128(to.add(at).cast::<__m128i>(), half);
            }
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    #[inline(always)]
    unsafe fn stream(self, to: *mut u8, from: *const u8) {
        // SAFETY: the caller vouches for both.
        unsafe { to.copy_from_nonoverlapping(from, STREAM_BYTES) }
    }
}

#[cfg(target_arch = "x86_64")]
impl Instructions for Avx2 {
    #[inline(always)]
    fn widen_f16<const N: usize>(self, pack: [f16; N]) -> [f32; N] {
        if !N.is_multiple_of(8) {
            return Portable.widen_f16(pack);
        }
        let mut wide = [0.0; N];
        for (wide, half) in wide.chunks_exact_mut(8).zip(pack.chunks_exact(8)) {
            // SAFETY: both chunks have 8 elements; a token of AVX2 comes only with F16C.
            unsafe {
                let half = _mm_loadu_si128(half.as_ptr().cast::<__m128i>());
                _mm256_storeu_ps(wide.as_mut_ptr(), _mm256_cvtph_ps(half));
            }
        }
        wide
    }

    #[inline(always)]
    fn narrow_f16<const N: usize>(self, values: [f32; N]) -> [f16; N] {
        if !N.is_multiple_of(8) {
            return Portable.narrow_f16(values);
        }
        let mut halves = [f16::ZERO; N];
        for (half, value) in halves.chunks_exact_mut(8).zip(values.chunks_exact(8)) {
            // SAFETY: both chunks have 8 elements; a token of AVX2 comes only with F16C.
            unsafe {
                let value = _mm256_loadu_ps(value.as_ptr());
                let rounded = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(value);
                _mm_storeu_si128(half.as_mut_ptr().cast::<__m128i>(), rounded);
            }
        }
        halves
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut u8, from: *const u8) {
        debug_assert!(to.addr().is_multiple_of(STREAM_BYTES));
        // SAFETY: the caller vouches for both pointers, the token for AVX.
        unsafe { _mm256_stream_si256(to.cast::<__m256i>(), _mm256_loadu_si256(from.cast::<__m256i>())) }
    }
}

#[cfg(target_arch = "x86_64")]
impl Instructions for Avx512 {
    #[inline(always)]
    fn widen_f16<const N: usize>(self, pack: [f16; N]) -> [f32; N] {
        Avx2(()).widen_f16(pack)
    }

    #[inline(always)]
    fn narrow_f16<const N: usize>(self, values: [f32; N]) -> [f16; N] {
        Avx2(()).narrow_f16(values)
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut u8, from: *const u8) {
        // SAFETY: the caller vouches for both pointers; a token of AVX-512 comes only with AVX2.
        unsafe { Avx2(()).stream(to, from) }
    }
}
