//! Keys and values of the micro-sequences of a micro-batch, and their gradients.

use crate::allocator::F32Vec;
use crate::pass::Pass;
use std::ops::Range;

/// Keys and values of one attention for all sequences of a micro-batch: those of the
/// micro-sequences so far, and the sums of their gradients in backward.
pub struct EarlierKv {
    /// Sequence after sequence.
    keys: F32Vec,
    /// As `keys`. Empty before backward.
    slopes: F32Vec,
    /// Elements of one micro-sequence of one sequence.
    part: usize,
    /// Elements of one sequence.
    sequence: usize,
    /// Number of micro-sequences whose keys and values are there.
    complete: usize,
}

impl EarlierKv {
    /// Creates memory for `sequences` sequences, whose micro-sequences have `part` elements each.
    pub(crate) fn new(pass: &Pass<'_>, sequences: usize, part: usize) -> Self {
        let sequence = part * pass.micro_sequences();
        let (keys, slopes) = (pass.floats(sequences * sequence), pass.floats(0));
        Self { keys, slopes, part, sequence, complete: 0 }
    }

    /// Returns true if the keys and values of micro-sequence `index` are there.
    pub(crate) fn has(&self, index: usize) -> bool {
        index < self.complete
    }

    /// Records that the keys and values of micro-sequence `index` are there.
    pub(crate) fn complete(&mut self, index: usize) {
        self.complete = self.complete.max(index + 1);
    }

    fn part(&self, number: usize, index: usize) -> Range<usize> {
        let start = number * self.sequence + index * self.part;
        start..start + self.part
    }

    /// Returns the keys | values of sequence `number` up to micro-sequence `index`.
    pub(crate) fn keys(&self, number: usize, index: usize) -> &[f32] {
        &self.keys[number * self.sequence..self.part(number, index).end]
    }

    /// Returns the keys | values of one micro-sequence.
    pub(crate) fn part_mut(&mut self, number: usize, index: usize) -> &mut [f32] {
        let part = self.part(number, index);
        &mut self.keys[part]
    }

    /// Returns the keys | values of sequence `number`, and their gradients for more to be added.
    pub(crate) fn keys_and_slopes(&mut self, pass: &Pass<'_>, number: usize) -> (&[f32], &mut [f32]) {
        if self.slopes.is_empty() {
            self.slopes = pass.floats(self.keys.len());
            self.slopes.fill(0.0);
        }
        let all = number * self.sequence..(number + 1) * self.sequence;
        (&self.keys[all.clone()], &mut self.slopes[all])
    }

    /// Returns the gradients of the keys | values of one micro-sequence.
    pub(crate) fn part_slopes(&self, number: usize, index: usize) -> &[f32] {
        &self.slopes[self.part(number, index)]
    }
}
