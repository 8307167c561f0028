//! Attention, against its formula in f64.

use super::{Memory, device, near, numbers, wide};
use crate::emulator::Device;
use unisono_cuda::device::model::Attention;

/// Causal attention in f64.
struct Naive {
    x: Vec<f64>,
    length: usize,
    heads: usize,
    depth: usize,
}

impl Naive {
    fn width(&self) -> usize {
        self.heads * self.depth
    }

    fn place(&self, row: usize, part: usize, head: usize) -> usize {
        (row * 3 + part) * self.width() + head * self.depth
    }

    fn of(&self, row: usize, part: usize, head: usize) -> &[f64] {
        &self.x[self.place(row, part, head)..][..self.depth]
    }

    /// First key that a query sees, and the probability of each to it.
    fn shares(&self, query: usize, head: usize) -> (usize, Vec<f64>) {
        let first = query / self.length * self.length;
        let score = |key| dot(self.of(query, 0, head), self.of(key, 1, head)) / (self.depth as f64).sqrt();
        let powers: Vec<f64> = (first..=query).map(|key| f64::exp(score(key))).collect();
        let sum: f64 = powers.iter().sum();
        (first, powers.iter().map(|power| power / sum).collect())
    }

    fn forward(&self) -> Vec<f64> {
        let rows = self.x.len() / 3 / self.width();
        let mut output = vec![0.0; rows * self.width()];
        for (row, head) in (0..rows).flat_map(|row| (0..self.heads).map(move |head| (row, head))) {
            let (first, shares) = self.shares(row, head);
            let columns = &mut output[row * self.width() + head * self.depth..][..self.depth];
            for (key, share) in shares.iter().enumerate() {
                add(columns, *share, self.of(first + key, 2, head));
            }
        }
        output
    }

    fn backward(&self, dy: &[f64]) -> Vec<f64> {
        let (rows, scale) = (self.x.len() / 3 / self.width(), 1.0 / (self.depth as f64).sqrt());
        let mut slopes = vec![0.0; self.x.len()];
        for (row, head) in (0..rows).flat_map(|row| (0..self.heads).map(move |head| (row, head))) {
            let (first, shares) = self.shares(row, head);
            let dy = &dy[row * self.width() + head * self.depth..][..self.depth];
            let of_shares: Vec<f64> =
                (0..shares.len()).map(|key| dot(dy, self.of(first + key, 2, head))).collect();
            let mean = dot(&shares, &of_shares);
            for (key, share) in shares.iter().enumerate() {
                let slope = share * (of_shares[key] - mean) * scale;
                let [query_at, key_at, value_at] = [(row, 0), (first + key, 1), (first + key, 2)]
                    .map(|(row, part)| self.place(row, part, head));
                add(&mut slopes[query_at..][..self.depth], slope, self.of(first + key, 1, head));
                add(&mut slopes[key_at..][..self.depth], slope, self.of(row, 0, head));
                add(&mut slopes[value_at..][..self.depth], *share, dy);
            }
        }
        slopes
    }
}

fn dot(left: &[f64], right: &[f64]) -> f64 {
    left.iter().zip(right).map(|(left, right)| left * right).sum()
}

fn add(sums: &mut [f64], factor: f64, values: &[f64]) {
    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += factor * value);
}

#[test]
fn attention_is_the_formula_both_ways() {
    let Some(device) = device("model-attention.so", &["attention"]) else { return };
    for (sequences, length, heads, depth) in [(2, 5, 2, 3), (1, 16, 1, 8), (2, 37, 1, 20), (1, 3, 1, 128)] {
        attention(&device, sequences, length, heads, depth);
    }
}

fn attention(device: &Device, sequences: usize, length: usize, heads: usize, depth: usize) {
    let (rows, width) = (sequences * length, heads * depth);
    // Scores far from each other, too.
    let x: Vec<f32> = numbers(1, rows * 3 * width).iter().map(|x| 3.0 * x).collect();
    let dy = numbers(2, rows * width);
    let naive = Naive { x: wide(&x), length, heads, depth };
    let anything = |count: usize| Memory::of(device, 0, &vec![f32::NAN; count]);
    let (input, output, slopes) = (Memory::of(device, 0, &x), anything(rows * width), anything(x.len()));
    let (log_sums, means, of_output) =
        (anything(rows * heads), anything(rows * heads), Memory::of(device, 0, &dy));
    let mut arguments = Attention {
        input: input.at(),
        output: output.at(),
        grads: slopes.at(),
        log_sums: log_sums.at(),
        means: means.at(),
        sequences: sequences as u32,
        length: length as u32,
        heads: heads as u32,
        depth: depth as u32,
        scale: 1.0 / (depth as f32).sqrt(),
        unused: 0,
    };
    let context = format!("{sequences} of {length}, {heads} × {depth}");
    device.run("attention", &arguments, 2, Attention::THREADS).unwrap();
    near(&output.read::<f32>(), &naive.forward(), 2e-6, &context);
    arguments.output = of_output.at();
    device.run("attention_backward_q", &arguments, 2, Attention::THREADS).unwrap();
    device.run("attention_backward_kv", &arguments, 2, Attention::THREADS).unwrap();
    near(&slopes.read::<f32>(), &naive.backward(&wide(&dy)), 1e-5, &context);
    [input, log_sums, means, of_output].into_iter().for_each(|memory| drop(memory.read::<f32>()));
}
