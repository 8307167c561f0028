//! Decision tree for the strategy of a model on some hardware.
//!
//! Remedies are tried from the cheapest to the dearest: replicas, ZeRO-1, ZeRO-2, activation
//! checkpointing, ZeRO-3 (Zhao et al., "PyTorch FSDP", VLDB 16(12), 2023). Then come tensor
//! parallel groups within a host, and pipeline stages across hosts (Narayanan et al., "Efficient
//! large-scale language model training on GPU clusters", SC 2021).

use crate::cost::format::size;
use crate::cost::{Estimate, Hardware, MAX_USEFUL_DATA_RANKS, ModelShape, ParallelConfig};
use crate::planner::meshes::{LONG_SEQUENCE, expert_degrees, powers_of_two, tensor_degrees};
use crate::planner::rules::{Decision, Rule, reason};
use serde::Serialize;
use unisono_nn::counted;
use unisono_nn::error::{Error, Result};
use unisono_parallel::data_parallel::ParallelKind;
use unisono_parallel::data_parallel::ShardGroups;

/// Remedy that the tree tried.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Remedy {
    /// Leaf of the tree.
    pub rule: Rule,
    /// Parallelism of the run.
    pub parallel: ParallelConfig,
    /// Bytes that each rank needs, with one sample at a time.
    pub needed: f64,
    /// True if a rank has this much usable memory.
    pub fits: bool,
}

/// Decides for a model on hardware, with a micro-batch of one sample.
///
/// # Errors
/// [`Error::Invalid`] if no strategy fits the model into memory.
pub(super) fn decide(shape: &ModelShape, hardware: &Hardware) -> Result<Decision> {
    let tree = Tree { shape, hardware, whole: ParallelConfig::replicated(hardware.ranks) };
    let remedies = if shape.experts() > 1 {
        tree.experts()
    } else if shape.gpt.context >= LONG_SEQUENCE {
        tree.context()
    } else {
        tree.dense()
    };
    let divides = |(_, parallel): &(Rule, ParallelConfig)| parallel.divides_into(shape.shard_ranks);
    let mut walk = Vec::new();
    for (rule, parallel) in remedies.into_iter().filter(divides) {
        let estimate = Estimate { shape, hardware, parallel };
        walk.push(Remedy { rule, parallel, needed: estimate.needed(1), fits: estimate.fits() });
        if estimate.fits() && has_few_ranks(&parallel, shape) {
            let parallel = ParallelConfig { activation_checkpointing: estimate.recomputes(), ..parallel };
            return Ok(Decision::new(rule, parallel, reason(rule, &parallel, shape), walk));
        }
    }
    let least = walk.iter().min_by(|left, right| left.needed.total_cmp(&right.needed));
    let parallel = least.map_or(tree.whole, |remedy| remedy.parallel);
    Err(Error::invalid(does_not_fit(&Estimate { shape, hardware, parallel })))
}

/// Returns true unless ZeRO-3 shards weights over more ranks than computation can hide.
pub(super) fn has_few_ranks(parallel: &ParallelConfig, shape: &ModelShape) -> bool {
    let shard_ranks = ShardGroups::new(shape.shard_ranks, parallel.data).shards;
    parallel.kind != ParallelKind::Zero3 || shard_ranks <= MAX_USEFUL_DATA_RANKS
}

/// Model and hardware of a decision.
struct Tree<'a> {
    shape: &'a ModelShape,
    hardware: &'a Hardware,
    /// Replicas on all ranks.
    whole: ParallelConfig,
}

impl Tree<'_> {
    fn dense(&self) -> Vec<(Rule, ParallelConfig)> {
        let data = [
            (Rule::Ddp, ParallelKind::Replicated, false),
            (Rule::Zero1, ParallelKind::Zero1, false),
            (Rule::ShardGradOp, ParallelKind::Zero2, false),
            (Rule::Checkpointing, ParallelKind::Zero2, true),
            (Rule::FullShard, ParallelKind::Zero3, false),
            (Rule::FullShard, ParallelKind::Zero3, true),
        ];
        let data = data.map(|(rule, kind, activation_checkpointing)| {
            (rule, ParallelConfig { kind, activation_checkpointing, ..self.whole })
        });
        let tensors = tensor_degrees(self.shape, self.hardware);
        let most = self.most_tensor();
        let tensor_cuts = tensors.iter().map(|&tensor| (Rule::Tensor, self.sharded(tensor, 1))).collect();
        let stages = powers_of_two(self.shape.gpt.layers).filter(|&stages| stages > 1);
        let stages = stages.filter(|stages| self.hardware.ranks.is_multiple_of(most * stages));
        let across = stages.map(|stages| (Rule::Pipeline, self.sharded(most, stages))).collect();
        // All keep their activations before any recomputes them.
        data.into_iter().chain(both(tensor_cuts)).chain(both(across)).collect()
    }

    fn context(&self) -> Vec<(Rule, ParallelConfig)> {
        let base = self.sharded(self.most_tensor(), 1);
        let goes = |context: &usize| {
            base.data.is_multiple_of(*context) && self.shape.gpt.context.is_multiple_of(*context)
        };
        let degrees = powers_of_two(base.data).filter(|&context| context > 1).filter(goes);
        let cuts = degrees.map(|context| (Rule::Context, ParallelConfig { context, ..base })).collect();
        both(cuts).collect()
    }

    /// Returns expert parallelism with as little tensor parallelism as fits, and recomputation
    /// before that.
    fn experts(&self) -> Vec<(Rule, ParallelConfig)> {
        let cut = |tensor: usize, activation_checkpointing| {
            let base = self.sharded(tensor, 1);
            let expert = expert_degrees(self.shape, base.data).into_iter().max().unwrap_or(1);
            (Rule::Experts, ParallelConfig { expert, activation_checkpointing, ..base })
        };
        let tensors = std::iter::once(1).chain(tensor_degrees(self.shape, self.hardware));
        tensors.flat_map(|tensor| [cut(tensor, false), cut(tensor, true)]).collect()
    }

    /// Returns ZeRO-3 over the data ranks of these degrees.
    fn sharded(&self, tensor: usize, pipeline: usize) -> ParallelConfig {
        let data = self.hardware.ranks / (tensor * pipeline);
        ParallelConfig { kind: ParallelKind::Zero3, tensor, pipeline, data, ..self.whole }
    }

    fn most_tensor(&self) -> usize {
        tensor_degrees(self.shape, self.hardware).last().copied().unwrap_or(1)
    }
}

/// Returns all meshes without activation checkpointing, then all with it.
fn both(cuts: Vec<(Rule, ParallelConfig)>) -> impl Iterator<Item = (Rule, ParallelConfig)> {
    [false, true].into_iter().flat_map(move |activation_checkpointing| {
        let variant = move |(rule, cut)| (rule, ParallelConfig { activation_checkpointing, ..cut });
        cuts.clone().into_iter().map(variant)
    })
}

/// Returns the numbers of a model that does not fit.
pub(super) fn does_not_fit(estimate: &Estimate<'_>) -> String {
    let Hardware { ranks, .. } = estimate.hardware;
    let [need, room, layer, activations] = [
        estimate.needed(1),
        estimate.hardware.usable_memory(),
        estimate.largest_unit(),
        estimate.activations(),
    ]
    .map(size);
    let ranks = counted(*ranks, "rank");
    let what = format!("{need} for each of {ranks}, and there is room for {room}");
    let details = format!("{layer} the largest layer, {activations} the activations of a sample");
    let least =
        format!("the smallest mesh is {} with {}", estimate.parallel.words(), estimate.parallel.kind.name());
    format!("{what} ({details}): {least}; more ranks, more memory, a shorter sequence or a smaller model")
}
