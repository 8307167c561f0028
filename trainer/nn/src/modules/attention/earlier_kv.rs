//! Keys and values of the micro-sequences of a micro-batch, and their gradients.

use crate::allocator::F32Vec;
use crate::pass::{Extension, Pass};
use std::collections::HashMap;
use std::ops::Range;

/// Keys and values that later micro-sequences of a pass need, by micro-batch and attention.
#[derive(Default)]
struct KeptKv(HashMap<(usize, u64), EarlierKv>);

impl Extension for KeptKv {
    fn is_complete(&self) -> bool {
        self.0.is_empty()
    }
}

/// Keys and values of one attention for all sequences of a micro-batch: those of the
/// micro-sequences so far, and the sums of their gradients in backward.
pub(super) struct EarlierKv {
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
    pub(super) fn new(pass: &Pass<'_>, sequences: usize, part: usize) -> Self {
        let sequence = part * pass.micro_sequences();
        let (keys, slopes) = (pass.floats(sequences * sequence), pass.floats(0));
        Self { keys, slopes, part, sequence, complete: 0 }
    }

    /// Takes the keys and values that the attention `site` keeps for the micro-batch of a pass.
    pub(super) fn take(pass: &mut Pass<'_>, site: u64) -> Option<Self> {
        let place = (pass.whole_micro_batch(), site);
        pass.extensions_mut().get_mut::<KeptKv>()?.0.remove(&place)
    }

    /// Keeps these keys and values for the attention `site`, until the next micro-sequence of the
    /// micro-batch takes them.
    pub(super) fn keep(self, pass: &mut Pass<'_>, site: u64) {
        let place = (pass.whole_micro_batch(), site);
        pass.extensions_mut().get_or_default::<KeptKv>().0.insert(place, self);
    }

    /// Returns true if the keys and values of micro-sequence `index` are there.
    pub(super) fn has(&self, index: usize) -> bool {
        index < self.complete
    }

    /// Records that the keys and values of micro-sequence `index` are there.
    pub(super) fn complete(&mut self, index: usize) {
        self.complete = self.complete.max(index + 1);
    }

    fn part(&self, number: usize, index: usize) -> Range<usize> {
        let start = number * self.sequence + index * self.part;
        start..start + self.part
    }

    /// Returns the keys | values of sequence `number` up to micro-sequence `index`.
    pub(super) fn keys(&self, number: usize, index: usize) -> &[f32] {
        &self.keys[number * self.sequence..self.part(number, index).end]
    }

    /// Returns the keys | values of one micro-sequence.
    pub(super) fn part_mut(&mut self, number: usize, index: usize) -> &mut [f32] {
        let part = self.part(number, index);
        &mut self.keys[part]
    }

    /// Returns the keys | values of sequence `number`, and their gradients for more to be added.
    pub(super) fn keys_and_slopes(&mut self, pass: &Pass<'_>, number: usize) -> (&[f32], &mut [f32]) {
        // Only backward needs the gradients, so a forward on its own does not allocate them.
        if self.slopes.is_empty() {
            self.slopes = pass.floats(self.keys.len());
            self.slopes.fill(0.0);
        }
        let elements = number * self.sequence..(number + 1) * self.sequence;
        (&self.keys[elements.clone()], &mut self.slopes[elements])
    }

    /// Returns the gradients of the keys | values of one micro-sequence.
    pub(super) fn part_slopes(&self, number: usize, index: usize) -> &[f32] {
        &self.slopes[self.part(number, index)]
    }
}
