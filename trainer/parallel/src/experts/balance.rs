//! Losses that balance the loads of experts.

use super::scores::sum_of;
use super::{Experts, RouterScore};
use crate::context_parallel::ContextParallel;
use unisono::{Communicator, Sum};
use unisono_nn::error::Result;
use unisono_nn::pass::Pass;

/// Loss that is least if the experts' loads in each sequence are equal.
///
/// The loss of a sequence is Σ f P over experts. Here f is the load of the expert relative to equal
/// loads, and P is its mean probability. The loss is 1 for equal loads. The mean over sequences
/// depends neither on the mesh nor on micro-batches.
pub(super) struct BalanceLoss {
    /// f of each sequence and expert.
    loads: Vec<f32>,
    /// Mean of the losses of all sequences.
    pub(super) value: f32,
}

/// Place of a token among the rows of a pass.
#[derive(Clone, Copy)]
pub(super) struct TokenRow {
    /// Row of the token.
    pub(super) row: usize,
    /// Rows of all sequences.
    pub(super) rows: usize,
    /// Rows of each sequence on this rank.
    pub(super) length: usize,
}

impl BalanceLoss {
    /// Computes the loss from the scores and choices of this rank's tokens. Ranks that share
    /// sequences add up theirs.
    pub(super) fn new(pass: &Pass<'_>, experts: &Experts, scores: &[f32], chosen: &[u32]) -> Result<Self> {
        let (count, length) = (experts.count, pass.sequence());
        let tokens = scores.chunks_exact(count).zip(chosen.chunks_exact(experts.per_token));
        let sequences = scores.len() / count / length;
        // Loads and means share a vector, so that ranks exchange both in one message.
        let mut sums = vec![0.0f32; 2 * sequences * count];
        for (row, (scores, chosen)) in tokens.enumerate() {
            let (loads, means) = sums[row / length * 2 * count..][..2 * count].split_at_mut(count);
            chosen.iter().for_each(|&expert| loads[expert as usize] += 1.0);
            let factor = probability_factor(experts.score, scores);
            means.iter_mut().zip(scores).for_each(|(mean, score)| *mean += factor * score);
        }
        let ranks = ContextParallel::ranks_of(pass);
        ranks.map_or(Ok(()), |ranks| {
            pass.waits().time("loads of experts", || ranks.all_reduce(&mut sums, Sum))
        })?;
        let sequence_length = (length * ranks.map_or(1, Communicator::size)) as f32;
        let relative = count as f32 / (experts.per_token as f32 * sequence_length);
        let (mut loads, mut total) = (Vec::with_capacity(sequences * count), 0.0f64);
        for sequence in sums.chunks_exact(2 * count) {
            let (counts, means) = sequence.split_at(count);
            total += counts
                .iter()
                .zip(means)
                .map(|(load, mean)| f64::from(load * relative * mean / sequence_length))
                .sum::<f64>();
            loads.extend(counts.iter().map(|load| load * relative));
        }
        Ok(Self { loads, value: (total / sequences as f64) as f32 })
    }

    /// Adds `slope` times the gradient of the loss to `gradient`, that of the scores of `token`.
    ///
    /// On one of several ranks that share a sequence, it is the gradient of the sum of their
    /// losses: see [`ContextParallel`].
    pub(super) fn add_gradient(
        &self,
        experts: &Experts,
        token: TokenRow,
        slope: f32,
        scores: &[f32],
        gradient: &mut [f32],
    ) {
        let loads = &self.loads[token.row / token.length * experts.count..][..experts.count];
        let slope = slope / token.rows as f32;
        let factor = probability_factor(experts.score, scores);
        let mean = match experts.score {
            RouterScore::Softmax => 0.0,
            RouterScore::Sigmoid => loads.iter().zip(scores).map(|(load, score)| load * score * factor).sum(),
        };
        gradient.iter_mut().zip(loads).for_each(|(sum, load)| *sum += slope * factor * (load - mean));
    }
}

/// Returns the factor from the scores of a token to probabilities.
fn probability_factor(kind: RouterScore, scores: &[f32]) -> f32 {
    match kind {
        RouterScore::Softmax => 1.0,
        RouterScore::Sigmoid => 1.0 / sum_of(scores),
    }
}
