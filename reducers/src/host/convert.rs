//! Slices of bfloat16 to f32 and back.

use crate::host::isa::{Instructions, Isa, SimdKernel};
use crate::host::narrow_float::widen_bf16;
use half::bf16;

/// `into` = `from`, exactly.
///
/// # Panics
/// If lengths differ.
pub fn widen(into: &mut [f32], from: &[bf16]) {
    assert_eq!(into.len(), from.len(), "as many as there are");
    Isa::best().run(Widen { into, from });
}

/// Converts f32 to bf16, rounded to nearest, ties to even. Infinities stay infinities. NaNs keep
/// their sign and the bits of their payload that fit.
///
/// # Panics
/// Lengths differ.
pub fn narrow(into: &mut [bf16], from: &[f32]) {
    assert_eq!(into.len(), from.len(), "as many as there are");
    Isa::best().run(Narrow { into, from });
}

struct Widen<'a> {
    into: &'a mut [f32],
    from: &'a [bf16],
}

impl SimdKernel for Widen<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self, _: I) {
        for (wide, half) in self.into.iter_mut().zip(self.from) {
            *wide = widen_bf16(half.to_bits().into());
        }
    }
}

struct Narrow<'a> {
    into: &'a mut [bf16],
    from: &'a [f32],
}

impl SimdKernel for Narrow<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self, _: I) {
        for (half, wide) in self.into.iter_mut().zip(self.from) {
            *half = nearest(*wide);
        }
    }
}

/// Rounds to the nearest value, without a branch.
#[inline(always)]
fn nearest(value: f32) -> bf16 {
    let bits = value.to_bits();
    // A carry into the exponent is correct. The carry of a NaN is not used.
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    let quiet = bits >> 16 | 0x0040;
    bf16::from_bits(if bits & 0x7fff_ffff > 0x7f80_0000 { quiet } else { rounded } as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lengths around a register, and what is left over.
    const LENGTHS: [usize; 7] = [0, 1, 7, 8, 17, 64, 100];

    #[test]
    fn every_bfloat16_comes_back_from_f32() {
        let codes: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).collect();
        let (mut wide, mut back) = (vec![0.0; codes.len()], vec![bf16::ZERO; codes.len()]);
        widen(&mut wide, &codes);
        narrow(&mut back, &wide);
        for ((code, wide), back) in codes.iter().zip(&wide).zip(&back) {
            assert_eq!(wide.to_bits(), u32::from(code.to_bits()) << 16);
            let quiet = if code.is_nan() { 0x0040 } else { 0 };
            assert_eq!(back.to_bits(), code.to_bits() | quiet, "{code:?}");
        }
    }

    #[test]
    fn rounding_is_to_the_nearest_around_every_bfloat16() {
        // Below, at and above each half-way point, and the ends between.
        let tails = [0, 1, 0x4000, 0x7fff, 0x8000, 0x8001, 0xffff];
        for level in Isa::available() {
            for tail in tails {
                let source: Vec<f32> =
                    (0..=u16::MAX).map(|code| f32::from_bits(u32::from(code) << 16 | tail)).collect();
                let mut target = vec![bf16::ZERO; source.len()];
                level.run(Narrow { into: &mut target, from: &source });
                for (found, value) in target.iter().zip(&source) {
                    assert_eq!(
                        found.to_bits(),
                        bf16::from_f32(*value).to_bits(),
                        "{:x} {level:?}",
                        value.to_bits()
                    );
                }
            }
        }
    }

    #[test]
    fn no_length_leaves_anything_out() {
        for length in LENGTHS {
            let values: Vec<f32> = (0..length).map(|index| index as f32 * 0.5).collect();
            let (mut halves, mut wide) = (vec![bf16::NAN; length], vec![f32::NAN; length]);
            narrow(&mut halves, &values);
            widen(&mut wide, &halves);
            assert_eq!(wide, values);
        }
    }

    #[test]
    #[should_panic(expected = "as many as there are")]
    fn lengths_must_agree() {
        widen(&mut [0.0; 2], &[bf16::ONE]);
    }
}
