//! Which strategy a model needs on some hardware.
//!
//! The order is that of Zhao et al., "PyTorch FSDP", VLDB 16(12), 2023, for what data ranks share, and for what comes on top that of
//! Narayanan et al., "Efficient large-scale language model training on GPU clusters", SC 2021: tensor parallel up to a host, stages across
//! hosts, data parallel for the rest.

use super::hardware::Hardware;
use super::sizes::{Bytes, Sizes};
use super::state::Cut;
use crate::config::{Config, StrategyKind};
use crate::error::{Error, Result};
use crate::mesh::Degrees;
use crate::train::{self, DATA_RANKS_MAX};
use serde::Serialize;

/// Leaves of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Leaf {
    /// Everything fits on a rank: replicate it.
    Ddp,
    /// Gradients and the optimiser's state do not: shard them (ZeRO-2).
    ShardGradOp,
    /// Weights do not either: shard all (ZeRO-3).
    FullShard,
    /// Layers or activations are too large, or data ranks too many: cut layers within a host.
    Tensor,
    /// Still so: deal layers to stages across hosts.
    Pipeline,
    /// Sequences are very long: cut them, too.
    Context,
    /// Most parameters are of experts: deal those out, shard the rest.
    Experts,
}

impl Leaf {
    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ddp => "data parallel",
            Self::ShardGradOp => "ZeRO-2 (SHARD_GRAD_OP)",
            Self::FullShard => "ZeRO-3 (FULL_SHARD)",
            Self::Tensor => "ZeRO-3 and tensor parallel",
            Self::Pipeline => "ZeRO-3, tensor parallel and stages",
            Self::Context => "ZeRO-3, tensor and context parallel",
            Self::Experts => "expert parallel, ZeRO-3 for the rest",
        }
    }
}

/// What the tree says.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Decision {
    /// Which leaf.
    pub leaf: Leaf,
    /// How the run is cut.
    pub cut: Cut,
    /// Why, in a line.
    pub why: String,
    /// What of it is not part of this build.
    pub missing: Option<String>,
}

/// Tokens from which a sequence counts as very long.
const LONG: usize = 128 << 10;

/// The plan for a model on hardware, with one sample at a time.
///
/// # Errors
/// [`Error::Illegal`] if nothing makes it fit.
pub fn decide(sizes: &Sizes, bytes: &Bytes, hardware: &Hardware) -> Result<Decision> {
    let (leaf, cut) = if sizes.experts > 1 {
        (Leaf::Experts, experts(sizes, hardware))
    } else if sizes.sequence >= LONG {
        (Leaf::Context, context(sizes, bytes, hardware))
    } else {
        dense(sizes, bytes, hardware)
    };
    if cut.needed(sizes, bytes, 1) > hardware.room() {
        return Err(Error::illegal(too_large(sizes, bytes, hardware, &cut)));
    }
    Ok(Decision { leaf, cut, why: why(leaf, &cut, sizes), missing: missing(&cut) })
}

fn dense(sizes: &Sizes, bytes: &Bytes, hardware: &Hardware) -> (Leaf, Cut) {
    let fits = |cut: &Cut| cut.needed(sizes, bytes, 1) <= hardware.room();
    let whole = Cut::replicated(hardware.ranks);
    let data = [
        (Leaf::Ddp, StrategyKind::Bucketed),
        (Leaf::ShardGradOp, StrategyKind::Zero2),
        (Leaf::FullShard, StrategyKind::Zero3),
    ];
    let data = data.map(|(leaf, kind)| (leaf, Cut { kind, ..whole }));
    let few = |cut: &Cut| cut.kind != StrategyKind::Zero3 || cut.data <= DATA_RANKS_MAX;
    if let Some(found) = data.into_iter().find(|(_, cut)| fits(cut) && few(cut)) {
        return found;
    }
    let full = Cut { kind: StrategyKind::Zero3, ..whole };
    let tensors = tensors(sizes, hardware);
    let most = tensors.last().copied().unwrap_or(1);
    let cut = |tensor, pipeline| Cut { tensor, pipeline, data: hardware.ranks / (tensor * pipeline), ..full };
    let within = tensors.into_iter().map(|tensor| (Leaf::Tensor, cut(tensor, 1)));
    let stages = powers(sizes.layers).filter(|stages| hardware.ranks.is_multiple_of(most * stages));
    let across = stages.map(|stages| (Leaf::Pipeline, cut(most, stages)));
    let mut all = within.chain(across);
    all.find(|(_, cut)| fits(cut) && few(cut)).unwrap_or((Leaf::Pipeline, cut(most, 1)))
}

/// Degrees of tensor parallelism within a host, that heads can be dealt to.
fn tensors(sizes: &Sizes, hardware: &Hardware) -> Vec<usize> {
    let goes = |tensor: &usize| {
        let all = [hardware.per_host, hardware.ranks, sizes.heads];
        all.iter().all(|extent| extent.is_multiple_of(*tensor))
    };
    powers(hardware.per_host).filter(goes).collect()
}

/// 2, 4, 8 and so on, up to `most`.
fn powers(most: usize) -> impl Iterator<Item = usize> {
    (1..usize::BITS).map(|power| 1 << power).take_while(move |&power| power <= most)
}

fn context(sizes: &Sizes, bytes: &Bytes, hardware: &Hardware) -> Cut {
    let tensor = tensors(sizes, hardware).last().copied().unwrap_or(1);
    let data = hardware.ranks / tensor;
    let whole = Cut { kind: StrategyKind::Zero3, tensor, data, ..Cut::replicated(hardware.ranks) };
    let cuts = powers(data).filter(|&context| data.is_multiple_of(context));
    let mut cuts = cuts.map(|context| Cut { context, ..whole });
    cuts.find(|cut| cut.needed(sizes, bytes, 1) <= hardware.room()).unwrap_or(whole)
}

fn experts(sizes: &Sizes, hardware: &Hardware) -> Cut {
    let whole = Cut { kind: StrategyKind::Zero3, ..Cut::replicated(hardware.ranks) };
    let divides =
        |expert: &usize| whole.data.is_multiple_of(*expert) && sizes.experts.is_multiple_of(*expert);
    let expert = (1..=sizes.experts.min(whole.data)).rev().find(divides).unwrap_or(1);
    Cut { expert, ..whole }
}

fn why(leaf: Leaf, cut: &Cut, sizes: &Sizes) -> String {
    match leaf {
        Leaf::Ddp => "weights, gradients, state and the activations of a sample fit on one rank".to_owned(),
        Leaf::ShardGradOp => "gradients and state are what does not fit on one rank".to_owned(),
        Leaf::FullShard => "weights do not fit on one rank".to_owned(),
        Leaf::Tensor => format!(
            "a layer or its activations, or more than {DATA_RANKS_MAX} data ranks, ask for tensor = {}",
            cut.tensor
        ),
        Leaf::Pipeline => {
            format!("tensor parallelism ends with the host: {} stages across hosts", cut.pipeline)
        }
        Leaf::Context => format!("sequences of {}: {} ranks share each", sizes.sequence, cut.context),
        Leaf::Experts => format!("{} experts on {} ranks", sizes.experts, cut.expert),
    }
}

/// What the trainer would say of such a run.
fn missing(cut: &Cut) -> Option<String> {
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

fn too_large(sizes: &Sizes, bytes: &Bytes, hardware: &Hardware, cut: &Cut) -> String {
    let [need, room, layer, activations] = [
        cut.needed(sizes, bytes, 1),
        hardware.room(),
        cut.largest_layer(sizes, bytes),
        cut.activations(sizes),
    ]
    .map(|bytes| bytes / 1e9);
    let what =
        format!("{need:.1} GB for each of {} ranks, and there is room for {room:.1} GB", hardware.ranks);
    let of = format!("{layer:.1} GB the largest layer, {activations:.1} GB the activations of a sample");
    format!("{what} ({of}): more ranks, more memory, or --checkpointing")
}

/// What is usually done for models of this size.
pub fn rule_of_thumb(sizes: &Sizes) -> &'static str {
    match sizes.parameters {
        _ if sizes.experts > 1 => "experts dealt out, ZeRO-3 for the rest",
        _ if sizes.sequence >= LONG => "context and tensor parallel, ZeRO-3",
        small if small < 1e10 => "ZeRO-3 alone",
        middle if middle <= 7e10 => "ZeRO-3, tensor parallel within hosts",
        _ => "ZeRO-3, tensor parallel within hosts, stages across them",
    }
}
