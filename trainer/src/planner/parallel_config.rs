//! What each rank keeps and sends with each strategy.

use crate::config::StrategyKind;
use crate::planner::hardware::Hardware;
use crate::planner::model_dims::{BytesPerParam, ModelDims};
use crate::train::{exchanged_bytes, remote_fraction, shard_counts};
use serde::Serialize;

/// The four that a plan compares.
pub(crate) const KINDS: [StrategyKind; 4] =
    [StrategyKind::Bucketed, StrategyKind::Zero1, StrategyKind::Zero2, StrategyKind::Zero3];

/// How a run is cut and fed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ParallelConfig {
    /// What data ranks share.
    pub kind: StrategyKind,
    /// Ranks that share every layer.
    pub tensor: usize,
    /// Stages.
    pub pipeline: usize,
    /// Ranks that share each sequence, of the data ranks.
    pub context: usize,
    /// Ranks that share the experts, of the data ranks.
    pub expert: usize,
    /// Ranks that hold the same part of the model.
    pub data: usize,
}

impl ParallelConfig {
    /// So many ranks that all hold the whole model.
    pub fn replicated(ranks: usize) -> Self {
        Self { kind: StrategyKind::Bucketed, tensor: 1, pipeline: 1, context: 1, expert: 1, data: ranks }
    }

    /// Parameters of which each data group has all.
    pub fn parameters(&self, sizes: &ModelDims) -> f64 {
        sizes.parameters / (self.tensor * self.pipeline) as f64
    }

    /// Bytes of weights, gradients and optimizer's state that each rank keeps of so many parameters.
    pub fn kept_bytes(&self, bytes: &BytesPerParam, parameters: f64) -> [f64; 3] {
        let whole = [bytes.weight, bytes.gradient, bytes.state].map(|bytes| bytes * parameters);
        let divisors = shard_counts(self.kind, self.data);
        [0, 1, 2].map(|class| whole[class] / divisors[class] as f64)
    }

    /// Bytes of each rank with so many samples at once: what is kept, activations, and with sharded weights three whole layers.
    pub fn needed_bytes(&self, sizes: &ModelDims, bytes: &BytesPerParam, micro: usize) -> f64 {
        let kept: f64 = self.kept_bytes(bytes, self.parameters(sizes)).iter().sum();
        let gathers = self.kind == StrategyKind::Zero3;
        let whole = if gathers { 3.0 * self.largest_layer_bytes(sizes, bytes) } else { 0.0 };
        kept + whole + micro as f64 * self.activations(sizes)
    }

    /// Bytes of activations of one sample. Stages do not lessen them: the first holds as many micro-batches as there are stages.
    pub fn activations(&self, sizes: &ModelDims) -> f64 {
        sizes.activations(self.tensor) / self.context as f64
    }

    /// Bytes of the weights of the largest layer, once gathered.
    pub fn largest_layer_bytes(&self, sizes: &ModelDims, bytes: &BytesPerParam) -> f64 {
        bytes.weight * sizes.largest_layer() / (self.tensor * self.expert.min(sizes.experts)) as f64
    }

    /// The most samples at once for which there is room.
    pub fn max_micro_batch(&self, sizes: &ModelDims, bytes: &BytesPerParam, hardware: &Hardware) -> usize {
        let left = hardware.usable_memory() - self.needed_bytes(sizes, bytes, 0);
        (left / self.activations(sizes)).max(0.0) as usize
    }

    /// Bytes that each rank sends forward, backward and after the step.
    pub fn sent_bytes(&self, bytes: &BytesPerParam, parameters: f64, micro_batches: usize) -> [f64; 3] {
        let [weights, gradients] = [bytes.weight * parameters, bytes.weight * parameters];
        let share = remote_fraction(self.data);
        exchanged_bytes(self.kind, [micro_batches as f64 * weights; 2], gradients, weights)
            .map(|bytes| bytes * share)
    }

    /// Halves of all-reduces in a step: reductions and gatherings, with gradients in buckets of so many bytes.
    pub fn collectives(
        &self,
        sizes: &ModelDims,
        bytes: &BytesPerParam,
        bucket: f64,
        micro_batches: usize,
    ) -> f64 {
        let buckets = match self.kind {
            StrategyKind::Zero3 => sizes.layers as f64,
            _ => collectives(bytes.weight * self.parameters(sizes), bucket),
        };
        exchanged_bytes(self.kind, [micro_batches as f64 * buckets; 2], buckets, buckets).iter().sum()
    }
}

/// Collectives for so many bytes of gradients in buckets: far fewer than parameters.
pub fn collectives(bytes: f64, bucket: f64) -> f64 {
    (bytes / bucket).ceil()
}

/// GB that `parameters` take in 16 bits: 2 for each billion.
pub fn gigabytes(parameters: f64) -> f64 {
    2.0 * parameters / 1e9
}
