//! Section `strategy` of the configuration: distribution of work and state over data ranks.

use crate::parallel::{Average, ParallelKind, ReduceFrequency, Settings, ShardGroups, UnusedGradients};
use crate::parameter::Dtype;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Distribution of work and state over data ranks. PyTorch's names are accepted too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum StrategyKind {
    /// Reduces buckets of gradients as they fill: PyTorch's `ddp`, or `no-shard`.
    #[serde(alias = "no-shard", alias = "ddp")]
    Bucketed,
    /// Shards the optimizer state.
    #[serde(alias = "zero-1")]
    Zero1,
    /// Also shards gradients: PyTorch's `shard-grad-op`.
    #[serde(alias = "shard-grad-op", alias = "zero-2")]
    Zero2,
    /// Also shards weights: PyTorch's `fsdp`, or `full-shard`.
    #[serde(alias = "full-shard", alias = "zero-3", alias = "fsdp", alias = "fsdp2")]
    Zero3,
}

impl StrategyKind {
    /// All strategies, by increasing amount of sharding.
    pub const ALL: [Self; 4] = [Self::Bucketed, Self::Zero1, Self::Zero2, Self::Zero3];

    /// Returns the kind of parallel strategy.
    pub fn parallel_kind(self) -> ParallelKind {
        match self {
            Self::Bucketed => ParallelKind::Replicated,
            Self::Zero1 => ParallelKind::Zero1,
            Self::Zero2 => ParallelKind::Zero2,
            Self::Zero3 => ParallelKind::Zero3,
        }
    }

    /// Returns the strategy on data ranks in these groups, as [`ParallelKind::within`] does.
    pub fn within(self, groups: ShardGroups) -> Self {
        let kind = self.parallel_kind();
        if kind.within(groups) == kind { self } else { Self::Bucketed }
    }

    /// Returns true if ranks keep a shard of the optimizer state only.
    pub fn shards_state(self) -> bool {
        matches!(self, Self::Zero1 | Self::Zero2 | Self::Zero3)
    }

    /// Returns true if ranks keep a shard of the gradients only.
    pub fn shards_gradients(self) -> bool {
        self.parallel_kind().shards_gradients()
    }

    /// Returns PyTorch's name, if it has one.
    pub fn pytorch_name(self) -> Option<&'static str> {
        match self {
            Self::Bucketed => Some("no-shard"),
            Self::Zero2 => Some("shard-grad-op"),
            Self::Zero3 => Some("full-shard"),
            _ => None,
        }
    }

    /// Returns the name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bucketed => "bucketed",
            Self::Zero1 => "zero1",
            Self::Zero2 => "zero2",
            Self::Zero3 => "zero3",
        }
    }
}

/// Settings of the strategy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Strategy {
    /// Distribution of work and state.
    pub kind: StrategyKind,
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
    pub units: BTreeMap<String, StrategyKind>,
}

impl Default for Strategy {
    fn default() -> Self {
        Self {
            kind: StrategyKind::Bucketed,
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
