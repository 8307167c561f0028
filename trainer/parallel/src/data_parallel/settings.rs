//! Settings of the strategies.

use crate::bucket::{Layout, Packing};
use crate::data_parallel::Average;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use unisono_nn::parameter::{Dtype, Inventory, Parameter};

/// Distribution of state over data ranks. Configurations accept PyTorch's names too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ParallelKind {
    /// Every rank keeps everything, and reduces buckets of gradients as they fill: PyTorch's `ddp`,
    /// or `no-shard`.
    #[serde(rename = "bucketed", alias = "no-shard", alias = "ddp")]
    Replicated,
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

impl ParallelKind {
    /// All kinds, by increasing amount of sharding.
    pub const ALL: [Self; 4] = [Self::Replicated, Self::Zero1, Self::Zero2, Self::Zero3];

    /// Returns true if a rank keeps only its shard of the optimizer state.
    pub fn shards_state(self) -> bool {
        matches!(self, Self::Zero1 | Self::Zero2 | Self::Zero3)
    }

    /// Returns true if a rank keeps only its shard of reduced gradients.
    pub fn shards_gradients(self) -> bool {
        matches!(self, Self::Zero2 | Self::Zero3)
    }

    /// Returns PyTorch's name, if it has one.
    pub fn pytorch_name(self) -> Option<&'static str> {
        match self {
            Self::Replicated => Some("no-shard"),
            Self::Zero2 => Some("shard-grad-op"),
            Self::Zero3 => Some("full-shard"),
            _ => None,
        }
    }

    /// Returns the name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Self::Replicated => "bucketed",
            Self::Zero1 => "zero1",
            Self::Zero2 => "zero2",
            Self::Zero3 => "zero3",
        }
    }

    /// Returns the kind on data ranks in these groups. A rank that is alone in its group has nobody
    /// to divide state with, so it keeps everything.
    pub fn within(self, groups: ShardGroups) -> Self {
        if groups.shards == 1 && groups.groups > 1 { Self::Replicated } else { self }
    }
}

/// Groups of neighboring data ranks. The ranks of a group divide state, and each group has all of
/// it.
///
/// Sources: Zhao et al., "PyTorch FSDP", VLDB 16(12), 2023 (hybrid sharding); Zhang et al., "MiCS",
/// VLDB 16(1), 2022.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardGroups {
    /// Number of ranks of a group.
    pub shards: usize,
    /// Number of groups.
    pub groups: usize,
}

impl ShardGroups {
    /// Divides `ranks` data ranks into groups of `shard_ranks` neighbors. One group has all ranks
    /// if `shard_ranks` is 0.
    pub fn new(shard_ranks: usize, ranks: usize) -> Self {
        let shards = if shard_ranks == 0 { ranks } else { shard_ranks.min(ranks) };
        Self { shards, groups: ranks / shards.max(1) }
    }

    /// Returns the groups in which ranks of this kind exchange buckets: one if each rank keeps
    /// everything.
    pub fn of_kind(self, kind: ParallelKind) -> Self {
        match kind {
            ParallelKind::Replicated => Self { shards: self.shards * self.groups, groups: 1 },
            _ => self,
        }
    }
}

/// Returns the number of neighbors that divide the state of an expert, if `shard_ranks` divide that
/// of other parameters, and `expert` of these have different experts. 0 stands for all.
pub fn shard_ranks_of_experts(shard_ranks: usize, expert: usize) -> usize {
    if shard_ranks == 0 { 0 } else { (shard_ranks / expert).max(1) }
}

/// Treatment of trainable parameters that a backward pass did not reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum UnusedGradients {
    /// Uses a zero gradient on this rank.
    Zero,
    /// Returns an error that names the parameters. For models with a static graph.
    Refuse,
}

/// Frequency of gradient reduction in ZeRO stages 2 and 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ReduceFrequency {
    /// Reduces once per step. Whole gradients are kept until the last micro-batch.
    Step,
    /// Reduces after every micro-batch. Sends more bytes, and keeps whole gradients of a few
    /// buckets only.
    MicroBatch,
}

/// Settings of all strategies. Each strategy uses the fields that apply to it. All ranks must have
/// equal ones, apart from `offload`.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Seed of the initial weights.
    pub seed: u64,
    /// Maximum size of a bucket's weights in bytes, 25 MiB by default. A larger parameter, or any
    /// with 0, has a bucket of its own. ZeRO-3 packs by unit instead.
    pub bucket_bytes: usize,
    /// Shards hidden matrices by whole rows, as Muon requires.
    pub shard_by_rows: bool,
    /// Number of neighboring data ranks that divide state; 0 is all of them. Must divide their
    /// number. Gradients are then summed over the groups too.
    pub shard_ranks: usize,
    /// Number of elements below which [`Mixed`](super::Mixed) keeps a parameter whole on every
    /// rank.
    pub replicate_below: usize,
    /// Place of the division by the number of ranks.
    pub average: Average,
    /// Type of gradients on the wire; `None` keeps the type of the gradients. Sums are always
    /// computed in 32 bits.
    pub wire_dtype: Option<Dtype>,
    /// Accumulates gradients of 16-bit weights in 32 bits.
    pub fp32_grad_accum: bool,
    /// Treatment of parameters without a gradient.
    pub unused: UnusedGradients,
    /// Frequency of gradient reduction.
    pub reduce_each: ReduceFrequency,
    /// Maximum number of bucket reductions under way, at least 1, in ZeRO stages 2 and 3.
    pub max_pending_reductions: usize,
    /// Number of units whose weights ZeRO-3 gathers ahead.
    pub prefetch: usize,
    /// Number of gathers under way from which none is started ahead.
    pub max_pending_gathers: usize,
    /// Frees weights after forward and gathers them again in backward, in ZeRO-3.
    pub reshard_after_forward: bool,
    /// Type in which moments of the optimizer are kept. Steps are computed in 32 bits.
    pub moment_dtype: Dtype,
    /// Folder for files with the optimizer state between steps; `None` keeps it in memory. For
    /// buffers in host memory only.
    pub offload: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            seed: 0,
            bucket_bytes: 25 << 20,
            shard_by_rows: false,
            shard_ranks: 0,
            replicate_below: 0,
            average: Average::InReduction,
            wire_dtype: None,
            fp32_grad_accum: false,
            unused: UnusedGradients::Zero,
            reduce_each: ReduceFrequency::Step,
            max_pending_reductions: 2,
            prefetch: 1,
            max_pending_gathers: 2,
            reshard_after_forward: true,
            moment_dtype: Dtype::F32,
            offload: None,
        }
    }
}

impl Settings {
    /// Returns the layout of parameters for the strategy `kind` if `shards` ranks divide state.
    pub fn layout(&self, kind: ParallelKind, inventory: &Inventory, shards: usize) -> Layout {
        let (shares, packing) = match kind {
            ParallelKind::Replicated => (1, Packing::MaxBytes(self.bucket_bytes)),
            ParallelKind::Zero1 | ParallelKind::Zero2 => (shards, Packing::MaxBytes(self.bucket_bytes)),
            // Weights are gathered for one unit, so a bucket of several units would gather too
            // much.
            ParallelKind::Zero3 => (shards, Packing::PerUnit),
        };
        let by_rows = |parameter: &Parameter| self.shard_by_rows && parameter.shape.len() == 2;
        let layout = Layout::with_rows(inventory, shares, packing, &by_rows);
        if self.fp32_grad_accum { layout.with_fp32_grads() } else { layout }
    }

    /// Returns true if a parameter has too few elements for its state to be divided.
    pub fn replicates(&self, parameter: &Parameter) -> bool {
        parameter.global_shape().iter().product::<usize>() < self.replicate_below
    }

    /// Returns the settings of the parameters of experts that `expert` ranks divide.
    pub fn for_experts(&self, expert: usize) -> Self {
        Self { shard_ranks: shard_ranks_of_experts(self.shard_ranks, expert), ..self.clone() }
    }
}
