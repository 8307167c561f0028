//! Decision tree for the strategy of a model on some hardware.
//!
//! Remedies are tried from the cheapest to the dearest: replicas, ZeRO-1, ZeRO-2, activation
//! checkpointing, ZeRO-3 (Zhao et al., "PyTorch FSDP", VLDB 16(12), 2023). Further parallelism
//! follows Narayanan et al., "Efficient large-scale language model training on GPU clusters", SC
//! 2021: tensor parallel within a host, pipeline stages across hosts, data parallel for the rest.

use crate::config::{Config, StrategyKind};
use crate::error::{Error, Result};
use crate::mesh::Degrees;
use crate::planner::hardware::Hardware;
use crate::planner::model_dims::{BytesPerParam, ModelDims};
use crate::planner::parallel_config::ParallelConfig;
use crate::train::{self, MAX_USEFUL_DATA_RANKS};
use serde::Serialize;

/// Leaves of the decision tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Rule {
    /// Everything fits on a rank: replicate.
    Ddp,
    /// Optimizer state does not fit: shard it (ZeRO-1).
    Zero1,
    /// Gradients do not fit either: shard them too (ZeRO-2).
    ShardGradOp,
    /// Activations do not fit: recompute them in backward.
    Checkpointing,
    /// Weights do not fit either: shard everything (ZeRO-3).
    FullShard,
    /// Layers or activations are too large, or data ranks too many: tensor parallel within a host.
    Tensor,
    /// Tensor parallelism is not enough: pipeline stages across hosts.
    Pipeline,
    /// Sequences are very long: context parallel.
    Context,
    /// Most parameters belong to experts: expert parallel, and shard the rest.
    Experts,
}

impl Rule {
    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ddp => "data parallel",
            Self::Zero1 => "ZeRO-1",
            Self::Checkpointing => "ZeRO-2 and activation checkpointing",
            Self::ShardGradOp => "ZeRO-2 (SHARD_GRAD_OP)",
            Self::FullShard => "ZeRO-3 (FULL_SHARD)",
            Self::Tensor => "ZeRO-3 and tensor parallel",
            Self::Pipeline => "ZeRO-3, tensor parallel and stages",
            Self::Context => "ZeRO-3, tensor and context parallel",
            Self::Experts => "expert parallel, ZeRO-3 for the rest",
        }
    }
}

/// Decision for a plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Decision {
    /// Leaf of the tree.
    pub rule: Rule,
    /// Parallelism of the run.
    pub parallel: ParallelConfig,
    /// Reason in one line.
    pub reason: String,
    /// Parts that the trainer does not implement.
    pub unsupported: Option<String>,
}

/// Number of tokens from which a sequence counts as very long.
const LONG_SEQUENCE: usize = 128 << 10;

/// Decides for a model on hardware, with a micro-batch of one sample.
///
/// # Errors
/// [`Error::Invalid`] if no strategy fits the model into memory.
pub fn decide(sizes: &ModelDims, bytes: &BytesPerParam, hardware: &Hardware) -> Result<Decision> {
    let (leaf, cut) = if sizes.experts > 1 {
        (Rule::Experts, experts(sizes, bytes, hardware))
    } else if sizes.sequence >= LONG_SEQUENCE {
        (Rule::Context, context(sizes, bytes, hardware))
    } else {
        dense(sizes, bytes, hardware)
    };
    if cut.needed_bytes(sizes, bytes, 1) > hardware.usable_memory() {
        return Err(Error::invalid(does_not_fit(sizes, bytes, hardware, &cut)));
    }
    Ok(Decision {
        rule: leaf,
        parallel: cut,
        reason: reason(leaf, &cut, sizes),
        unsupported: unsupported(&cut),
    })
}

fn dense(sizes: &ModelDims, bytes: &BytesPerParam, hardware: &Hardware) -> (Rule, ParallelConfig) {
    let fits = |cut: &ParallelConfig| cut.needed_bytes(sizes, bytes, 1) <= hardware.usable_memory();
    let whole = ParallelConfig::replicated(hardware.ranks);
    let data = [
        (Rule::Ddp, StrategyKind::Bucketed, false),
        (Rule::Zero1, StrategyKind::Zero1, false),
        (Rule::ShardGradOp, StrategyKind::Zero2, false),
        (Rule::Checkpointing, StrategyKind::Zero2, true),
        (Rule::FullShard, StrategyKind::Zero3, false),
        (Rule::FullShard, StrategyKind::Zero3, true),
    ];
    let data = data.map(|(leaf, kind, activation_checkpointing)| {
        (leaf, ParallelConfig { kind, activation_checkpointing, ..whole })
    });
    let few = |cut: &ParallelConfig| cut.kind != StrategyKind::Zero3 || cut.data <= MAX_USEFUL_DATA_RANKS;
    if let Some(found) = data.into_iter().find(|(_, cut)| fits(cut) && few(cut)) {
        return found;
    }
    let full = ParallelConfig { kind: StrategyKind::Zero3, ..whole };
    let tensors = tensor_degrees(sizes, hardware);
    let most = tensors.last().copied().unwrap_or(1);
    let cut = |tensor, pipeline| ParallelConfig {
        tensor,
        pipeline,
        data: hardware.ranks / (tensor * pipeline),
        ..full
    };
    let within = tensors.into_iter().map(|tensor| (Rule::Tensor, cut(tensor, 1)));
    let stages = powers_of_two(sizes.layers).filter(|stages| hardware.ranks.is_multiple_of(most * stages));
    let across = stages.map(|stages| (Rule::Pipeline, cut(most, stages)));
    let recomputing = |(leaf, cut)| (leaf, ParallelConfig { activation_checkpointing: true, ..cut });
    let both = |cuts: Vec<_>| cuts.clone().into_iter().chain(cuts.into_iter().map(recomputing));
    let mut all = both(within.collect()).chain(both(across.collect()));
    all.find(|(_, cut)| fits(cut) && few(cut)).unwrap_or((Rule::Pipeline, cut(most, 1)))
}

/// Returns the tensor parallel degrees within a host that divide the heads.
fn tensor_degrees(sizes: &ModelDims, hardware: &Hardware) -> Vec<usize> {
    let goes = |tensor: &usize| {
        let all = [hardware.per_host, hardware.ranks, sizes.heads];
        all.iter().all(|extent| extent.is_multiple_of(*tensor))
    };
    powers_of_two(hardware.per_host).filter(goes).collect()
}

/// Returns 2, 4, 8 and so on, up to `most`.
fn powers_of_two(most: usize) -> impl Iterator<Item = usize> {
    (1..usize::BITS).map(|power| 1 << power).take_while(move |&power| power <= most)
}

fn context(sizes: &ModelDims, bytes: &BytesPerParam, hardware: &Hardware) -> ParallelConfig {
    let tensor = tensor_degrees(sizes, hardware).last().copied().unwrap_or(1);
    let data = hardware.ranks / tensor;
    let whole = ParallelConfig {
        kind: StrategyKind::Zero3,
        tensor,
        data,
        ..ParallelConfig::replicated(hardware.ranks)
    };
    let cuts = powers_of_two(data).filter(|&context| data.is_multiple_of(context));
    let mut cuts = cuts.map(|context| ParallelConfig { context, ..whole });
    cuts.find(|cut| cut.needed_bytes(sizes, bytes, 1) <= hardware.usable_memory()).unwrap_or(whole)
}

/// Returns expert parallelism with as little tensor parallelism as fits, and recomputation before
/// that.
fn experts(sizes: &ModelDims, bytes: &BytesPerParam, hardware: &Hardware) -> ParallelConfig {
    let cut = |tensor: usize, activation_checkpointing| {
        let data = hardware.ranks / tensor;
        let divides = |expert: &usize| data.is_multiple_of(*expert) && sizes.experts.is_multiple_of(*expert);
        let expert = (1..=sizes.experts.min(data)).rev().find(divides).unwrap_or(1);
        let whole = ParallelConfig::replicated(hardware.ranks);
        ParallelConfig { kind: StrategyKind::Zero3, tensor, data, expert, activation_checkpointing, ..whole }
    };
    let tensors = std::iter::once(1).chain(tensor_degrees(sizes, hardware));
    let mut all = tensors.flat_map(|tensor| [cut(tensor, false), cut(tensor, true)]);
    all.find(|cut| cut.needed_bytes(sizes, bytes, 1) <= hardware.usable_memory()).unwrap_or(cut(1, true))
}

fn reason(leaf: Rule, cut: &ParallelConfig, sizes: &ModelDims) -> String {
    match leaf {
        Rule::Ddp => "weights, gradients, state and the activations of a sample fit on one rank".to_owned(),
        Rule::Zero1 => "the state of the optimizer is what does not fit on one rank".to_owned(),
        Rule::ShardGradOp => "gradients and state are what does not fit on one rank".to_owned(),
        Rule::Checkpointing => {
            "activations are what does not fit: a third more computing, and no more bytes".to_owned()
        }
        Rule::FullShard => "weights do not fit on one rank".to_owned(),
        Rule::Tensor => format!(
            "a layer or its activations, or more than {MAX_USEFUL_DATA_RANKS} data ranks, ask for tensor = {}",
            cut.tensor
        ),
        Rule::Pipeline => {
            format!("tensor parallelism ends with the host: {} stages across hosts", cut.pipeline)
        }
        Rule::Context => format!("sequences of {}: {} ranks share each", sizes.sequence, cut.context),
        Rule::Experts => format!("{} experts on {} ranks", sizes.experts, cut.expert),
    }
}

/// Returns the parts of the plan that the trainer rejects.
fn unsupported(cut: &ParallelConfig) -> Option<String> {
    if cut.expert > 1 {
        return Some("expert parallelism: not part of this build".to_owned());
    }
    let degrees = Degrees {
        tensor: cut.tensor,
        pipeline: cut.pipeline,
        sequence_data: cut.context,
        ..Degrees::default()
    };
    let ranks = cut.tensor * cut.pipeline * cut.data;
    let config = Config { mesh: degrees, ..Config::default() };
    train::mesh(&config, ranks).err().map(|error| error.to_string())
}

fn does_not_fit(
    sizes: &ModelDims,
    bytes: &BytesPerParam,
    hardware: &Hardware,
    cut: &ParallelConfig,
) -> String {
    let [need, room, layer, activations] = [
        cut.needed_bytes(sizes, bytes, 1),
        hardware.usable_memory(),
        cut.largest_layer_bytes(sizes, bytes),
        cut.activations(sizes),
    ]
    .map(|bytes| bytes / 1e9);
    let what =
        format!("{need:.1} GB for each of {} ranks, and there is room for {room:.1} GB", hardware.ranks);
    let of = format!("{layer:.1} GB the largest layer, {activations:.1} GB the activations of a sample");
    format!("{what} ({of}): more ranks, more memory, or --activation-checkpointing")
}

/// Returns the usual choice for models of this size.
pub fn rule_of_thumb(sizes: &ModelDims) -> &'static str {
    match sizes.parameters {
        _ if sizes.experts > 1 => "expert parallel, ZeRO-3 for the rest",
        _ if sizes.sequence >= LONG_SEQUENCE => "context and tensor parallel, ZeRO-3",
        small if small < 1e10 => "ZeRO-3 alone",
        middle if middle <= 7e10 => "ZeRO-3, tensor parallel within hosts",
        _ => "ZeRO-3, tensor parallel within hosts, stages across them",
    }
}
