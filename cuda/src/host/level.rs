//! Instruction sets: the kernels are written once and compiled once for each.
//!
//! A token such as [`Avx2`] exists only where the processor has its
//! instructions, so that holding one is the permission to use them.

use super::number::{Value, each, pairs};
use super::small::{Format, Half, narrow, narrow_bf16, widen};
use half::{bf16, f16};
use std::sync::LazyLock;

#[cfg(target_arch = "x86_64")]
use super::avx2;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    _mm_loadu_si128, _mm_sfence, _mm_stream_si128, _mm256_loadu_si256, _mm256_stream_si256,
};

/// Work to be compiled for every instruction set.
///
/// Implementations are `#[inline(always)]` all the way down: only what is
/// inlined into the entry function of a [`Level`] uses its instructions.
pub(super) trait Kernel {
    /// Does it.
    fn run<I: Instructions>(self, cpu: I);
}

/// What the compiler does not make the best of by itself. Provided methods are for every processor.
pub(super) trait Instructions: Copy {
    /// Exact values of half floats.
    #[inline(always)]
    fn widen_f16<const N: usize>(self, pack: [f16; N]) -> [f32; N] {
        each(pack, |half: f16| widen::<Half>(half.to_bits().into()))
    }

    /// The nearest half floats, ties to even.
    #[inline(always)]
    fn narrow_f16<const N: usize>(self, values: [f32; N]) -> [f16; N] {
        each(values, |value| f16::from_bits(narrow::<Half>(value) as u16))
    }

    /// Exact values of bfloat16s.
    #[inline(always)]
    fn widen_bf16<const N: usize>(self, pack: [bf16; N]) -> [f32; N] {
        each(pack, |upper: bf16| f32::from_bits(u32::from(upper.to_bits()) << 16))
    }

    /// The nearest bfloat16s, ties to even.
    #[inline(always)]
    fn narrow_bf16<const N: usize>(self, values: [f32; N]) -> [bf16; N] {
        each(values, |value| bf16::from_bits(narrow_bf16(value)))
    }

    /// Exact values of 8-bit floats.
    #[inline(always)]
    fn widen_f8<F: Format, const N: usize>(self, codes: [u8; N]) -> [f32; N] {
        each(codes, |code: u8| widen::<F>(code.into()))
    }

    /// The nearest 8-bit floats, ties to even.
    #[inline(always)]
    fn narrow_f8<F: Format, const N: usize>(self, values: [f32; N]) -> [u8; N] {
        each(values, |value| narrow::<F>(value) as u8)
    }

    /// [`Value::smaller`] of each pair.
    #[inline(always)]
    fn smaller_f32<const N: usize>(self, left: [f32; N], right: [f32; N]) -> [f32; N] {
        pairs(left, right, f32::smaller)
    }

    /// [`Value::larger`] of each pair.
    #[inline(always)]
    fn larger_f32<const N: usize>(self, left: [f32; N], right: [f32; N]) -> [f32; N] {
        pairs(left, right, f32::larger)
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
pub(super) struct Avx512(Avx2);

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
                levels.push(Level::Avx512(Avx512(Avx2(()))));
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

/// Methods of [`Instructions`] that work through a pack eight lanes at a time, by `avx2::$method`.
#[cfg(target_arch = "x86_64")]
macro_rules! by_eights {
    ($($method:ident $(<$format:ident>)? ($($pack:ident: $from:ty),+) -> $to:ty;)*) => {$(
        #[inline(always)]
        fn $method<$($format: Format,)? const N: usize>(self, $($pack: [$from; N]),+) -> [$to; N] {
            let mut result = [<$to>::default(); N];
            let (chunks, rest) = result.as_chunks_mut::<8>();
            assert!(rest.is_empty());
            for (index, chunk) in chunks.iter_mut().enumerate() {
                // SAFETY: the token says that the processor has AVX2 and F16C.
                *chunk = unsafe { avx2::$method$(::<$format>)?($($pack.as_chunks::<8>().0[index]),+) };
            }
            result
        }
    )*};
}

#[cfg(target_arch = "x86_64")]
impl Instructions for Avx2 {
    by_eights! {
        widen_f16(pack: f16) -> f32;
        narrow_f16(values: f32) -> f16;
        widen_bf16(pack: bf16) -> f32;
        narrow_bf16(values: f32) -> bf16;
        widen_f8<F>(codes: u8) -> f32;
        narrow_f8<F>(values: f32) -> u8;
        smaller_f32(left: f32, right: f32) -> f32;
        larger_f32(left: f32, right: f32) -> f32;
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut u8, from: *const u8) {
        debug_assert!(to.addr().is_multiple_of(STREAM_BYTES));
        // SAFETY: the caller vouches for both pointers, the token for AVX.
        unsafe { _mm256_stream_si256(to.cast(), _mm256_loadu_si256(from.cast())) }
    }
}

#[cfg(target_arch = "x86_64")]
impl Instructions for Avx512 {
    by_eights! {
        widen_f16(pack: f16) -> f32;
        narrow_f16(values: f32) -> f16;
        widen_bf16(pack: bf16) -> f32;
        narrow_bf16(values: f32) -> bf16;
        widen_f8<F>(codes: u8) -> f32;
        narrow_f8<F>(values: f32) -> u8;
        smaller_f32(left: f32, right: f32) -> f32;
        larger_f32(left: f32, right: f32) -> f32;
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut u8, from: *const u8) {
        // SAFETY: the caller vouches for both pointers; `self.0` for what it needs.
        unsafe { self.0.stream(to, from) }
    }
}
