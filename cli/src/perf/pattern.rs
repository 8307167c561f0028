//! Inputs whose results are exact in any order of reduction, and the expected results.
//!
//! Values repeat with a period, so that a result of any length is compared with a small table. The
//! *iteration* shifts the table, so that data of an earlier iteration is wrong in the next one.

use crate::perf::op_case::{OpCase, OpKind};
use unisono::{DType, Element, ReduceKind};

/// Input of every rank, and the expected output of this rank.
pub(crate) struct Pattern<T> {
    test: OpCase,
    rank: usize,
    /// One period of input for each rank.
    inputs: Vec<Vec<T>>,
    /// One period of the reduction.
    reduced: Vec<T>,
}

impl<T: Element> Pattern<T> {
    pub(super) fn new(test: OpCase, ranks: usize, rank: usize) -> Self {
        Self::with_period(PERIOD, test, ranks, rank)
    }

    /// Builds a pattern that repeats after `period` elements; short periods are faster to build.
    pub(crate) fn with_period(period: usize, test: OpCase, ranks: usize, rank: usize) -> Self {
        let value = |rank| move |index| T::from_f64(input_value(&test, T::DTYPE, ranks, rank, index));
        let given = (0..ranks).map(|rank| (0..period).map(value(rank)).collect()).collect();
        let reduced =
            (0..period).map(|index| T::from_f64(reduced_value(&test, T::DTYPE, ranks, index))).collect();
        Self { test, rank, inputs: given, reduced }
    }

    /// Fills a send buffer.
    pub(crate) fn fill(&self, input: &mut [T], iteration: usize) {
        fill(input, &self.inputs[self.rank], iteration);
    }

    /// Counts the elements of a send buffer that have changed. The buffer begins at element
    /// `start` of the input.
    pub(super) fn count_changed(&self, input: &[T], start: usize, iteration: usize) -> u64 {
        count_mismatches(input, &self.inputs[self.rank], iteration + start)
    }

    /// Counts the elements of a result that are wrong.
    pub(crate) fn count_wrong(&self, output: &[T], count: usize, iteration: usize) -> u64 {
        let (rank, ranks) = (self.rank, self.inputs.len());
        let shares = output.chunks(count.max(1)).enumerate();
        match self.test.kind {
            OpKind::AllReduce | OpKind::Reduce => count_mismatches(output, &self.reduced, iteration),
            OpKind::ReduceScatter => count_mismatches(output, &self.reduced, iteration + rank * count),
            OpKind::AllGather | OpKind::Gather => {
                shares.map(|(sender, share)| count_mismatches(share, &self.inputs[sender], iteration)).sum()
            }
            OpKind::Broadcast => count_mismatches(output, &self.inputs[self.test.root], iteration),
            OpKind::Scatter => {
                count_mismatches(output, &self.inputs[self.test.root], iteration + rank * count)
            }
            OpKind::AllToAll => shares
                .map(|(sender, share)| {
                    count_mismatches(share, &self.inputs[sender], iteration + rank * count)
                })
                .sum(),
            OpKind::SendRecv => count_mismatches(output, &self.inputs[(rank + ranks - 1) % ranks], iteration),
            OpKind::Barrier => 0,
        }
    }
}

fn fill<T: Element>(buffer: &mut [T], period: &[T], iteration: usize) {
    let mut unfilled = buffer;
    let mut start = iteration % period.len();
    while !unfilled.is_empty() {
        let length = unfilled.len().min(period.len() - start);
        let (part, tail) = unfilled.split_at_mut(length);
        part.copy_from_slice(&period[start..start + length]);
        (unfilled, start) = (tail, 0);
    }
}

fn count_mismatches<T: Element>(buffer: &[T], period: &[T], iteration: usize) -> u64 {
    let (mut unchecked, mut start, mut count) = (buffer, iteration % period.len(), 0);
    while !unchecked.is_empty() {
        let length = unchecked.len().min(period.len() - start);
        let (part, tail) = unchecked.split_at(length);
        let expected = &period[start..start + length];
        // Whole parts compare faster than single elements, and nearly all parts are right.
        if part != expected {
            count += part.iter().zip(expected).filter(|(found, expected)| found != expected).count() as u64;
        }
        (unchecked, start) = (tail, 0);
    }
    count
}

/// Returns the input of `rank` at `index`.
fn input_value(test: &OpCase, dtype: DType, ranks: usize, rank: usize, index: usize) -> f64 {
    let (most, phase, hash) = (largest_exact(dtype), (index + rank) % ranks, hash(rank, index));
    match test.op {
        _ if !test.kind.reduces() => (hash % (most + 1)) as f64,
        // At most three twos: exact in every type.
        ReduceKind::Prod => sign(dtype, hash) * f64::from(if phase < 3 && hash & 2 > 0 { 2 } else { 1 }),
        // Not zero: of its two signs, either may win.
        ReduceKind::Min | ReduceKind::Max => sign(dtype, hash) * ((hash >> 1) % most + 1) as f64,
        ReduceKind::Sum | ReduceKind::Avg | ReduceKind::PreMulSum => {
            // One half is for the factor of two, an equal part for each rank; if that part is zero,
            // only a few ranks contribute.
            let (budget, ranks) = (most / 2, ranks as u64);
            if budget >= ranks {
                (hash % (budget / ranks + 1)) as f64
            } else if (phase as u64) < budget {
                (hash % 2) as f64
            } else {
                0.0
            }
        }
        _ => unreachable!("the arguments name operations that GPUs know"),
    }
}

fn reduced_value(test: &OpCase, dtype: DType, ranks: usize, index: usize) -> f64 {
    let inputs = (0..ranks).map(|rank| input_value(test, dtype, ranks, rank, index));
    match test.op {
        ReduceKind::Sum => inputs.sum(),
        ReduceKind::Prod => inputs.product(),
        ReduceKind::Min => inputs.fold(f64::INFINITY, f64::min),
        ReduceKind::Max => inputs.fold(f64::NEG_INFINITY, f64::max),
        ReduceKind::PreMulSum => {
            inputs.enumerate().map(|(rank, value)| value * OpCase::factor(rank) as f64).sum()
        }
        ReduceKind::Avg => {
            let sum: f64 = inputs.sum();
            match dtype {
                DType::F64 | DType::F32 => sum / ranks as f64,
                // Narrow floats divide in float32 before they round.
                _ if dtype.is_float() => f64::from(sum as f32 / ranks as f32),
                _ => (sum / ranks as f64).trunc(),
            }
        }
        _ => unreachable!("the arguments name operations that GPUs know"),
    }
}

/// Either sign, where the type has two.
fn sign(dtype: DType, hash: u64) -> f64 {
    let signed = !matches!(dtype, DType::U8 | DType::U32 | DType::U64);
    if signed && hash & 1 > 0 { -1.0 } else { 1.0 }
}

/// Returns the number up to which the type represents every whole number exactly.
fn largest_exact(dtype: DType) -> u64 {
    match dtype {
        DType::F8E5M2 => 8,
        DType::F8E4M3 => 16,
        DType::I8 => 127,
        DType::U8 => 255,
        DType::BF16 => 256,
        DType::F16 => 2048,
        _ => 65_536,
    }
}

fn hash(rank: usize, index: usize) -> u64 {
    let mixed = (rank as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ (index as u64).wrapping_mul(0xd6e8_feb8_6659_fd93);
    let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed ^ mixed >> 32
}

/// A prime, so that no power of two hides a shifted block.
const PERIOD: usize = 4093;
