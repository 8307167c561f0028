//! AVX2 and F16C.
//!
//! Step by step the arithmetic of [`super::small`] and [`super::lanes`], where it is explained.

use super::lanes::Lanes;
use super::level::{F32Lanes, Instructions, Kernel, STREAM_BYTES};
use super::small::Format;
use std::arch::x86_64::*;

/// The processor has AVX2 and F16C.
#[derive(Clone, Copy, Debug)]
pub(super) struct Avx2(());

impl Avx2 {
    /// Whether this processor has them.
    pub(super) fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c")).then_some(Self(()))
    }
}

/// Runs the variant of `kernel` for these instructions.
#[inline]
pub(super) fn run(kernel: impl Kernel, cpu: Avx2) {
    #[target_feature(enable = "avx2,f16c")]
    fn compiled(kernel: impl Kernel, cpu: Avx2) {
        kernel.run(cpu);
    }
    // SAFETY: the token says that the processor has these instructions.
    unsafe { compiled(kernel, cpu) }
}

impl Instructions for Avx2 {
    type F32 = Floats;

    #[inline(always)]
    unsafe fn stream(self, to: *mut u8, from: *const u8) {
        debug_assert!(to.addr().is_multiple_of(STREAM_BYTES));
        // SAFETY: the caller vouches for both pointers, the token for AVX.
        unsafe { _mm256_stream_si256(to.cast(), _mm256_loadu_si256(from.cast())) }
    }
}

/// A register of eight f32. As each is made with a token, having one is a permission, too.
#[derive(Clone, Copy)]
pub(super) struct Floats(__m256);

/// Defines methods whose bodies use the instructions that the token or a value vouches for.
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

impl Lanes for Floats {
    methods! {
        fn sum(self: Self, other: Self) -> Self {
            Floats(_mm256_add_ps(self.0, other.0))
        }

        fn product(self: Self, other: Self) -> Self {
            Floats(_mm256_mul_ps(self.0, other.0))
        }

        fn smaller(self: Self, other: Self) -> Self {
            self.choose(other, _mm256_min_ps(self.0, other.0), _mm256_or_ps(self.0, other.0))
        }

        fn larger(self: Self, other: Self) -> Self {
            self.choose(other, _mm256_max_ps(self.0, other.0), _mm256_and_ps(self.0, other.0))
        }

        fn divide(self: Self, ranks: u32) -> Self {
            Floats(_mm256_div_ps(self.0, _mm256_set1_ps(ranks as f32)))
        }
    }
}

impl F32Lanes<Avx2> for Floats {
    methods! {
        fn splat(_cpu: Avx2, value: f32) -> Self {
            Floats(_mm256_set1_ps(value))
        }
    }

    methods! {
        unsafe fn load_f32(_cpu: Avx2, from: *const u8) -> Self {
            Floats(_mm256_loadu_ps(from.cast()))
        }

        unsafe fn store_f32(self: Self, to: *mut u8) {
            _mm256_storeu_ps(to.cast(), self.0);
        }

        unsafe fn load_f16(_cpu: Avx2, from: *const u8) -> Self {
            Floats(_mm256_cvtph_ps(_mm_loadu_si128(from.cast())))
        }

        unsafe fn store_f16(self: Self, to: *mut u8) {
            _mm_storeu_si128(to.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0));
        }

        unsafe fn load_bf16(_cpu: Avx2, from: *const u8) -> Self {
            let uppers = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            Floats(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(uppers)))
        }

        unsafe fn store_bf16(self: Self, to: *mut u8) {
            let bits = _mm256_castps_si256(self.0);
            let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), splat(1));
            let rounded = _mm256_add_epi32(_mm256_add_epi32(bits, splat(0x7fff)), odd);
            let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(self.0, self.0));
            let codes = choose(nan, splat(0x7fc0), _mm256_srli_epi32::<16>(rounded));
            _mm_storeu_si128(to.cast(), lower_halves(codes));
        }

        unsafe fn load_f8<F>(_cpu: Avx2, from: *const u8) -> Self {
            let codes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast()));
            let magnitude = _mm256_and_si256(codes, splat(F::SIGN - 1));
            let sign = _mm256_slli_epi32::<24>(_mm256_and_si256(codes, splat(F::SIGN)));
            let aligned = _mm256_sll_epi32(magnitude, count(F::SHIFT));
            let normal = _mm256_add_epi32(aligned, splat((127 - F::BIAS) << 23));
            let one = splat(F::SMALLEST_NORMAL);
            let lent = _mm256_castsi256_ps(_mm256_or_si256(aligned, one));
            let subnormal = _mm256_castps_si256(_mm256_sub_ps(lent, _mm256_castsi256_ps(one)));
            let bits = choose(_mm256_cmpgt_epi32(splat(1 << F::MANTISSA), magnitude), subnormal, normal);
            let special = _mm256_or_si256(aligned, splat(0x7f80_0000));
            let bits = choose(_mm256_cmpgt_epi32(magnitude, splat(F::OVERFLOW - 1)), special, bits);
            Floats(_mm256_castsi256_ps(_mm256_or_si256(bits, sign)))
        }

        unsafe fn store_f8<F>(self: Self, to: *mut u8) {
            let bits = _mm256_castps_si256(self.0);
            let magnitude = _mm256_and_si256(bits, splat(0x7fff_ffff));
            let sign = _mm256_and_si256(_mm256_srli_epi32::<24>(bits), splat(F::SIGN));
            let odd = _mm256_and_si256(_mm256_srl_epi32(magnitude, count(F::SHIFT)), splat(1));
            let just_below_half = splat((1 << (F::SHIFT - 1)) - 1);
            let rounded = _mm256_add_epi32(_mm256_add_epi32(magnitude, just_below_half), odd);
            let rounded = _mm256_srl_epi32(rounded, count(F::SHIFT));
            let normal = _mm256_sub_epi32(rounded, splat((127 - F::BIAS) << F::MANTISSA));
            let normal = _mm256_min_epu32(normal, splat(F::OVERFLOW));
            let anchor = splat(F::SMALLEST_NORMAL + (F::SHIFT << 23));
            let anchored = _mm256_add_ps(_mm256_castsi256_ps(magnitude), _mm256_castsi256_ps(anchor));
            let subnormal = _mm256_sub_epi32(_mm256_castps_si256(anchored), anchor);
            let codes = choose(_mm256_cmpgt_epi32(splat(F::SMALLEST_NORMAL), magnitude), subnormal, normal);
            let codes = choose(_mm256_cmpgt_epi32(magnitude, splat(0x7f80_0000)), splat(F::NAN), codes);
            let words = lower_halves(_mm256_or_si256(codes, sign));
            _mm_storel_epi64(to.cast(), _mm_packus_epi16(words, words));
        }
    }
}

impl Floats {
    methods! {
        // `number`, which is `other` beside a NaN; or `equal` of equals, which may differ in the
        // sign of zero; or the NaN that is `self`.
        fn choose(self: Self, other: Self, number: __m256, equal: __m256) -> Self {
            let number = _mm256_blendv_ps(number, equal, _mm256_cmp_ps::<_CMP_EQ_OQ>(self.0, other.0));
            Floats(_mm256_blendv_ps(number, self.0, _mm256_cmp_ps::<_CMP_UNORD_Q>(self.0, self.0)))
        }
    }
}

/// `then` where `condition` holds, `otherwise` elsewhere.
#[inline]
#[target_feature(enable = "avx2")]
fn choose(condition: __m256i, then: __m256i, otherwise: __m256i) -> __m256i {
    _mm256_blendv_epi8(otherwise, then, condition)
}

/// The lower 16 bits of eight lanes that hold no more.
#[inline]
#[target_feature(enable = "avx2")]
fn lower_halves(lanes: __m256i) -> __m128i {
    let packed = _mm256_packus_epi32(lanes, lanes);
    _mm256_castsi256_si128(_mm256_permute4x64_epi64::<0b1000>(packed))
}

/// `bits` in every lane.
#[inline]
#[target_feature(enable = "avx2")]
fn splat(bits: u32) -> __m256i {
    _mm256_set1_epi32(bits.cast_signed())
}

/// A shift that is the same for every lane.
#[inline]
#[target_feature(enable = "avx2")]
fn count(bits: u32) -> __m128i {
    _mm_cvtsi32_si128(bits.cast_signed())
}
