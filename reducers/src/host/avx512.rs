//! Reductions with AVX-512: the same as [`super::avx2`] in registers of twice the size.
//!
//! It needs foundation, byte and word, and vector length: all processors with AVX-512 except the
//! first, of 2016. The instructions for bfloat16 are not used, because they flush subnormals.

use super::lanes::{Array, Lanes, Value};
use crate::host::isa::{F32Lanes, Instructions, SimdKernel, methods};
use crate::host::narrow_float::{E4M3, Format, Half};
use std::arch::x86_64::*;

/// The processor has AVX-512F, BW and VL.
#[derive(Clone, Copy, Debug)]
pub(super) struct Avx512(());

impl Avx512 {
    /// Returns a token if this processor has the instructions.
    pub(super) fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl");
        has.then_some(Self(()))
    }
}

impl Instructions for Avx512 {
    const REGISTER: usize = 64;
    type Bytes<V: Value> = Array<V, 64>;
    type Pairs<V: Value> = Array<V, 32>;
    type Quads<V: Value> = Array<V, 16>;
    type Octs<V: Value> = Array<V, 8>;
    type Sixteens<V: Value> = Array<V, 4>;
    type F32 = Floats;

    #[inline(always)]
    fn run(self, kernel: impl SimdKernel) {
        #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
        fn compiled(kernel: impl SimdKernel, cpu: Avx512) {
            kernel.run(cpu);
        }
        // SAFETY: the token says that the processor has these instructions.
        unsafe { compiled(kernel, self) }
    }

    #[inline(always)]
    unsafe fn stream(self, target: *mut u8, source: *const u8) {
        debug_assert!(target.addr().is_multiple_of(Self::REGISTER));
        // SAFETY: the caller vouches for both pointers, the token for AVX-512.
        unsafe { _mm512_stream_si512(target.cast(), _mm512_loadu_si512(source.cast())) }
    }
}

/// A register of sixteen f32. It is made with a token, so having one proves that the processor has
/// the instructions.
#[derive(Clone, Copy)]
pub(super) struct Floats(__m512);

impl Lanes for Floats {
    methods! {
        fn sum(self: Self, other: Self) -> Self {
            Floats(_mm512_add_ps(self.0, other.0))
        }

        fn product(self: Self, other: Self) -> Self {
            Floats(_mm512_mul_ps(self.0, other.0))
        }

        fn smaller(self: Self, other: Self) -> Self {
            let equal = _mm512_or_si512(bits(self), bits(other));
            choose(self, other, _mm512_min_ps(self.0, other.0), equal)
        }

        fn larger(self: Self, other: Self) -> Self {
            let equal = _mm512_and_si512(bits(self), bits(other));
            choose(self, other, _mm512_max_ps(self.0, other.0), equal)
        }

        fn divide(self: Self, ranks: u32) -> Self {
            Floats(_mm512_div_ps(self.0, _mm512_set1_ps(ranks as f32)))
        }
    }
}

impl F32Lanes<Avx512> for Floats {
    methods! {
        fn splat(_cpu: Avx512, value: f32) -> Self {
            Floats(_mm512_set1_ps(value))
        }
    }

    methods! {
        unsafe fn load_f32(_cpu: Avx512, source: *const u8) -> [Self; 1] {
            [Floats(_mm512_loadu_ps(source.cast()))]
        }

        unsafe fn store_f32(lanes: [Self; 1], target: *mut u8) {
            _mm512_storeu_ps(target.cast(), lanes[0].0);
        }

        unsafe fn load_f16(_cpu: Avx512, source: *const u8) -> [Self; 2] {
            widen(_mm512_loadu_si512(source.cast()))
        }

        unsafe fn store_f16(lanes: [Self; 2], target: *mut u8) {
            _mm512_storeu_si512(target.cast(), narrow(lanes));
        }

        unsafe fn load_bf16(_cpu: Avx512, source: *const u8) -> [Self; 2] {
            let pairs = _mm512_loadu_si512(source.cast());
            let first = _mm512_slli_epi32::<16>(pairs);
            let second = _mm512_and_si512(pairs, splat(0xffff_0000));
            [Floats(_mm512_castsi512_ps(first)), Floats(_mm512_castsi512_ps(second))]
        }

        unsafe fn store_bf16(lanes: [Self; 2], target: *mut u8) {
            let (first, second) = (round_bf16(lanes[0]), round_bf16(lanes[1]));
            let pairs = _mm512_mask_blend_epi16(0xaaaa_aaaa, _mm512_srli_epi32::<16>(first), second);
            _mm512_storeu_si512(target.cast(), pairs);
        }

        unsafe fn load_f8<F>(_cpu: Avx512, source: *const u8) -> [Self; 4] {
            let codes = _mm512_loadu_si512(source.cast());
            let zero = _mm512_setzero_si512();
            let (low, high) = (_mm512_unpacklo_epi8(zero, codes), _mm512_unpackhi_epi8(zero, codes));
            if F::BIAS == Half::BIAS {
                let ([a, b], [c, d]) = (widen(low), widen(high));
                return [a, b, c, d];
            }
            let nan = _mm512_cmpeq_epi8_mask(_mm512_or_si512(codes, splat(0x8080_8080)), splat(!0));
            let nan = _mm512_movm_epi8(nan);
            let [a, b] = widen_e4m3(low, _mm512_unpacklo_epi8(zero, nan));
            let [c, d] = widen_e4m3(high, _mm512_unpackhi_epi8(zero, nan));
            [a, b, c, d]
        }

        unsafe fn store_f8<F>(lanes: [Self; 4], target: *mut u8) {
            let low = narrow([round_f8::<F>(lanes[0]), round_f8::<F>(lanes[1])]);
            let high = narrow([round_f8::<F>(lanes[2]), round_f8::<F>(lanes[3])]);
            let (low, high) = if F::BIAS == Half::BIAS { (low, high) } else { (e4m3(low), e4m3(high)) };
            let (low, high) = (_mm512_srli_epi16::<8>(low), _mm512_srli_epi16::<8>(high));
            _mm512_storeu_si512(target.cast(), _mm512_packus_epi16(low, high));
        }
    }
}

/// Returns `number`, or `other` beside a NaN, or `equal` of equals, which may differ in the sign of
/// zero, or the NaN that is `value`.
#[inline]
#[target_feature(enable = "avx512f")]
fn choose(value: Floats, other: Floats, number: __m512, equal: __m512i) -> Floats {
    let equals = _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(value.0, other.0);
    let number = _mm512_mask_mov_ps(number, equals, _mm512_castsi512_ps(equal));
    Floats(_mm512_mask_mov_ps(number, _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(value.0, value.0), value.0))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn bits(lanes: Floats) -> __m512i {
    _mm512_castps_si512(lanes.0)
}

/// The bits of f32, whose upper half is the nearest bfloat16. A carry into the exponent is correct,
/// and NaNs have no bits to carry.
#[inline]
#[target_feature(enable = "avx512f")]
fn round_bf16(lanes: Floats) -> __m512i {
    let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits(lanes)), splat(1));
    _mm512_add_epi32(_mm512_add_epi32(bits(lanes), splat(0x7fff)), odd)
}

/// The values of 32 half floats.
#[inline]
#[target_feature(enable = "avx512f")]
fn widen(halves: __m512i) -> [Floats; 2] {
    let low = _mm512_cvtph_ps(_mm512_castsi512_si256(halves));
    let high = _mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(halves));
    [Floats(low), Floats(high)]
}

/// 32 half floats.
#[inline]
#[target_feature(enable = "avx512f")]
fn narrow(lanes: [Floats; 2]) -> __m512i {
    let low = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(lanes[0].0);
    let high = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(lanes[1].0);
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
}

/// The values of 32 codes, each in the upper half of 16 bits, which are all set in `nan` for a NaN.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn widen_e4m3(codes: __m512i, nan: __m512i) -> [Floats; 2] {
    let halves = _mm512_and_si512(_mm512_srai_epi16::<1>(codes), splat(0xbfff_bfff));
    let [low, high] = widen(_mm512_or_si512(halves, nan));
    let scale = _mm512_set1_ps(f32::from_bits((127 + Half::BIAS - E4M3::BIAS) << 23));
    [Floats(_mm512_mul_ps(low.0, scale)), Floats(_mm512_mul_ps(high.0, scale))]
}

/// 32 codes, each in the upper half of 16 bits, of half floats that [`round_f8`] has rounded.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn e4m3(halves: __m512i) -> __m512i {
    let magnitude = _mm512_and_si512(halves, splat(0x7fff_7fff));
    let magnitude = _mm512_min_epu16(magnitude, splat(E4M3::OVERFLOW << 7 | E4M3::OVERFLOW << 23));
    let sign = _mm512_and_si512(halves, splat(0x8000_8000));
    _mm512_or_si512(_mm512_add_epi16(magnitude, magnitude), sign)
}

/// Rounded and scaled as in [`super::avx2`], where it is explained.
#[inline]
#[target_feature(enable = "avx512f")]
fn round_f8<F: Format>(lanes: Floats) -> Floats {
    let exponent = _mm512_and_si512(bits(lanes), splat(0x7f80_0000));
    let exponent = _mm512_max_epi32(exponent, splat(F::SMALLEST_NORMAL));
    let exponent = _mm512_min_epi32(exponent, splat(super::avx2::LARGEST_ROUNDED));
    let anchor = _mm512_add_epi32(exponent, splat((F::SHIFT << 23) + (1 << 22)));
    let anchor = _mm512_castsi512_ps(anchor);
    let rounded = _mm512_sub_ps(_mm512_add_ps(lanes.0, anchor), anchor);
    let sign = _mm512_and_si512(bits(lanes), splat(1 << 31));
    let rounded = _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(rounded), sign));
    Floats(_mm512_mul_ps(rounded, _mm512_set1_ps(f32::from_bits((127 + F::BIAS - Half::BIAS) << 23))))
}

/// `bits` in every lane.
#[inline]
#[target_feature(enable = "avx512f")]
fn splat(bits: u32) -> __m512i {
    _mm512_set1_epi32(bits.cast_signed())
}
