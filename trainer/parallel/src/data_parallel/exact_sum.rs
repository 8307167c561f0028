//! Sums that do not depend on the order of their terms.

use crate::bucket::ALIGNMENT;
use unisono_reducers::block_square_sums;

/// Exact sum of squares in fixed point. Terms may come in any order and from any rank.
///
/// [`block_square_sums`] sums each block of [`ALIGNMENT`] elements in 64-bit floats, in a fixed
/// order. The sums of blocks are then added without rounding. A block never belongs to two ranks,
/// so the norm has the same bits however the gradient is sharded. The square of a 32-bit float does
/// not overflow a 64-bit float.
///
/// Source: the long accumulator of Kulisch, "Computer arithmetic and validity", 2008.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExactSum {
    /// Limbs of 32 bits with room for carries. The first has the weight 2 to the power
    /// [`MIN_EXPONENT`].
    limbs: [u64; LIMBS],
}

/// Number of limbs, including one that counts terms that are not finite.
const LIMBS: usize = 22;
/// Exponent below the last bit of the smallest term: the square of 2⁻¹⁴⁹, less 53 bits.
const MIN_EXPONENT: i32 = -352;

impl Default for ExactSum {
    fn default() -> Self {
        Self { limbs: [0; LIMBS] }
    }
}

impl ExactSum {
    /// Adds the squares of `values`.
    pub fn add_squares(&mut self, values: &[f32]) {
        block_square_sums(values, ALIGNMENT, |block| self.add(block));
    }

    /// Adds another sum.
    pub fn add_sum(&mut self, other: &Self) {
        self.limbs.iter_mut().zip(other.limbs).for_each(|(digit, other)| *digit += other);
    }

    /// Adds a non-negative number.
    fn add(&mut self, term: f64) {
        if !term.is_finite() {
            // The count is a limb, so that a NaN of any rank reaches all ranks with the sum of the
            // limbs.
            self.limbs[LIMBS - 1] += 1;
        } else if term > 0.0 {
            self.add_finite(term);
        }
    }

    fn add_finite(&mut self, term: f64) {
        let bits = term.to_bits();
        // The bias is 1023, and the mantissa is taken as an integer, which adds the 52 bits of its
        // fraction.
        let exponent = (bits >> 52) as i32 - 1075 - MIN_EXPONENT;
        let mantissa = u128::from(bits & ((1 << 52) - 1) | 1 << 52) << (exponent as u32 % 32);
        let first = exponent as usize / 32;
        // 53 bits that are shifted by up to 31 places lie in three limbs.
        for (place, digit) in self.limbs[first..first + 3].iter_mut().enumerate() {
            *digit += (mantissa >> (32 * place)) as u64 & u64::from(u32::MAX);
        }
    }

    /// Returns the sum, rounded once.
    pub fn value(&self) -> f64 {
        if self.limbs[LIMBS - 1] > 0 {
            return f64::NAN;
        }
        // Carries wait until here. If additions propagated them, limbs of several ranks could not
        // be summed as plain integers.
        let mut carry = 0;
        let mut digits = self.limbs;
        for digit in &mut digits {
            let sum = *digit + carry;
            (*digit, carry) = (sum & u64::from(u32::MAX), sum >> 32);
        }
        let weight = |place: usize| 2f64.powi(MIN_EXPONENT + 32 * place as i32);
        digits.iter().enumerate().rev().fold(0.0, |sum, (place, &digit)| sum + digit as f64 * weight(place))
    }

    /// Returns the limbs, to be summed over ranks.
    pub fn limbs_mut(&mut self) -> &mut [u64] {
        &mut self.limbs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum_of_squares(values: &[f32]) -> ExactSum {
        let mut sum = ExactSum::default();
        sum.add_squares(values);
        sum
    }

    #[test]
    fn exact_sum_is_independent_of_order_and_ranks() {
        let values: Vec<f32> = (0..4096u32)
            .map(|i| (i.wrapping_mul(2654435761) as f32 / 1e9 - 2.0) * 10f32.powi(i as i32 % 40 - 20))
            .collect();
        let expected = sum_of_squares(&values);
        let mut backwards = ExactSum::default();
        let mut ranks = [ExactSum::default(), ExactSum::default(), ExactSum::default()];
        for (index, block) in values.chunks(ALIGNMENT).enumerate().rev() {
            backwards.add_squares(block);
            ranks[index % 3].add_squares(block);
        }
        let [mut sum, first, second] = ranks;
        sum.add_sum(&first);
        sum.add_sum(&second);
        assert_eq!((&backwards, sum.value().to_bits()), (&expected, expected.value().to_bits()));
        let naive: f64 = values.iter().map(|&value| f64::from(value).powi(2)).sum();
        assert!((expected.value() / naive - 1.0).abs() < 1e-12);
    }

    #[test]
    fn exact_sum_holds_extreme_values() {
        assert_eq!(sum_of_squares(&[f32::MAX; 3]).value(), 3.0 * f64::from(f32::MAX).powi(2));
        let least = f32::from_bits(1);
        assert_eq!(sum_of_squares(&[least]).value(), f64::from(least).powi(2));
        assert_eq!(sum_of_squares(&[0.0, -3.0]).value(), 9.0);
        assert_eq!(sum_of_squares(&[]).value(), 0.0);
        assert!(
            sum_of_squares(&[1.0, f32::INFINITY]).value().is_nan()
                && sum_of_squares(&[f32::NAN]).value().is_nan()
        );
    }
}
