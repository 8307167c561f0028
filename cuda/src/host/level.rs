//! Instruction sets: the kernels are written once and compiled once for each.
//!
//! A token such as [`Avx2`] exists only where the processor has its
//! instructions, so that holding one is the permission to use them.

#[cfg(target_arch = "x86_64")]
use super::avx2::{self, Avx2};
use super::lanes::{Array, Lanes};
use super::small::{Format, Half, narrow, narrow_bf16, widen};
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

/// Eight lanes of f32, and the narrower floats that they are made from and rounded to.
///
/// Narrowing goes to the nearest, of two equally near to the even one.
pub(super) trait F32Lanes<I>: Lanes {
    /// From f32.
    fn new(cpu: I, values: [f32; 8]) -> Self;
    /// To f32.
    fn values(self) -> [f32; 8];
    /// From half floats, exactly.
    fn widen_f16(cpu: I, halves: [u16; 8]) -> Self;
    /// To half floats.
    fn narrow_f16(self) -> [u16; 8];
    /// From bfloat16s, exactly.
    fn widen_bf16(cpu: I, uppers: [u16; 8]) -> Self;
    /// To bfloat16s.
    fn narrow_bf16(self) -> [u16; 8];
    /// From floats of 8 bits, exactly.
    fn widen_small<F: Format>(cpu: I, codes: [u8; 8]) -> Self;
    /// To floats of 8 bits.
    fn narrow_small<F: Format>(self) -> [u8; 8];
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

impl F32Lanes<Portable> for Array<f32, 8> {
    #[inline(always)]
    fn new(_: Portable, values: [f32; 8]) -> Self {
        Array(values)
    }

    #[inline(always)]
    fn values(self) -> [f32; 8] {
        self.0
    }

    #[inline(always)]
    fn widen_f16(_: Portable, halves: [u16; 8]) -> Self {
        Array(halves.map(|half| widen::<Half>(half.into())))
    }

    #[inline(always)]
    fn narrow_f16(self) -> [u16; 8] {
        self.0.map(|value| narrow::<Half>(value) as u16)
    }

    #[inline(always)]
    fn widen_bf16(_: Portable, uppers: [u16; 8]) -> Self {
        Array(uppers.map(|upper| f32::from_bits(u32::from(upper) << 16)))
    }

    #[inline(always)]
    fn narrow_bf16(self) -> [u16; 8] {
        self.0.map(narrow_bf16)
    }

    #[inline(always)]
    fn widen_small<F: Format>(_: Portable, codes: [u8; 8]) -> Self {
        Array(codes.map(|code| widen::<F>(code.into())))
    }

    #[inline(always)]
    fn narrow_small<F: Format>(self) -> [u8; 8] {
        self.0.map(|value| narrow::<F>(value) as u8)
    }
}
