//! Decision tree for the strategy of a model on some hardware.
//!
//! Remedies are tried from the cheapest to the dearest: replicas, ZeRO-1, ZeRO-2, activation
//! checkpointing, ZeRO-3 (Zhao et al., "PyTorch FSDP", VLDB 16(12), 2023). Further parallelism
//! follows Narayanan et al., "Efficient large-scale language model training on GPU clusters", SC
//! 2021: tensor parallel within a host, pipeline stages across hosts, data parallel for the rest.

use crate::config::{Config, StrategyKind};
use crate::cost::{Estimate, Hardware, MAX_USEFUL_DATA_RANKS, ModelShape, ParallelConfig};
use crate::error::{Error, Result};
use crate::mesh::Degrees;
use crate::train;
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
pub fn decide(shape: &ModelShape, hardware: &Hardware) -> Result<Decision> {
    let tree = Tree { shape, hardware, whole: ParallelConfig::replicated(hardware.ranks) };
    let (rule, mut parallel) = if shape.experts > 1 {
        (Rule::Experts, tree.experts())
    } else if shape.gpt.context >= LONG_SEQUENCE {
        (Rule::Context, tree.context())
    } else {
        tree.dense()
    };
    let estimate = Estimate { shape, hardware, parallel };
    if !estimate.fits() {
        return Err(Error::invalid(does_not_fit(&estimate)));
    }
    parallel.activation_checkpointing = estimate.recomputes();
    let (reason, unsupported) = (reason(rule, &parallel, shape), unsupported(&parallel));
    Ok(Decision { rule, parallel, reason, unsupported })
}

/// Model and hardware of a decision.
struct Tree<'a> {
    shape: &'a ModelShape,
    hardware: &'a Hardware,
    /// Replicas on all ranks.
    whole: ParallelConfig,
}

impl Tree<'_> {
    fn fits(&self, parallel: &ParallelConfig) -> bool {
        Estimate { shape: self.shape, hardware: self.hardware, parallel: *parallel }.fits()
    }

    fn dense(&self) -> (Rule, ParallelConfig) {
        let whole = self.whole;
        let data = [
            (Rule::Ddp, StrategyKind::Bucketed, false),
            (Rule::Zero1, StrategyKind::Zero1, false),
            (Rule::ShardGradOp, StrategyKind::Zero2, false),
            (Rule::Checkpointing, StrategyKind::Zero2, true),
            (Rule::FullShard, StrategyKind::Zero3, false),
            (Rule::FullShard, StrategyKind::Zero3, true),
        ];
        let data = data.map(|(rule, kind, activation_checkpointing)| {
            (rule, ParallelConfig { kind, activation_checkpointing, ..whole })
        });
        let few = |cut: &ParallelConfig| cut.kind != StrategyKind::Zero3 || cut.data <= MAX_USEFUL_DATA_RANKS;
        let tensors = self.tensor_degrees();
        let most = tensors.last().copied().unwrap_or(1);
        let within: Vec<_> = tensors.iter().map(|&tensor| (Rule::Tensor, self.sharded(tensor, 1))).collect();
        let stages = powers_of_two(self.shape.gpt.layers);
        let stages = stages.filter(|stages| self.hardware.ranks.is_multiple_of(most * stages));
        let across: Vec<_> = stages.map(|stages| (Rule::Pipeline, self.sharded(most, stages))).collect();
        // All keep their activations before any recomputes them.
        let both = |cuts: Vec<(Rule, ParallelConfig)>| {
            let with = move |activation_checkpointing| {
                let with = move |(rule, cut)| (rule, ParallelConfig { activation_checkpointing, ..cut });
                cuts.clone().into_iter().map(with)
            };
            [false, true].into_iter().flat_map(with)
        };
        let mut all = data.into_iter().chain(both(within)).chain(both(across));
        let found = all.find(|(_, cut)| self.fits(cut) && few(cut));
        found.unwrap_or((Rule::Pipeline, self.sharded(most, 1)))
    }

    fn context(&self) -> ParallelConfig {
        let whole = self.sharded(self.tensor_degrees().last().copied().unwrap_or(1), 1);
        let cuts = powers_of_two(whole.data).filter(|&context| whole.data.is_multiple_of(context));
        let mut cuts = cuts.map(|context| ParallelConfig { context, ..whole });
        cuts.find(|cut| self.fits(cut)).unwrap_or(whole)
    }

    /// Returns expert parallelism with as little tensor parallelism as fits, and recomputation
    /// before that.
    fn experts(&self) -> ParallelConfig {
        let cut = |tensor: usize, activation_checkpointing| {
            let (whole, experts) = (self.sharded(tensor, 1), self.shape.experts);
            let divides =
                |expert: &usize| whole.data.is_multiple_of(*expert) && experts.is_multiple_of(*expert);
            let expert = (1..=experts.min(whole.data)).rev().find(divides).unwrap_or(1);
            ParallelConfig { expert, activation_checkpointing, ..whole }
        };
        let tensors = std::iter::once(1).chain(self.tensor_degrees());
        let mut all = tensors.flat_map(|tensor| [cut(tensor, false), cut(tensor, true)]);
        all.find(|cut| self.fits(cut)).unwrap_or(cut(1, true))
    }

    /// Returns ZeRO-3 over the data ranks of these degrees.
    fn sharded(&self, tensor: usize, pipeline: usize) -> ParallelConfig {
        let data = self.hardware.ranks / (tensor * pipeline);
        ParallelConfig { kind: StrategyKind::Zero3, tensor, pipeline, data, ..self.whole }
    }

    /// Returns the tensor parallel degrees within a host that divide the heads.
    fn tensor_degrees(&self) -> Vec<usize> {
        let all = [self.hardware.per_host, self.hardware.ranks, self.shape.gpt.heads];
        let goes = |tensor: &usize| all.iter().all(|extent| extent.is_multiple_of(*tensor));
        powers_of_two(self.hardware.per_host).filter(goes).collect()
    }
}

/// Returns 2, 4, 8 and so on, up to `most`.
fn powers_of_two(most: usize) -> impl Iterator<Item = usize> {
    (1..usize::BITS).map(|power| 1 << power).take_while(move |&power| power <= most)
}

fn reason(rule: Rule, cut: &ParallelConfig, shape: &ModelShape) -> String {
    match rule {
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
        Rule::Context => format!("sequences of {}: {} ranks share each", shape.gpt.context, cut.context),
        Rule::Experts => format!("{} experts on {} ranks", shape.experts, cut.expert),
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

fn does_not_fit(estimate: &Estimate<'_>) -> String {
    let Hardware { ranks, .. } = estimate.hardware;
    let [need, room, layer, activations] = [
        estimate.needed(1),
        estimate.hardware.usable_memory(),
        estimate.largest_unit(),
        estimate.activations(),
    ]
    .map(|bytes| bytes / 1e9);
    let what = format!("{need:.1} GB for each of {ranks} ranks, and there is room for {room:.1} GB");
    let of = format!("{layer:.1} GB the largest layer, {activations:.1} GB the activations of a sample");
    format!("{what} ({of}): more ranks, more memory, or --activation-checkpointing")
}

/// Returns the usual choice for models of this size.
pub fn rule_of_thumb(shape: &ModelShape) -> &'static str {
    match shape.parameters {
        _ if shape.experts > 1 => "expert parallel, ZeRO-3 for the rest",
        _ if shape.gpt.context >= LONG_SEQUENCE => "context and tensor parallel, ZeRO-3",
        small if small < 1e10 => "ZeRO-3 alone",
        middle if middle <= 7e10 => "ZeRO-3, tensor parallel within hosts",
        _ => "ZeRO-3, tensor parallel within hosts, stages across them",
    }
}
