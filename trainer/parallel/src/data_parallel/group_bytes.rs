//! Bytes that data parallel ranks keep and send: the formulas of every strategy.
//!
//! Source: Rajbhandari et al., "ZeRO", SC 2020.

use crate::data_parallel::{ParallelKind, ShardGroups};

/// Bytes of the part of a model that one data parallel group holds. They are those of the whole
/// part, and the formulas divide them over the ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GroupBytes {
    /// Weights, gradients and optimizer state.
    pub state: [f64; 3],
    /// Weights that a step gathers in forward and in backward if ranks hold shards of them.
    pub gathered: [f64; 2],
    /// Gradients that a step reduces.
    pub reduced: f64,
    /// Weights that the optimizer changes.
    pub stepped: f64,
}

impl GroupBytes {
    /// Returns the bytes of weights, gradients and optimizer state that each of `ranks` ranks keeps
    /// if they divide state.
    pub fn kept(&self, kind: ParallelKind, ranks: usize) -> [f64; 3] {
        let shards = match kind {
            ParallelKind::Replicated => [1, 1, 1],
            ParallelKind::Zero1 => [1, 1, ranks],
            ParallelKind::Zero2 => [1, ranks, ranks],
            ParallelKind::Zero3 => [ranks, ranks, ranks],
        };
        [0, 1, 2].map(|class| self.state[class] / shards[class] as f64)
    }

    /// Returns the bytes that each of `ranks` ranks sends to the others in forward, backward and
    /// step.
    pub fn sent(&self, kind: ParallelKind, ranks: usize) -> [f64; 3] {
        self.exchanged(kind).map(|bytes| bytes * remote_fraction(ranks))
    }

    /// Returns the bytes that each rank sends in backward to other groups, to add up their shards
    /// of gradients.
    pub fn sent_between(&self, groups: ShardGroups) -> f64 {
        2.0 * remote_fraction(groups.groups) * self.reduced / groups.shards as f64
    }

    /// Returns the bytes that are gathered or reduced once in forward, backward and step. An
    /// all-reduce counts as a reduce-scatter and an all-gather.
    pub fn exchanged(&self, kind: ParallelKind) -> [f64; 3] {
        let Self { gathered: [ahead, again], reduced, stepped, .. } = *self;
        match kind {
            ParallelKind::Replicated => [0.0, 2.0 * reduced, 0.0],
            ParallelKind::Zero1 | ParallelKind::Zero2 => [0.0, reduced, stepped],
            ParallelKind::Zero3 => [ahead, again + reduced, 0.0],
        }
    }
}

/// Returns the fraction (N−1)/N that each rank sends of a buffer that is reduced or gathered once.
pub fn remote_fraction(ranks: usize) -> f64 {
    (ranks - 1) as f64 / ranks as f64
}
