//! Reductions with AVX2 and F16C.
//!
//! The arithmetic is that of [`crate::host::narrow_float`] and [`super::lanes`], where it is
//! explained.

use super::lanes::{Array, Lanes, Value};
use crate::host::isa::{F32Lanes, Instructions, SimdKernel, methods};
use crate::host::narrow_float::{E4M3, Format, Half};
use std::arch::x86_64::*;

/// The processor has AVX2 and F16C.
#[derive(Clone, Copy, Debug)]
pub(super) struct Avx2(());

impl Avx2 {
    /// Returns a token if this processor has the instructions.
    pub(super) fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c")).then_some(Self(()))
    }
}

impl Instructions for Avx2 {
    const REGISTER: usize = 32;
    type Bytes<V: Value> = Array<V, 32>;
    type Pairs<V: Value> = Array<V, 16>;
    type Quads<V: Value> = Array<V, 8>;
    type Octs<V: Value> = Array<V, 4>;
    type Sixteens<V: Value> = Array<V, 2>;
    type F32 = Floats;

    #[inline(always)]
    fn run(self, kernel: impl SimdKernel) {
        #[target_feature(enable = "avx2,f16c")]
        fn compiled(kernel: impl SimdKernel, cpu: Avx2) {
            kernel.run(cpu);
        }
        // SAFETY: the token says that the processor has these instructions.
        unsafe { compiled(kernel, self) }
    }

    #[inline(always)]
    unsafe fn stream(self, target: *mut u8, source: *const u8) {
        debug_assert!(target.addr().is_multiple_of(Self::REGISTER));
        // SAFETY: the caller vouches for both pointers, the token for AVX.
        unsafe { _mm256_stream_si256(target.cast(), _mm256_loadu_si256(source.cast())) }
    }
}

/// A register of eight f32. It is made with a token, so having one proves that the processor has
/// the instructions.
#[derive(Clone, Copy)]
pub(super) struct Floats(__m256);

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
        unsafe fn load_f32(_cpu: Avx2, source: *const u8) -> [Self; 1] {
            [Floats(_mm256_loadu_ps(source.cast()))]
        }

        unsafe fn store_f32(lanes: [Self; 1], target: *mut u8) {
            _mm256_storeu_ps(target.cast(), lanes[0].0);
        }

        unsafe fn load_f16(_cpu: Avx2, source: *const u8) -> [Self; 2] {
            widen(_mm256_loadu_si256(source.cast()))
        }

        unsafe fn store_f16(lanes: [Self; 2], target: *mut u8) {
            _mm256_storeu_si256(target.cast(), narrow(lanes));
        }

        // The first and the second of each pair: no lane has to move.
        unsafe fn load_bf16(_cpu: Avx2, source: *const u8) -> [Self; 2] {
            let pairs = _mm256_loadu_si256(source.cast());
            let first = _mm256_slli_epi32::<16>(pairs);
            let second = _mm256_and_si256(pairs, splat(0xffff_0000));
            [Floats(_mm256_castsi256_ps(first)), Floats(_mm256_castsi256_ps(second))]
        }

        unsafe fn store_bf16(lanes: [Self; 2], target: *mut u8) {
            let (first, second) = (round_bf16(lanes[0]), round_bf16(lanes[1]));
            let pairs = _mm256_blend_epi16::<0b1010_1010>(_mm256_srli_epi32::<16>(first), second);
            _mm256_storeu_si256(target.cast(), pairs);
        }

        // Converts through half floats, which have the exponent of E5M2 and a wider one than E4M3.
        unsafe fn load_f8<F>(_cpu: Avx2, source: *const u8) -> [Self; 4] {
            let codes = _mm256_loadu_si256(source.cast());
            let low = _mm256_unpacklo_epi8(_mm256_setzero_si256(), codes);
            let high = _mm256_unpackhi_epi8(_mm256_setzero_si256(), codes);
            if F::BIAS == Half::BIAS {
                let ([a, b], [c, d]) = (widen(low), widen(high));
                return [a, b, c, d];
            }
            let nan = _mm256_cmpeq_epi8(_mm256_or_si256(codes, splat(0x8080_8080)), splat(!0));
            let [a, b] = widen_e4m3(low, _mm256_unpacklo_epi8(_mm256_setzero_si256(), nan));
            let [c, d] = widen_e4m3(high, _mm256_unpackhi_epi8(_mm256_setzero_si256(), nan));
            [a, b, c, d]
        }

        unsafe fn store_f8<F>(lanes: [Self; 4], target: *mut u8) {
            let low = narrow([round_f8::<F>(lanes[0]), round_f8::<F>(lanes[1])]);
            let high = narrow([round_f8::<F>(lanes[2]), round_f8::<F>(lanes[3])]);
            let (low, high) = if F::BIAS == Half::BIAS { (low, high) } else { (e4m3(low), e4m3(high)) };
            let (low, high) = (_mm256_srli_epi16::<8>(low), _mm256_srli_epi16::<8>(high));
            _mm256_storeu_si256(target.cast(), _mm256_packus_epi16(low, high));
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

/// The bits of f32, whose upper half is the nearest bfloat16. A carry into the exponent is correct,
/// and NaNs have no bits to carry.
#[inline]
#[target_feature(enable = "avx2")]
fn round_bf16(lanes: Floats) -> __m256i {
    let bits = _mm256_castps_si256(lanes.0);
    let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), splat(1));
    _mm256_add_epi32(_mm256_add_epi32(bits, splat(0x7fff)), odd)
}

/// The values of sixteen half floats.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn widen(halves: __m256i) -> [Floats; 2] {
    let low = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
    let high = _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(halves));
    [Floats(low), Floats(high)]
}

/// Sixteen half floats.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn narrow(lanes: [Floats; 2]) -> __m256i {
    let low = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(lanes[0].0);
    let high = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(lanes[1].0);
    _mm256_set_m128i(high, low)
}

/// The values of sixteen codes, each in the upper half of 16 bits. All bits of `nan` are set for a
/// NaN.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn widen_e4m3(codes: __m256i, nan: __m256i) -> [Floats; 2] {
    let halves = _mm256_and_si256(_mm256_srai_epi16::<1>(codes), splat(0xbfff_bfff));
    let [low, high] = widen(_mm256_or_si256(halves, nan));
    let scale = _mm256_set1_ps(f32::from_bits((127 + Half::BIAS - E4M3::BIAS) << 23));
    [Floats(_mm256_mul_ps(low.0, scale)), Floats(_mm256_mul_ps(high.0, scale))]
}

/// Sixteen codes, each in the upper half of 16 bits, of half floats that [`round_f8`] has rounded.
#[inline]
#[target_feature(enable = "avx2")]
fn e4m3(halves: __m256i) -> __m256i {
    let magnitude = _mm256_and_si256(halves, splat(0x7fff_7fff));
    let magnitude = _mm256_min_epu16(magnitude, splat(E4M3::OVERFLOW << 7 | E4M3::OVERFLOW << 23));
    let sign = _mm256_and_si256(halves, splat(0x8000_8000));
    _mm256_or_si256(_mm256_add_epi16(magnitude, magnitude), sign)
}

/// Rounds to as many bits as the format has, and scales so that exponents are those of half floats.
/// Values that are too large stay so.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn round_f8<F: Format>(lanes: Floats) -> Floats {
    let bits = _mm256_castps_si256(lanes.0);
    let exponent = _mm256_and_si256(bits, splat(0x7f80_0000));
    let exponent = _mm256_max_epi32(exponent, splat(F::SMALLEST_NORMAL));
    let exponent = _mm256_min_epi32(exponent, splat(LARGEST_ROUNDED));
    // Adding a number whose last bit weighs as much as the last one wanted rounds the value. The
    // number is one and a half times a power of two, so that negative values do not change its
    // exponent.
    let anchor = _mm256_add_epi32(exponent, splat((F::SHIFT << 23) + (1 << 22)));
    let anchor = _mm256_castsi256_ps(anchor);
    let rounded = _mm256_sub_ps(_mm256_add_ps(lanes.0, anchor), anchor);
    let sign = _mm256_and_ps(lanes.0, _mm256_set1_ps(-0.0));
    // The sign of a zero was lost.
    let rounded = _mm256_or_ps(rounded, sign);
    Floats(_mm256_mul_ps(rounded, _mm256_set1_ps(f32::from_bits((127 + F::BIAS - Half::BIAS) << 23))))
}

/// Exponent, in place, of numbers that are too large for every float of 8 or 16 bits. Above it, the
/// anchor would not be finite.
pub(super) const LARGEST_ROUNDED: u32 = (127 + 32) << 23;

/// `bits` in every lane.
#[inline]
#[target_feature(enable = "avx2")]
fn splat(bits: u32) -> __m256i {
    _mm256_set1_epi32(bits.cast_signed())
}
