//! Section `strategy` of the configuration: distribution of work and state over data ranks.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use unisono_nn::parameter::Dtype;
use unisono_parallel::data_parallel::{Average, ParallelKind, ReduceFrequency, Settings, UnusedGradients};

/// Settings of the strategy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Strategy {
    /// Distribution of work and state.
    pub kind: ParallelKind,
    /// Number of neighboring data ranks that divide state, such as those of a host: PyTorch's
    /// hybrid sharding. Each group of them has all of the state, and groups add up their gradients.
    /// Must divide the number of data ranks; 0 is all of them.
    pub shard_ranks: usize,
    /// Number of elements below which every rank keeps a parameter whole, such as small biases and
    /// gains, although others are sharded.
    pub replicate_below: usize,
    /// Bucket size of gradients, in MiB.
    pub bucket_mb: f64,
    /// Number of units whose weights are gathered ahead of their use.
    pub prefetch: usize,
    /// Maximum number of gathers under way.
    pub gather_limit: usize,
    /// Frees gathered weights after forward and gathers them again for backward.
    pub reshard_after_forward: bool,
    /// Maximum number of bucket reductions under way, if gradients are sharded.
    pub reduction_limit: usize,
    /// Frequency of gradient reduction, if gradients are sharded.
    pub reduce_each: ReduceFrequency,
    /// Place of the division by the number of ranks.
    pub average: Average,
    /// Treatment of parameters without a gradient.
    pub unused: UnusedGradients,
    /// Accumulates gradients of 16-bit weights in 32 bits.
    pub fp32_grad_accum: bool,
    /// Folder for unlinked files that hold the optimizer state between steps; empty keeps it in
    /// memory.
    pub offload: String,
    /// Type in which gradients are reduced.
    pub reduce_dtype: Dtype,
    /// Type in which weights are gathered and used.
    pub param_dtype: Dtype,
    /// Shards the rows between tensor parallel layers too: sequence parallelism.
    pub sequence_parallel: bool,
    /// Distribution of single units, such as `{"h.0" = "zero3"}`; others have `kind`. A name counts
    /// before a pattern: `h` and `h.*` are all blocks.
    pub units: BTreeMap<String, ParallelKind>,
}

impl Default for Strategy {
    fn default() -> Self {
        Self {
            kind: ParallelKind::Replicated,
            shard_ranks: 0,
            replicate_below: 0,
            bucket_mb: 25.0,
            prefetch: 1,
            gather_limit: 2,
            reshard_after_forward: true,
            reduction_limit: 2,
            reduce_each: ReduceFrequency::Step,
            average: Average::InReduction,
            unused: UnusedGradients::Zero,
            fp32_grad_accum: false,
            offload: String::new(),
            reduce_dtype: Dtype::F32,
            param_dtype: Dtype::F32,
            sequence_parallel: false,
            units: BTreeMap::new(),
        }
    }
}

impl Strategy {
    /// Returns the settings for a strategy, with initial weights from `seed`.
    pub fn settings(&self, seed: u64) -> Settings {
        let gradients = if self.fp32_grad_accum { Dtype::F32 } else { self.param_dtype };
        Settings {
            seed,
            shard_ranks: self.shard_ranks,
            replicate_below: self.replicate_below,
            bucket_bytes: (self.bucket_mb * f64::from(1 << 20)) as usize,
            wire_dtype: (self.reduce_dtype != gradients).then_some(self.reduce_dtype),
            prefetch: self.prefetch,
            max_pending_gathers: self.gather_limit,
            reshard_after_forward: self.reshard_after_forward,
            max_pending_reductions: self.reduction_limit,
            reduce_each: self.reduce_each,
            average: self.average,
            unused: self.unused,
            fp32_grad_accum: self.fp32_grad_accum,
            offload: (!self.offload.is_empty()).then(|| self.offload.clone().into()),
            ..Settings::default()
        }
    }
}
