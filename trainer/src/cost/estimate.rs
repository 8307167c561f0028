//! Estimate of a model on ranks of some hardware, in one way of parallelism.

use crate::config::StrategyKind;
use crate::cost::{GroupBytes, Hardware, ModelShape};
use serde::Serialize;

/// Parallelism of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ParallelConfig {
    /// Data parallel strategy.
    pub kind: StrategyKind,
    /// Tensor parallel degree.
    pub tensor: usize,
    /// Pipeline parallel degree.
    pub pipeline: usize,
    /// Context parallel degree, within the data ranks.
    pub context: usize,
    /// Expert parallel degree, within the data ranks.
    pub expert: usize,
    /// Number of ranks with the same part of the model.
    pub data: usize,
    /// Recomputes activations in backward, also if the model does not say so.
    pub activation_checkpointing: bool,
}

impl ParallelConfig {
    /// Returns pure data parallelism with replicated state.
    pub fn replicated(ranks: usize) -> Self {
        Self {
            kind: StrategyKind::Bucketed,
            tensor: 1,
            pipeline: 1,
            context: 1,
            expert: 1,
            data: ranks,
            activation_checkpointing: false,
        }
    }
}

/// Model on hardware, in one way of parallelism. Ranks have equal parts without padding.
#[derive(Clone, Copy, Debug)]
pub struct Estimate<'a> {
    /// Model.
    pub shape: &'a ModelShape,
    /// Hardware.
    pub hardware: &'a Hardware,
    /// Parallelism.
    pub parallel: ParallelConfig,
}

impl Estimate<'_> {
    /// Returns the number of parameters per data parallel group.
    pub fn parameters(&self) -> f64 {
        self.shape.parameters / (self.parallel.tensor * self.parallel.pipeline) as f64
    }

    /// Returns the bytes of a data parallel group, for a step of `micro_batches`.
    fn group(&self, micro_batches: usize) -> GroupBytes {
        self.shape.bytes.group(self.parameters(), micro_batches)
    }

    /// Returns the bytes of weights, gradients and optimizer state that each rank keeps.
    pub fn kept(&self) -> [f64; 3] {
        self.group(1).kept(self.parallel.kind, self.parallel.data)
    }

    /// Returns the bytes that each rank sends in forward, backward and step.
    pub fn sent(&self, micro_batches: usize) -> [f64; 3] {
        self.group(micro_batches).sent(self.parallel.kind, self.parallel.data)
    }

    /// Returns the bytes each rank needs with this micro-batch: state, activations, and three whole
    /// units if weights are sharded.
    pub fn needed(&self, micro_batch: usize) -> f64 {
        let gathers = self.parallel.kind == StrategyKind::Zero3;
        let whole = if gathers { 3.0 * self.largest_unit() } else { 0.0 };
        self.kept().iter().sum::<f64>() + whole + micro_batch as f64 * self.activations()
    }

    /// Returns true if a rank has the memory for one sample at a time.
    pub fn fits(&self) -> bool {
        self.needed(1) <= self.hardware.usable_memory()
    }

    /// Returns the largest micro-batch that fits in memory.
    pub fn max_micro_batch(&self) -> usize {
        let left = self.hardware.usable_memory() - self.needed(0);
        (left / self.activations()).max(0.0) as usize
    }

    /// Returns the bytes of activations per sample. Pipeline stages do not reduce them, because the
    /// first stage holds as many micro-batches as there are stages.
    pub fn activations(&self) -> f64 {
        self.shape.activations(self.parallel.tensor, self.recomputes()) / self.parallel.context as f64
    }

    /// Returns true if activations are recomputed in backward.
    pub fn recomputes(&self) -> bool {
        self.parallel.activation_checkpointing || self.shape.gpt.activation_checkpointing
    }

    /// Returns the bytes of the gathered weights of the largest unit.
    pub fn largest_unit(&self) -> f64 {
        let parts = self.parallel.tensor * self.parallel.expert.min(self.shape.experts);
        self.shape.bytes.weight * self.shape.largest_unit() / parts as f64
    }

    /// Returns the number of reduce-scatters and all-gathers per step, with buckets of this size.
    pub fn collectives(&self, bucket: f64, micro_batches: usize) -> f64 {
        let count = match self.parallel.kind {
            StrategyKind::Zero3 => self.shape.unit_count() as f64,
            _ => bucket_count(self.shape.bytes.weight * self.parameters(), bucket),
        };
        let gathered = [micro_batches as f64 * count; 2];
        let counts = GroupBytes { gathered, reduced: count, stepped: count, ..GroupBytes::default() };
        counts.exchanged(self.parallel.kind).iter().sum()
    }
}

/// Returns the number of buckets of this size for gradients of `bytes` bytes.
pub fn bucket_count(bytes: f64, bucket: f64) -> f64 {
    (bytes / bucket).ceil()
}
