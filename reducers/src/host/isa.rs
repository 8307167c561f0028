//! Instruction sets: the kernels are written once and compiled once for each.
//!
//! A token such as [`Avx2`] exists only where the processor has its
//! instructions, so that holding one is the permission to use them.

#[cfg(target_arch = "x86_64")]
use crate::host::avx2::Avx2;
#[cfg(target_arch = "x86_64")]
use crate::host::avx512::Avx512;
use crate::host::lanes::{Lanes, Plain, Value};
use crate::host::narrow_float::Format;
use crate::host::portable::Portable;
use std::sync::LazyLock;

/// Work to be compiled for every instruction set.
///
/// Implementations are `#[inline(always)]` all the way down: only what is
/// inlined into [`Instructions::run`] uses its instructions.
pub(super) trait SimdKernel {
    /// Runs the kernel with the instructions of `cpu`.
    fn run<I: Instructions>(self, cpu: I);
}

/// Operations that the compiler does not vectorize well by itself.
pub(super) trait Instructions: Copy {
    /// Bytes of a vector register, of a non-temporal store, and its alignment.
    const REGISTER: usize;
    /// A register of values of one byte.
    type Bytes<V: Value>: Plain<V>;
    /// A register of values of two bytes.
    type Pairs<V: Value>: Plain<V>;
    /// A register of values of four bytes.
    type Quads<V: Value>: Plain<V>;
    /// A register of 8-byte values.
    type Octs<V: Value>: Plain<V>;
    /// A register of values of 16 bytes.
    type Sixteens<V: Value>: Plain<V>;
    /// A register of f32.
    type F32: F32Lanes<Self>;

    /// Runs the variant of `kernel` compiled for these instructions.
    fn run(self, kernel: impl SimdKernel);

    /// Stores a register by non-temporal stores. [`stream_fence`] must follow before the data is
    /// published.
    ///
    /// # Safety
    /// `source` is valid for reads and `target` for writes of [`Self::REGISTER`], and `target` is a
    /// multiple of it.
    unsafe fn stream(self, target: *mut u8, source: *const u8);
}

/// A register of f32, loaded from and rounded to narrower floats too. A register full of those
/// becomes several of f32, in an order that the implementation chooses.
///
/// Loading is exact. Storing rounds to nearest, ties to even. Stored NaNs have no more bits set
/// than the narrower type has, as NaNs of arithmetic on such values do.
///
/// # Safety
/// For all functions except `splat`: the pointer is valid for reading or writing a register full.
/// Alignment is not needed.
pub(super) trait F32Lanes<I>: Lanes {
    /// The same value in every lane.
    fn splat(cpu: I, value: f32) -> Self;
    /// Loads f32.
    unsafe fn load_f32(cpu: I, source: *const u8) -> [Self; 1];
    /// Stores f32.
    unsafe fn store_f32(lanes: [Self; 1], target: *mut u8);
    /// Loads half floats.
    unsafe fn load_f16(cpu: I, source: *const u8) -> [Self; 2];
    /// Stores half floats.
    unsafe fn store_f16(lanes: [Self; 2], target: *mut u8);
    /// Loads bfloat16.
    unsafe fn load_bf16(cpu: I, source: *const u8) -> [Self; 2];
    /// Stores bfloat16.
    unsafe fn store_bf16(lanes: [Self; 2], target: *mut u8);
    /// Loads 8-bit floats.
    unsafe fn load_f8<F: Format>(cpu: I, source: *const u8) -> [Self; 4];
    /// Stores 8-bit floats.
    unsafe fn store_f8<F: Format>(lanes: [Self; 4], target: *mut u8);
}

/// Defines methods whose bodies use the instructions that the token or a value vouches for.
#[cfg(target_arch = "x86_64")]
macro_rules! methods {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty $body:block)*) => {$(
        #[inline(always)]
        fn $name($($argument: $type),*) -> $result {
            // SAFETY: every method takes a token or a value made with one, so the processor has
            // these instructions.
            unsafe { $body }
        }
    )*};
    ($(unsafe fn $name:ident$(<$format:ident>)?($($argument:ident: $type:ty),*) $(-> $result:ty)? $body:block)*) => {$(
        #[inline(always)]
        unsafe fn $name$(<$format: Format>)?($($argument: $type),*) $(-> $result)? {
            // SAFETY: likewise; the caller vouches for the pointer.
            unsafe { $body }
        }
    )*};
}
#[cfg(target_arch = "x86_64")]
pub(super) use methods;

/// The instructions of this processor, or fewer in tests.
#[derive(Clone, Copy, Debug)]
pub(super) enum Isa {
    /// Instructions that every processor of this architecture has.
    Portable,
    /// AVX2 and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// AVX-512F, BW and VL.
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

impl Isa {
    /// The best that this processor has; found out once.
    #[inline]
    pub(super) fn best() -> Isa {
        static BEST: LazyLock<Isa> = LazyLock::new(|| Isa::available().pop().unwrap_or(Isa::Portable));
        *BEST
    }

    /// All that this processor has, the best last.
    pub(super) fn available() -> Vec<Isa> {
        let mut levels = vec![Isa::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            levels.extend(Avx2::detect().map(Isa::Avx2));
            levels.extend(Avx512::detect().map(Isa::Avx512));
        }
        levels
    }

    /// Returns the name for people.
    pub(super) fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2(_) => "AVX2",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512(_) => "AVX-512",
        }
    }

    /// Runs the variant of `kernel` compiled for this level.
    #[inline(always)]
    pub(super) fn run(self, kernel: impl SimdKernel) {
        match self {
            Isa::Portable => Portable.run(kernel),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2(cpu) => cpu.run(kernel),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512(cpu) => cpu.run(kernel),
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

/// Asks for the cache line of `address`, which need not be valid.
#[inline(always)]
pub(super) fn prefetch(address: *const u8) {
    // SAFETY: SSE is part of x86-64; a prefetch never faults.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast())
    };
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instruction_set;

    /// Writes the bytes of a register of the instructions for which it was compiled.
    struct RegisterBytes<'a>(&'a mut usize);

    impl SimdKernel for RegisterBytes<'_> {
        #[inline(always)]
        fn run<I: Instructions>(self, _: I) {
            *self.0 = I::REGISTER;
        }
    }

    #[test]
    fn instruction_set_names_the_kernels_that_run() {
        let mut bytes = 0;
        Isa::best().run(RegisterBytes(&mut bytes));
        let expected = match bytes {
            64 => "AVX-512",
            32 => "AVX2",
            _ => "portable",
        };
        assert_eq!(instruction_set(), expected);
    }
}
