//! What a rank keeps and sends, by formula.
//!
//! Sources: Rajbhandari et al., "ZeRO", SC 2020, for what is kept and sent; Shoeybi et al., "Megatron-LM", arXiv 1909.08053, for what
//! ranks that share layers send; Korthikanti et al., "Reducing activation recomputation in large transformer models", MLSys
//! 2023, for how activations are counted.

use super::{Batch, Extents, network};
use crate::config::{Config, StrategyKind};
use crate::flat::{Bucket, Dtype, Layout, Packing};
use crate::mesh::Mesh;
use crate::models::{FeedForward, GptConfig, Norm};
use crate::optim::Optimiser;
use crate::parallel::{Settings, owners};
use crate::parameter::Inventory;

/// What the formulas go by: one rank's part of a run.
pub(super) struct Plan<'a> {
    pub(super) config: &'a Config,
    pub(super) extents: Extents,
    pub(super) inventory: &'a Inventory,
    pub(super) mesh: Mesh,
    pub(super) batch: Batch,
}

/// Bytes that a rank sends in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    /// In forward passes: gathered weights.
    pub forward: f64,
    /// In backward passes: gathered weights, reduced gradients.
    pub backward: f64,
    /// After the step of the optimiser: new weights.
    pub after: f64,
    /// Within layers that ranks share: activations and their gradients.
    pub layers: f64,
}

impl Traffic {
    /// In all.
    pub fn total(&self) -> f64 {
        self.forward + self.backward + self.after + self.layers
    }
}

impl Plan<'_> {
    /// Bytes of weights, gradients and optimiser's state that each rank keeps between backward and the step of the optimiser, and
    /// of activations when they are most. Padding is counted; where ranks differ, it is the one with most.
    pub(super) fn memory(&self, kind: StrategyKind, optimiser: &dyn Optimiser) -> [usize; 4] {
        let (settings, ranks) = (self.settings(kind), self.mesh.data());
        let layout = self.layout(kind, &settings);
        let sum = |bytes: &dyn Fn(&Bucket) -> usize| layout.buckets.iter().map(bytes).sum::<usize>();
        let weights = sum(&|bucket| bucket.count * bucket.dtype.size());
        let gradients = sum(&|bucket| trained(bucket) * gradient_dtype(&settings, bucket).size());
        let state = sum(&|bucket| self.state(bucket, optimiser));
        let activations = self.activations();
        let [of_weights, of_gradients, of_state] = divisors(kind, ranks);
        let state = match kind {
            StrategyKind::Zero1Parameters => self.of_busiest_owner(&layout, optimiser),
            _ => state / of_state,
        };
        [weights / of_weights, gradients / of_gradients, state, activations]
    }

    /// Bytes that each rank sends in a step: (N−1)/N of multiples of what there is.
    pub(super) fn traffic(&self, kind: StrategyKind) -> Traffic {
        let (settings, micro_batches) = (self.settings(kind), self.batch.accumulation as f64);
        let layout = self.layout(kind, &settings);
        let share = to_others(self.mesh.data());
        let sum =
            |bytes: &dyn Fn(&Bucket) -> usize| share * layout.buckets.iter().map(bytes).sum::<usize>() as f64;
        let weights = sum(&|bucket| bucket.count * bucket.dtype.size());
        let stepped = sum(&|bucket| trained(bucket) * bucket.dtype.size());
        let wire = |bucket: &Bucket| settings.wire.unwrap_or(gradient_dtype(&settings, bucket));
        let gradients = sum(&|bucket| trained(bucket) * wire(bucket).size());
        let [forward, backward, after] = exchanged(kind, micro_batches, weights, gradients, stepped);
        Traffic { forward, backward, after, layers: micro_batches * self.within_layers() }
    }

    /// Of one micro-batch: a sum over rows and features before and behind both parts of each block, on both ways.
    fn within_layers(&self) -> f64 {
        let model = &self.config.model;
        let numbers = self.batch.micro * model.context * model.width * Dtype::F32.size();
        let sums = 4 * model.layers;
        2.0 * to_others(self.mesh.degrees().tensor) * (numbers * sums) as f64
    }

    fn settings(&self, kind: StrategyKind) -> Settings {
        let mut config = self.config.clone();
        config.strategy.kind = kind;
        config.settings()
    }

    fn layout(&self, kind: StrategyKind, settings: &Settings) -> Layout {
        match kind {
            StrategyKind::Zero3 => settings.packed(self.inventory, self.mesh.data(), Packing::Units),
            StrategyKind::Zero1 | StrategyKind::Zero2 => settings.layout(self.inventory, self.mesh.data()),
            StrategyKind::Zero1Parameters => Layout::new(self.inventory, 1, Packing::Cap(0)),
            StrategyKind::Naive | StrategyKind::Overlapped | StrategyKind::Bucketed => {
                settings.layout(self.inventory, 1)
            }
        }
    }

    /// Moments, and a full copy of weights of 16 bits.
    fn state(&self, bucket: &Bucket, optimiser: &dyn Optimiser) -> usize {
        let moments = bucket.pieces.iter().map(|piece| optimiser.moments(&self.inventory[piece.parameter]));
        let copies = moments.max().unwrap_or(0) + usize::from(bucket.dtype == Dtype::Bf16);
        trained(bucket) * copies * Dtype::F32.size()
    }

    fn of_busiest_owner(&self, layout: &Layout, optimiser: &dyn Optimiser) -> usize {
        let ranks = self.mesh.data();
        let mut loads = vec![0; ranks];
        for (bucket, owner) in layout.buckets.iter().zip(owners(layout, ranks)) {
            loads[owner] += self.state(bucket, optimiser);
        }
        loads.into_iter().max().unwrap_or(0)
    }

    fn activations(&self) -> usize {
        let Config { model, strategy, .. } = self.config;
        let numbers = match self.extents {
            Extents::Tokens(vocabulary) => {
                let parts = self.mesh.degrees().tensor;
                let rows = if strategy.sequence_parallel { parts } else { 1 };
                model.context * of_token(&network::gpt(model, vocabulary), parts, rows)
            }
            Extents::Rows(features, classes) => features + 2 * model.hidden.iter().sum::<usize>() + classes,
        };
        self.batch.micro * numbers * Dtype::F32.size()
    }
}

/// How many ways a strategy cuts weights, gradients and the optimiser's state between so many data ranks.
pub(crate) fn divisors(kind: StrategyKind, ranks: usize) -> [usize; 3] {
    match kind {
        StrategyKind::Naive | StrategyKind::Overlapped | StrategyKind::Bucketed => [1, 1, 1],
        StrategyKind::Zero1Parameters | StrategyKind::Zero1 => [1, 1, ranks],
        StrategyKind::Zero2 => [1, ranks, ranks],
        StrategyKind::Zero3 => [ranks, ranks, ranks],
    }
}

/// What is sent forward, backward and after the step, of so many weights to gather, gradients to reduce and new weights to tell: an
/// all-reduce counts twice, as reduction and as gathering.
pub(crate) fn exchanged(
    kind: StrategyKind,
    micro_batches: f64,
    weights: f64,
    gradients: f64,
    stepped: f64,
) -> [f64; 3] {
    match kind {
        StrategyKind::Naive | StrategyKind::Overlapped | StrategyKind::Bucketed => {
            [0.0, 2.0 * gradients, 0.0]
        }
        StrategyKind::Zero1Parameters => [0.0, 2.0 * gradients, stepped],
        StrategyKind::Zero1 | StrategyKind::Zero2 => [0.0, gradients, stepped],
        StrategyKind::Zero3 => [micro_batches * weights, micro_batches * weights + gradients, 0.0],
    }
}

fn trained(bucket: &Bucket) -> usize {
    if bucket.trainable { bucket.count } else { 0 }
}

fn gradient_dtype(settings: &Settings, bucket: &Bucket) -> Dtype {
    if settings.wide_gradients { Dtype::F32 } else { bucket.dtype }
}

/// What each of so many ranks sends of what is reduced or gathered once.
pub(crate) fn to_others(ranks: usize) -> f64 {
    (ranks - 1) as f64 / ranks as f64
}

/// Numbers that a GPT keeps of each token, at the end of forward, or with checkpointing within a block's backward: layers are cut in
/// `parts`, and between them each rank has one of `rows` rows.
pub(crate) fn of_token(gpt: &GptConfig, parts: usize, rows: usize) -> usize {
    let width = gpt.width;
    let norm = (width + if gpt.norm == Norm::Layer { 2 } else { 1 }).div_ceil(rows);
    let attention = width + (4 * width + gpt.heads).div_ceil(parts);
    let between = if gpt.feed_forward == FeedForward::Gelu { 2 } else { 3 };
    let feed_forward = width + (between * gpt.hidden()).div_ceil(parts);
    let block = 2 * norm + attention + feed_forward;
    let head = norm + width + gpt.vocabulary.div_ceil(parts);
    match gpt.checkpoint {
        false => gpt.layers * block + head,
        true => gpt.layers * width.div_ceil(rows) + head.max(block + 2 * width),
    }
}
