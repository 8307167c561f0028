//! Rotation of pairs of features.

use super::vector::vectorized;
use crate::ops::Host;

/// Angles of rotation of each row.
pub struct Rotation<'a> {
    /// Angle per position of each pair: of feature i with i + d/2, in heads of d features.
    pub frequencies: &'a [f32],
    /// Factor of all angles.
    pub sign: f32,
    /// Factor of the rotated pairs.
    pub scale: f32,
    /// Number of leading columns that are rotated.
    pub used: usize,
    /// Position of each row of a sequence.
    pub positions: &'a [usize],
}

impl Host {
    pub(crate) fn rotate(&self, values: &mut [f32], columns: usize, rotation: &Rotation<'_>) {
        let mut turn = vec![(0.0, 0.0); rotation.frequencies.len()];
        // Sine and cosine are computed once for each position, because all sequences and heads
        // share them.
        for (place, &position) in rotation.positions.iter().enumerate() {
            rotation.turns_at(position, &mut turn);
            for row in values.chunks_exact_mut(columns).skip(place).step_by(rotation.positions.len()) {
                let heads = row[..rotation.used].chunks_exact_mut(2 * turn.len());
                vectorized(
                    #[inline(always)]
                    || heads.for_each(|head| rotate_head(head, &turn)),
                );
            }
        }
    }
}

impl Rotation<'_> {
    /// Computes cosine and sine of each pair's angle at a position, times the factor.
    fn turns_at(&self, position: usize, turn: &mut [(f32, f32)]) {
        for (turn, frequency) in turn.iter_mut().zip(self.frequencies) {
            // The angle has 32 bits, as in Hugging Face's implementation.
            let (sin, cos) = f64::from(position as f32 * frequency).sin_cos();
            *turn = (self.scale * cos as f32, self.scale * (self.sign * sin as f32));
        }
    }
}

/// Rotates the pairs of one head.
#[inline(always)]
fn rotate_head(head: &mut [f32], turn: &[(f32, f32)]) {
    let (first, second) = head.split_at_mut(turn.len());
    for ((x, y), (cos, sin)) in first.iter_mut().zip(second).zip(turn) {
        (*x, *y) = (*x * cos - *y * sin, *y * cos + *x * sin);
    }
}
