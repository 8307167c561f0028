//! Elementwise functions and sums that the compiler can vectorize for the present processor.
//!
//! Nothing here fuses a multiplication with an addition, and sums use a fixed number of lanes. The
//! bits are equal on every processor.

use pulp::{Arch, Simd, WithSimd};

/// Lanes of a sum: two AVX2 registers.
const LANES: usize = 16;

/// Runs `work` compiled for the best available instructions.
///
/// This applies to inlined code, so `work` and its callees are `#[inline(always)]`.
#[inline(always)]
pub fn vectorized<R>(work: impl FnOnce() -> R) -> R {
    Arch::new().dispatch(work)
}

/// Returns the name of the instruction set for which [`vectorized`] runs compiled work: `AVX-512`,
/// `AVX2`, `NEON`, or `portable` for the instructions of every processor of the architecture.
pub(crate) fn instruction_set() -> &'static str {
    struct F32Lanes;
    impl WithSimd for F32Lanes {
        type Output = usize;
        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) -> usize {
            S::F32_LANES
        }
    }
    match Arch::new().dispatch(F32Lanes) {
        16 => "AVX-512",
        8 => "AVX2",
        4 => "NEON",
        _ => "portable",
    }
}

/// Returns e to the power of `x`, within 2 units in the last place. The result is clamped to
/// 1.2e-38 to 2.4e38.
///
/// x is n·ln 2 + r with |r| ≤ ln 2 / 2, and e to the power of r is a polynomial (Moshier, Cephes,
/// `expf`).
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    /// Adding this number leaves the nearest integer in the low bits.
    const ANCHOR: f32 = 12_582_912.0;
    let x = x.clamp(-87.33, 88.37);
    let anchored = x * std::f32::consts::LOG2_E + ANCHOR;
    let n = anchored - ANCHOR;
    // The natural logarithm of 2 is in two parts. The first has few bits, so that its product with
    // `n` is exact.
    let r = x - n * 0.693_359_4 + n * 2.121_944_4e-4;
    let tail = 0.5 + r * (0.166_666_66 + r * (0.041_665_796 + r * (0.008_333_452 + r * fifth(r))));
    let power = 1.0 + (r + r * r * tail);
    let exponent = anchored.to_bits().wrapping_sub(ANCHOR.to_bits()).wrapping_add(127) << 23;
    power * f32::from_bits(exponent)
}

#[inline(always)]
fn fifth(r: f32) -> f32 {
    0.001_398_2 + r * 1.987_569_1e-4
}

/// Returns 1 / (1 + e to the power of -`x`).
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// Returns the error function, within 5e-7: a rational approximation on [-4, 4] (Eigen,
/// `generic_fast_erf_float`).
#[inline(always)]
pub(crate) fn erf(x: f32) -> f32 {
    const OVER: [f32; 7] = [
        -2.726_142_3e-10,
        2.770_681_4e-8,
        -2.101_024e-6,
        -5.692_506_4e-5,
        -7.349_906e-4,
        -2.954_6e-3,
        -1.609_603_3e-2,
    ];
    const UNDER: [f32; 5] = [-1.456_607_2e-5, -2.133_740_6e-4, -1.682_827e-3, -7.373_329_2e-3, -1.426_474e-2];
    let x = x.clamp(-4.0, 4.0);
    let square = x * x;
    x * polynomial(&OVER, square) / polynomial(&UNDER, square)
}

/// Evaluates a polynomial by Horner's rule, highest coefficient first.
#[inline(always)]
fn polynomial<const N: usize>(coefficients: &[f32; N], x: f32) -> f32 {
    let mut value = coefficients[0];
    for coefficient in &coefficients[1..] {
        value = value * x + coefficient;
    }
    value
}

/// Sums `term` over all pairs.
#[inline(always)]
pub(crate) fn sum(left: &[f32], right: &[f32], term: impl Fn(f32, f32) -> f32) -> f32 {
    debug_assert_eq!(left.len(), right.len());
    let mut lanes = [0.0; LANES];
    let ((left_chunks, left_tail), (right_chunks, right_tail)) =
        (left.as_chunks::<LANES>(), right.as_chunks::<LANES>());
    for (left, right) in left_chunks.iter().zip(right_chunks) {
        for lane in 0..LANES {
            lanes[lane] += term(left[lane], right[lane]);
        }
    }
    for (lane, (left, right)) in lanes.iter_mut().zip(left_tail.iter().zip(right_tail)) {
        *lane += term(*left, *right);
    }
    fold(lanes, |a, b| a + b)
}

/// Returns the maximum of `values`; minus infinity if there are none.
#[inline(always)]
pub(crate) fn max_value(values: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, tail) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            lanes[lane] = max_f32(lanes[lane], chunk[lane]);
        }
    }
    for (lane, value) in lanes.iter_mut().zip(tail) {
        *lane = max_f32(*lane, *value);
    }
    fold(lanes, max_f32)
}

/// Replaces each value by e to the power of the value less `shift`; returns their sum.
#[inline(always)]
pub(crate) fn exp_shifted(values: &mut [f32], shift: f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let (chunks, tail) = values.as_chunks_mut::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            chunk[lane] = exp(chunk[lane] - shift);
            lanes[lane] += chunk[lane];
        }
    }
    for (lane, value) in lanes.iter_mut().zip(tail) {
        *value = exp(*value - shift);
        *lane += *value;
    }
    fold(lanes, |a, b| a + b)
}

#[inline(always)]
fn max_f32(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// Sums the lanes by halving.
#[inline(always)]
fn fold(mut lanes: [f32; LANES], join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] = join(lanes[lane], lanes[lane + half]);
        }
        half /= 2;
    }
    lanes[0]
}

/// Computes `sums` += `values`.
pub(crate) fn add(sums: &mut [f32], values: &[f32]) {
    assert_eq!(sums.len(), values.len(), "as many as there are");
    vectorized(
        #[inline(always)]
        || sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value),
    );
}

/// Computes `sums` += each row of `rows`.
pub(crate) fn add_rows(sums: &mut [f32], rows: &[f32]) {
    vectorized(
        #[inline(always)]
        || {
            for row in rows.chunks_exact(sums.len()) {
                sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
            }
        },
    );
}

/// Computes `values` *= `factor`; does nothing for 1.
pub(crate) fn scale(values: &mut [f32], factor: f32) {
    if factor != 1.0 {
        vectorized(
            #[inline(always)]
            || values.iter_mut().for_each(|value| *value *= factor),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the maximum of `error` over every 97th float from `low` to `high`.
    fn worst(low: f32, high: f32, error: impl Fn(f32) -> f64) -> f64 {
        let steps = 40_000;
        let point = |step: u32| low + (high - low) * step as f32 / steps as f32;
        (0..=steps).map(|step| error(point(step))).fold(0.0, f64::max)
    }

    fn relative(found: f32, expected: f64) -> f64 {
        ((f64::from(found) - expected) / expected).abs()
    }

    #[test]
    fn instruction_set_names_the_dispatch_of_kernels() {
        let found = instruction_set();
        assert!(["AVX-512", "AVX2", "NEON", "portable"].contains(&found), "{found}");
        assert_eq!(found == "portable", matches!(Arch::new(), Arch::Scalar));
        #[cfg(target_arch = "x86_64")]
        assert_eq!(found == "AVX2", matches!(Arch::new(), Arch::V3(_)));
    }

    #[test]
    fn exp_is_accurate_to_ulps() {
        let error = |x: f32| relative(exp(x), libm::exp(f64::from(x)));
        assert!(worst(-87.3, 88.3, error) < 1.3e-7, "{}", worst(-87.3, 88.3, error));
        assert!(worst(-1.0, 1.0, error) < 1.3e-7);
        assert_eq!((exp(0.0), exp(f32::NEG_INFINITY) < 1.3e-38, exp(1e9).is_finite()), (1.0, true, true));
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn sigmoid_is_accurate_to_ulps() {
        let error = |x: f32| relative(sigmoid(x), 1.0 / (1.0 + libm::exp(-f64::from(x))));
        assert!(worst(-80.0, 80.0, error) < 3e-7, "{}", worst(-80.0, 80.0, error));
    }

    #[test]
    fn erf_is_accurate_to_half_a_millionth() {
        let error = |x: f32| (f64::from(erf(x)) - libm::erf(f64::from(x))).abs();
        assert!(worst(-6.0, 6.0, error) < 5e-7, "{}", worst(-6.0, 6.0, error));
        let error = |x: f32| relative(erf(x), libm::erf(f64::from(x)));
        assert!(worst(1e-6, 2.0, error) < 5e-7, "{}", worst(1e-6, 2.0, error));
    }

    #[test]
    fn sum_and_max_cover_all_elements() {
        for count in 0..70 {
            let values: Vec<f32> = (0..count).map(|index| (index * 7 % 31) as f32 - 9.0).collect();
            assert_eq!(sum(&values, &values, |a, _| a), values.iter().sum::<f32>());
            assert_eq!(max_value(&values), values.iter().copied().fold(f32::NEG_INFINITY, f32::max));
            let mut powers = values.clone();
            let (sum, expected) = (exp_shifted(&mut powers, 1.0), powers.iter().sum::<f32>());
            assert!((sum - expected).abs() <= 1e-6 * expected);
        }
    }
}
