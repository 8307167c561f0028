//! Causal attention of several heads.
//!
//! Where ranks have chunks of each sequence ([`Pass::chunks`]), the keys and values of a whole sequence are gathered when it is its
//! turn, in backward again rather than kept, and all that the ranks have of their gradients is summed up at the rank whose they
//! are: keys and values of one sequence are what a rank needs beside its chunks.

mod chunks;
mod device;
mod panel;

use super::Module;
use crate::error::Result;
use crate::memory::Floats;
use crate::pass::Pass;
use crate::tensor::Tensor;
use chunks::Chunks;
use panel::{Keys, PANEL, Panel, Slopes, Sources};
use unisono::Communicator;

/// Of each head, y = softmax(q kᵀ / √d, of what is not later) v, within each [`Pass::sequence`] (Vaswani and others:
/// Attention is all you need, 2017).
///
/// (rows, queries | keys | values, each of heads × d) → (rows, heads × d). Probabilities are made again in backward, a
/// panel of queries at a time (Dao and others: FlashAttention, 2022): it keeps its input and a number for each row and head, and
/// needs room for 2 × 64 × sequence beside.
#[derive(Clone, Copy, Debug)]
pub struct CausalAttention {
    heads: usize,
    head_dim: usize,
}

struct Saved {
    input: Tensor,
    /// ln of the sum of the powers that softmax divides by: rows of one head, heads of one sequence, sequences.
    log_sums: Floats,
}

impl CausalAttention {
    /// Of `heads` heads of `head_dim` features each: those that this rank has.
    pub fn new(heads: usize, head_dim: usize) -> Self {
        Self { heads, head_dim }
    }

    fn width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Every panel of every head of one sequence.
    fn panels(&self, pass: &Pass<'_>, number: usize) -> impl Iterator<Item = Panel> + use<> {
        let (rows, threads, attention) = (pass.sequence(), pass.threads(), *self);
        let (offset, keys) =
            (pass.first_place(), Keys::of(pass.chunks().is_some(), number * rows, self.width()));
        (0..attention.heads).flat_map(move |head| {
            (0..rows).step_by(PANEL).map(move |start| Panel {
                first: number * rows,
                column: head * attention.head_dim,
                queries: start..rows.min(start + PANEL),
                offset,
                keys,
                sums: (number * attention.heads + head) * rows,
                width: attention.width(),
                depth: attention.head_dim,
                threads,
            })
        })
    }

    /// Numbers that it needs room for in backward, and half as many in forward, in sequences of so many tokens: scores of the
    /// largest panel, and their gradients.
    pub fn room(sequence: usize) -> usize {
        2 * PANEL * sequence
    }

    /// Half of the room for whole sequences of this pass.
    fn half_room(pass: &Pass<'_>) -> usize {
        Self::room(pass.sequence() * pass.chunks().map_or(1, Communicator::ranks)) / 2
    }
}

/// How many sequences, or chunks of such, so many rows are.
fn sequences(pass: &Pass<'_>, rows: usize) -> usize {
    assert!(rows.is_multiple_of(pass.sequence()), "{rows} rows are no sequences of {}", pass.sequence());
    rows / pass.sequence()
}

impl Module for CausalAttention {
    fn forward(&self, pass: &mut Pass<'_>, input: Tensor) -> Result<Tensor> {
        assert_eq!(input.columns(), 3 * self.width(), "queries, keys and values");
        if let Some(device) = pass.device() {
            return self.forward_on(device, pass, input);
        }
        let rows = input.rows();
        let mut output = pass.tensor(rows, self.width());
        let mut log_sums = pass.floats(rows * self.heads);
        let mut room = pass.floats(Self::half_room(pass));
        let mut chunks = Chunks::of(pass, self.width());
        for number in 0..sequences(pass, rows) {
            let keys = chunks.as_mut().map(|chunks| chunks.gather(pass, number, input.data())).transpose()?;
            let sources = Sources { queries: input.data(), keys: keys.unwrap_or(input.data()) };
            for panel in self.panels(pass, number) {
                let scores = &mut room[..panel.scores()];
                panel.score(sources, scores);
                panel.softmax(scores, &mut log_sums[panel.sums()]);
                panel.mix(sources, scores, output.data_mut());
            }
        }
        pass.save(Saved { input, log_sums });
        Ok(output)
    }

    fn backward(&self, pass: &mut Pass<'_>, gradient: Tensor) -> Result<Tensor> {
        if let Some(device) = pass.device() {
            return self.backward_on(device, pass, &gradient);
        }
        let Saved { input, log_sums } = pass.restore();
        let half = Self::half_room(pass);
        let mut result = Tensor::zeros(pass.memory(), input.rows(), input.columns());
        let mut room = pass.floats(2 * half);
        let (room, other) = room.split_at_mut(half);
        let mut chunks = Chunks::of(pass, self.width());
        let mut of_keys = chunks.as_ref().map(|chunks| pass.floats(chunks.count()));
        for number in 0..sequences(pass, input.rows()) {
            let keys = chunks.as_mut().map(|chunks| chunks.gather(pass, number, input.data())).transpose()?;
            let sources = Sources { queries: input.data(), keys: keys.unwrap_or(input.data()) };
            of_keys.iter_mut().for_each(|slopes| slopes.fill(0.0));
            let mut sums = Slopes { queries: result.data_mut(), keys: of_keys.as_deref_mut() };
            for panel in self.panels(pass, number) {
                let (scores, slopes) = (&mut room[..panel.scores()], &mut other[..panel.scores()]);
                panel.score(sources, scores);
                panel.recall(scores, &log_sums[panel.sums()]);
                panel.differentiate(sources, gradient.data(), scores, slopes, &mut sums);
            }
            if let (Some(chunks), Some(slopes)) = (&mut chunks, &of_keys) {
                chunks.scatter(pass, number, slopes, result.data_mut())?;
            }
        }
        Ok(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;
    use crate::nn::check::{Check, numbers};
    use crate::parameter::Inventory;
    use crate::pass::Seeds;
    use crate::strategy::Local;
    use crate::testing;

    /// As the formula says, one number after another.
    fn naive(x: &[f64], rows: usize, sequence: usize, heads: usize, d: usize) -> Vec<f64> {
        let width = heads * d;
        let at = |row: usize, block: usize, head: usize, i: usize| {
            x[row * 3 * width + block * width + head * d + i]
        };
        let mut output = vec![0.0; rows * width];
        for (row, head) in (0..rows).flat_map(|row| (0..heads).map(move |head| (row, head))) {
            let keys = row / sequence * sequence..row + 1;
            let score = |key| (0..d).map(|i| at(row, 0, head, i) * at(key, 1, head, i)).sum::<f64>();
            let powers: Vec<f64> = keys.clone().map(|key| (score(key) / (d as f64).sqrt()).exp()).collect();
            let sum: f64 = powers.iter().sum();
            for i in 0..d {
                let value = |(key, power): (usize, &f64)| power * at(key, 2, head, i);
                output[row * width + head * d + i] = keys.clone().zip(&powers).map(value).sum::<f64>() / sum;
            }
        }
        output
    }

    #[test]
    fn gradients_within_sequences() {
        Check::new(|_| CausalAttention::new(2, 3), 10, 18).sequence(5).gradients(2e-4);
    }

    /// Output and gradient of a rank that has a chunk of each sequence of `input` and `slope`.
    fn chunk(group: &Communicator, sequence: usize, input: &[f32], slope: &[f32]) -> [Vec<f32>; 2] {
        let (memory, length) = (Memory::default(), sequence / group.ranks());
        let own = |all: &[f32], columns: usize| {
            let sequences = all.chunks(sequence * columns);
            let part = |one: &[f32]| one[group.rank() * length * columns..][..length * columns].to_vec();
            let part: Vec<f32> = sequences.flat_map(part).collect();
            Tensor::from(&memory, part.len() / columns, columns, &part)
        };
        let mut strategy = Local::new(Inventory::default(), &memory, 0);
        let mut pass = Pass::new(&mut strategy, &memory, Seeds::default(), 1);
        pass.set_sequence(length);
        pass.set_chunks((group.ranks() > 1).then_some(group));
        let attention = CausalAttention::new(2, 3);
        let output = attention.forward(&mut pass, own(input, 18)).expect("forward");
        let gradient = attention.backward(&mut pass, own(slope, 6)).expect("backward");
        [output.data().to_vec(), gradient.data().to_vec()]
    }

    #[test]
    fn chunks_of_sequences_attend_to_what_came_before_in_others() {
        let (sequence, rows) = (2 * PANEL + 4, 4 * PANEL + 8);
        let (input, slope) = (numbers(1, 18 * rows), numbers(2, 6 * rows));
        let of = |ranks| testing::on(ranks, |group| chunk(&group, sequence, &input, &slope));
        let whole = of(1).remove(0);
        for ranks in [2, 3, 4] {
            for (rank, found) in of(ranks).into_iter().enumerate() {
                for ((found, whole), columns) in found.iter().zip(&whole).zip([6, 18]) {
                    let length = sequence / ranks * columns;
                    let expected =
                        whole.chunks(sequence * columns).flat_map(|one| &one[rank * length..][..length]);
                    let near = |(one, other): (&f32, &f32)| (one - other).abs() < 1e-5;
                    assert!(found.iter().zip(expected).all(near), "{ranks} ranks, rank {rank}");
                }
            }
        }
    }

    #[test]
    fn values_of_one_panel_and_of_several() {
        for (rows, sequence) in [(12, 4), (2 * PANEL + 3, 2 * PANEL + 3), (2 * PANEL, PANEL)] {
            let check = Check::new(|_| CausalAttention::new(2, 3), rows, 18).sequence(sequence);
            check.whole(1e-5, |x, _| naive(x, rows, sequence, 2, 3));
        }
    }

    #[test]
    fn gradients_of_several_panels_are_those_of_sums_over_all_rows() {
        let rows = PANEL + 2;
        Check::new(|_| CausalAttention::new(1, 1), rows, 3).sequence(rows).gradients(2e-4);
    }
}
