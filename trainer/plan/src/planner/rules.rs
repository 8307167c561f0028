//! Leaves of the decision tree for the strategy of a model on some hardware, and rules of thumb.

use crate::cost::{MAX_USEFUL_DATA_RANKS, ModelShape, ParallelConfig};
use crate::planner::meshes::LONG_SEQUENCE;
use crate::planner::tree::Remedy;
use serde::Serialize;
use unisono_parallel::data_parallel::ParallelKind;

/// Leaf of the decision tree, and the remedy that it stands for.
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
    /// Layers or activations are too large, or there are too many data ranks: tensor parallel
    /// within a host.
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
            Self::Tensor => "tensor parallel",
            Self::Pipeline => "pipeline stages",
            Self::Context => "context parallel",
            Self::Experts => "expert parallel",
        }
    }

    /// Returns the leaf of the tree for this parallelism.
    pub(crate) fn of(parallel: &ParallelConfig) -> Self {
        let ParallelConfig { kind, tensor, pipeline, context, expert, .. } = *parallel;
        match kind {
            _ if expert > 1 => Self::Experts,
            _ if context > 1 => Self::Context,
            _ if pipeline > 1 => Self::Pipeline,
            _ if tensor > 1 => Self::Tensor,
            ParallelKind::Replicated => Self::Ddp,
            ParallelKind::Zero1 => Self::Zero1,
            ParallelKind::Zero2 if parallel.activation_checkpointing => Self::Checkpointing,
            ParallelKind::Zero2 => Self::ShardGradOp,
            ParallelKind::Zero3 => Self::FullShard,
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
    /// Reason why ranks do not form this mesh; `None` if they do.
    pub unsupported: Option<String>,
    /// Remedies that the tree tried, with the one that fits at the end.
    pub walk: Vec<Remedy>,
}

impl Decision {
    /// Returns the decision for a leaf, with the error of a mesh that ranks do not form.
    pub(super) fn new(rule: Rule, parallel: ParallelConfig, reason: String, walk: Vec<Remedy>) -> Self {
        let unsupported = parallel.mesh().err().map(|error| error.to_string());
        Self { rule, parallel, reason, unsupported, walk }
    }
}

/// Returns the reason for a leaf in one line.
pub(super) fn reason(rule: Rule, cut: &ParallelConfig, shape: &ModelShape) -> String {
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
        Rule::Experts => format!("{} experts on {} ranks", shape.experts(), cut.expert),
    }
}

/// Returns the usual choice for models of this size.
pub(super) fn rule_of_thumb(shape: &ModelShape) -> &'static str {
    match shape.parameters {
        _ if shape.experts() > 1 => "expert parallel, ZeRO-3 for the rest",
        _ if shape.gpt.context >= LONG_SEQUENCE => "context and tensor parallel, ZeRO-3",
        small if small < 1e10 => "ZeRO-3 alone",
        middle if middle <= 7e10 => "ZeRO-3, tensor parallel within hosts",
        _ => "ZeRO-3, tensor parallel within hosts, stages across them",
    }
}
