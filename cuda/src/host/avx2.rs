//! Eight lanes at a time with AVX2 and F16C, for what the compiler does not turn into vectors by itself.
//!
//! Step by step the same arithmetic as in [`super::small`] and
//! [`super::number`], where it is explained.

use super::small::Format;
use half::{bf16, f16};
use std::arch::x86_64::*;
use std::mem::transmute;

/// Exact values of half floats.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn widen_f16(halves: [f16; 8]) -> [f32; 8] {
    // SAFETY: plain bits of the same size, here and in the other functions of this file.
    unsafe { transmute(_mm256_cvtph_ps(transmute::<[f16; 8], __m128i>(halves))) }
}

/// The nearest half floats, ties to even.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn narrow_f16(values: [f32; 8]) -> [f16; 8] {
    // SAFETY: as above.
    unsafe { transmute(_mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(floats(values))) }
}

/// Exact values of bfloat16s.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn widen_bf16(uppers: [bf16; 8]) -> [f32; 8] {
    // SAFETY: as above.
    let uppers = _mm256_cvtepu16_epi32(unsafe { transmute::<[bf16; 8], __m128i>(uppers) });
    array(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(uppers)))
}

/// The nearest bfloat16s, ties to even.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn narrow_bf16(values: [f32; 8]) -> [bf16; 8] {
    let values = floats(values);
    let bits = _mm256_castps_si256(values);
    let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
    let rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(values, values));
    let codes = _mm256_blendv_epi8(_mm256_srli_epi32::<16>(rounded), _mm256_set1_epi32(0x7fc0), nan);
    // SAFETY: as above.
    unsafe { transmute(lower_halves(codes)) }
}

/// Exact values of 8-bit floats.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn widen_f8<F: Format>(codes: [u8; 8]) -> [f32; 8] {
    let codes = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(i64::from_ne_bytes(codes)));
    let magnitude = _mm256_and_si256(codes, splat(F::SIGN - 1));
    let sign = _mm256_slli_epi32::<24>(_mm256_and_si256(codes, splat(F::SIGN)));
    let aligned = _mm256_sll_epi32(magnitude, count(F::SHIFT));
    let normal = _mm256_add_epi32(aligned, splat((127 - F::BIAS) << 23));
    let one = splat(F::SMALLEST_NORMAL);
    let lent = _mm256_castsi256_ps(_mm256_or_si256(aligned, one));
    let subnormal = _mm256_castps_si256(_mm256_sub_ps(lent, _mm256_castsi256_ps(one)));
    let bits = _mm256_blendv_epi8(normal, subnormal, _mm256_cmpgt_epi32(splat(1 << F::MANTISSA), magnitude));
    let special = _mm256_or_si256(aligned, splat(0x7f80_0000));
    let bits = _mm256_blendv_epi8(bits, special, _mm256_cmpgt_epi32(magnitude, splat(F::OVERFLOW - 1)));
    array(_mm256_castsi256_ps(_mm256_or_si256(bits, sign)))
}

/// The nearest 8-bit floats, ties to even.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn narrow_f8<F: Format>(values: [f32; 8]) -> [u8; 8] {
    let bits = _mm256_castps_si256(floats(values));
    let magnitude = _mm256_and_si256(bits, splat(0x7fff_ffff));
    let sign = _mm256_and_si256(_mm256_srli_epi32::<24>(bits), splat(F::SIGN));
    let odd = _mm256_and_si256(_mm256_srl_epi32(magnitude, count(F::SHIFT)), splat(1));
    let below_half = splat((1 << (F::SHIFT - 1)) - 1);
    let rounded = _mm256_add_epi32(_mm256_add_epi32(magnitude, below_half), odd);
    let rounded = _mm256_srl_epi32(rounded, count(F::SHIFT));
    let normal = _mm256_sub_epi32(rounded, splat((127 - F::BIAS) << F::MANTISSA));
    let normal = _mm256_min_epu32(normal, splat(F::OVERFLOW));
    let anchor = splat(F::SMALLEST_NORMAL + (F::SHIFT << 23));
    let anchored = _mm256_add_ps(_mm256_castsi256_ps(magnitude), _mm256_castsi256_ps(anchor));
    let subnormal = _mm256_sub_epi32(_mm256_castps_si256(anchored), anchor);
    let codes =
        _mm256_blendv_epi8(normal, subnormal, _mm256_cmpgt_epi32(splat(F::SMALLEST_NORMAL), magnitude));
    let codes = _mm256_blendv_epi8(codes, splat(F::NAN), _mm256_cmpgt_epi32(magnitude, splat(0x7f80_0000)));
    let words = lower_halves(_mm256_or_si256(codes, sign));
    _mm_cvtsi128_si64(_mm_packus_epi16(words, words)).to_ne_bytes()
}

/// The smaller of each pair.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn smaller_f32(left: [f32; 8], right: [f32; 8]) -> [f32; 8] {
    let (left, right) = (floats(left), floats(right));
    choose(left, right, _mm256_min_ps(left, right), _mm256_or_ps(left, right))
}

/// The larger of each pair.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn larger_f32(left: [f32; 8], right: [f32; 8]) -> [f32; 8] {
    let (left, right) = (floats(left), floats(right));
    choose(left, right, _mm256_max_ps(left, right), _mm256_and_ps(left, right))
}

/// `number`, which is `right` beside a NaN; or `equal` of equals, which may differ in the sign of
/// zero; or the NaN that is `left`.
#[inline]
#[target_feature(enable = "avx2")]
fn choose(left: __m256, right: __m256, number: __m256, equal: __m256) -> [f32; 8] {
    let number = _mm256_blendv_ps(number, equal, _mm256_cmp_ps::<_CMP_EQ_OQ>(left, right));
    array(_mm256_blendv_ps(number, left, _mm256_cmp_ps::<_CMP_UNORD_Q>(left, left)))
}

/// The lower 16 bits of eight lanes that hold no more.
#[inline]
#[target_feature(enable = "avx2")]
fn lower_halves(lanes: __m256i) -> __m128i {
    let packed = _mm256_packus_epi32(lanes, lanes);
    _mm256_castsi256_si128(_mm256_permute4x64_epi64::<0b1000>(packed))
}

#[inline]
#[target_feature(enable = "avx2")]
fn splat(bits: u32) -> __m256i {
    _mm256_set1_epi32(bits.cast_signed())
}

#[inline]
#[target_feature(enable = "avx2")]
fn count(bits: u32) -> __m128i {
    _mm_cvtsi32_si128(bits.cast_signed())
}

#[inline]
#[target_feature(enable = "avx2")]
fn floats(values: [f32; 8]) -> __m256 {
    // SAFETY: as above.
    unsafe { transmute(values) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn array(values: __m256) -> [f32; 8] {
    // SAFETY: as above.
    unsafe { transmute(values) }
}
