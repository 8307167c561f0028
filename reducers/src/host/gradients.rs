//! Operations on gradients between the backward pass and the optimizer step: averages, norms,
//! clipping. Each makes one pass over memory.

use super::reduce_assign;
use crate::host::isa::{Instructions, Isa, SimdKernel};
use crate::{Element, PostOp, ReduceKind, as_bytes_mut};

/// Divides all values by `ranks`: sums become means. Floats of 8 and 16 bits are divided in f32 and
/// rounded once.
///
/// # Panics
/// `ranks` is 0.
pub fn average<T: Element>(values: &mut [T], ranks: u32) {
    reduce_assign(T::DTYPE, ReduceKind::Sum, PostOp::Divide(ranks), as_bytes_mut(values).into(), &[]);
}

/// Calls `each` with the sum of squares of each block of `block` elements, in order. The last block
/// may be shorter.
///
/// A block is summed in f64 and in a fixed order, by eight partial sums. No square of an f32
/// overflows, and the bits are the same on every processor.
///
/// # Panics
/// `block` is 0.
pub fn block_square_sums(values: &[f32], block: usize, each: impl FnMut(f64)) {
    Isa::best().run(BlockSquareSums { values, block, each });
}

/// Returns the factor that clips gradients of the norm `norm` to the norm `longest`. It is 1 if
/// `longest` is 0.
///
/// The norm is that of the whole gradient, of all ranks and after averaging. Squares of parts may
/// be added only where no two ranks have the same part.
pub fn clip_factor(norm: f64, longest: f64) -> f32 {
    if longest > 0.0 { (longest / (norm + 1e-6)).min(1.0) as f32 } else { 1.0 }
}

/// Multiplies all values by `scale`, and then by the clip factor. `norm` is the norm after the
/// first multiplication.
///
/// The bits are those of two passes, but memory is read and written once.
pub fn scale_and_clip(values: &mut [f32], scale: f32, norm: f64, longest: f64) {
    Isa::best().run(Scaled { values, factors: [scale, clip_factor(norm, longest)] });
}

struct BlockSquareSums<'a, F> {
    values: &'a [f32],
    block: usize,
    each: F,
}

impl<F: FnMut(f64)> SimdKernel for BlockSquareSums<'_, F> {
    #[inline(always)]
    fn run<I: Instructions>(mut self, _: I) {
        for block in self.values.chunks(self.block) {
            (self.each)(block_square_sum(block));
        }
    }
}

#[inline(always)]
fn block_square_sum(block: &[f32]) -> f64 {
    let mut sums = [0.0f64; 8];
    let (parts, tail) = block.as_chunks::<8>();
    for part in parts {
        sums.iter_mut().zip(part).for_each(|(sum, value)| *sum += square(*value));
    }
    sums.iter_mut().zip(tail).for_each(|(sum, value)| *sum += square(*value));
    sums.iter().sum()
}

#[inline(always)]
fn square(value: f32) -> f64 {
    f64::from(value) * f64::from(value)
}

struct Scaled<'a> {
    values: &'a mut [f32],
    factors: [f32; 2],
}

impl SimdKernel for Scaled<'_> {
    #[inline(always)]
    fn run<I: Instructions>(self, _: I) {
        let [first, second] = self.factors;
        self.values.iter_mut().for_each(|value| *value = *value * first * second);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;

    fn numbers(count: usize) -> Vec<f32> {
        let number = |index: u32| {
            (index.wrapping_mul(2_654_435_761) as f32 / 1e9 - 2.0) * 1.5f32.powi(index as i32 % 40)
        };
        (0..count as u32).map(number).collect()
    }

    fn total(values: &[f32], block: usize) -> f64 {
        let mut sum = 0.0;
        block_square_sums(values, block, |part| sum += part);
        sum
    }

    #[test]
    fn averages_are_quotients() {
        for (count, ranks) in [(0, 1), (1, 3), (67, 7), (1000, 48)] {
            let mut values = numbers(count);
            let expected: Vec<u32> = values.iter().map(|value| (value / ranks as f32).to_bits()).collect();
            average(&mut values, ranks);
            assert_eq!(values.iter().map(|value| value.to_bits()).collect::<Vec<_>>(), expected);
            let mut halves: Vec<bf16> = numbers(count).into_iter().map(bf16::from_f32).collect();
            let expected: Vec<bf16> =
                halves.iter().map(|half| bf16::from_f32(half.to_f32() / ranks as f32)).collect();
            average(&mut halves, ranks);
            assert_eq!(halves, expected);
        }
    }

    #[test]
    fn norms_are_those_of_f64_and_do_not_overflow() {
        for count in [0, 1, 7, 8, 31, 4096, 5001] {
            let values = numbers(count);
            let naive: f64 = values.iter().map(|&value| f64::from(value).powi(2)).sum();
            for block in [1, 32, 4096] {
                let found = total(&values, block);
                assert!((found - naive).abs() <= 1e-6 * naive, "{count} in blocks of {block}");
                assert_eq!(found.to_bits(), total(&values, block).to_bits());
            }
        }
        let large = total(&[1e19; 1000], 32).sqrt() / (1e19 * 1000f64.sqrt());
        assert!((large - 1.0).abs() < 1e-6, "{large}");
    }

    #[test]
    fn levels_agree_to_the_bit() {
        let values = numbers(1003);
        let bits_at = |level: Isa| {
            let (mut sums, mut scaled) = (Vec::new(), values.clone());
            level.run(BlockSquareSums {
                values: &values,
                block: 32,
                each: |sum: f64| sums.push(sum.to_bits()),
            });
            level.run(Scaled { values: &mut scaled, factors: [0.3, 0.7] });
            (sums, scaled)
        };
        for level in Isa::available() {
            assert!(bits_at(level) == bits_at(Isa::Portable), "{level:?}");
        }
    }

    #[test]
    fn only_long_gradients_are_clipped() {
        assert_eq!((clip_factor(0.5, 1.0), clip_factor(100.0, 0.0)), (1.0, 1.0));
        assert!((clip_factor(4.0, 1.0) - 0.25).abs() < 1e-6);
        assert_eq!(clip_factor(0.0, 1.0), 1.0);
    }

    #[test]
    fn scaling_and_clipping_are_those_of_two_passes() {
        for (count, longest) in [(0, 1.0), (5, 1e-3), (100, 1.0), (1003, 1e30)] {
            let (mut once, mut twice) = (numbers(count), numbers(count));
            let norm = total(&once, 32).sqrt() / 3.0;
            scale_and_clip(&mut once, 1.0 / 3.0, norm, longest);
            twice.iter_mut().for_each(|value| *value *= 1.0 / 3.0);
            twice.iter_mut().for_each(|value| *value *= clip_factor(norm, longest));
            assert_eq!(once, twice);
            assert!(total(&once, 32).sqrt() <= longest * 1.00001);
        }
    }
}
