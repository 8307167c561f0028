//! What a rank keeps and sends, by formula.
//!
//! Sources: Rajbhandari et al., "ZeRO", SC 2020, for what is kept and sent; Shoeybi et al., "Megatron-LM", arXiv 1909.08053, for what
//! ranks that share layers send; Korthikanti et al., "Reducing activation recomputation in large transformer models", MLSys
//! 2023, for how activations are counted.

mod activations;

use super::setup::optimiser;
use super::{Batch, Extents, network};
use crate::config::{Config, StrategyKind};
use crate::flat::{Bucket, Dtype, Layout};
use crate::mesh::Mesh;
use crate::optim::Optimiser;
use crate::parallel::{Kind, ReduceEach, Settings, owners};
use crate::parameter::{Inventory, UnitId};
pub(crate) use activations::Activations;

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
    /// In the step of the optimiser and after it: directions of whole matrices, new weights.
    pub after: f64,
    /// Within layers that ranks share: activations and their gradients, and gradients of which each has a part.
    pub layers: f64,
    /// Within sequences that ranks share: keys, values and their gradients.
    pub sequences: f64,
}

impl Traffic {
    /// In all.
    pub fn total(&self) -> f64 {
        self.forward + self.backward + self.after + self.layers + self.sequences
    }
}

impl Plan<'_> {
    /// Bytes of weights, gradients and optimiser's state that each rank keeps between backward and the step of the optimiser, and
    /// of activations when they are most, and of state that is offloaded. Padding is counted; where ranks differ, it is the one with
    /// most.
    pub(super) fn memory(&self, kind: StrategyKind, optimiser: &dyn Optimiser) -> [usize; 5] {
        let (settings, ranks) = (self.settings(kind), self.mesh.data());
        let layout = settings.layout(kind.strategy(), self.inventory, ranks);
        let sum = |bytes: &dyn Fn(&Bucket) -> usize| layout.buckets.iter().map(bytes).sum::<usize>();
        let weights = sum(&|bucket| bucket.count * bucket.dtype.size());
        let gradients = sum(&|bucket| trained(bucket) * bucket.gradients.size());
        let state = sum(&|bucket| self.state(bucket, optimiser));
        let [of_weights, of_gradients, of_state] = divisors(kind, ranks);
        let state = match kind.strategy() {
            Kind::Owners => self.of_busiest_owner(&layout, optimiser),
            _ => state / of_state,
        };
        let (state, offloaded) = if settings.offload.is_some() { (0, state) } else { (state, 0) };
        [weights / of_weights, gradients / of_gradients, state, self.activations(), offloaded]
    }

    /// Bytes that each rank sends in a step: (N−1)/N of multiples of what there is.
    pub(super) fn traffic(&self, kind: StrategyKind) -> Traffic {
        let (settings, micro_batches) = (self.settings(kind), self.batch.accumulation as f64);
        let passes = self.batch.passes() as f64;
        let layout = settings.layout(kind.strategy(), self.inventory, self.mesh.data());
        let share = to_others(self.mesh.data());
        let sum =
            |bytes: &dyn Fn(&Bucket) -> usize| share * layout.buckets.iter().map(bytes).sum::<usize>() as f64;
        let stepped = sum(&|bucket| trained(bucket) * bucket.dtype.size());
        let wire = |bucket: &Bucket| settings.wire.unwrap_or(bucket.gradients);
        let gradients = sum(&|bucket| trained(bucket) * wire(bucket).size());
        let each = settings.reduce_each == ReduceEach::MicroBatch && kind.keeps_shares();
        let gradients = if each { passes * gradients } else { gradients };
        let [ahead, again] = self.gathered(&layout).map(|bytes| passes * share * bytes as f64);
        let again = if settings.reshard_after_forward { again } else { 0.0 };
        let [forward, backward, after] = exchanged(kind, [ahead, again], gradients, stepped);
        let after = after + self.within_optimiser(kind, &layout);
        let [layers, sequences] =
            [self.within_layers(), self.within_sequences()].map(|bytes| micro_batches * bytes);
        let layers = layers + if each { passes } else { 1.0 } * self.partial_gradients();
        Traffic { forward, backward, after, layers, sequences }
    }

    /// Of the step of the optimiser: directions of matrices that it takes as wholes, from shares and from parts.
    fn within_optimiser(&self, kind: StrategyKind, layout: &Layout) -> f64 {
        let optimiser = optimiser(self.config);
        let shares = to_others(if kind.cuts_state() { self.mesh.data() } else { 1 });
        let parts = (self.mesh.degrees().tensor - 1) as f64;
        let of = |bucket: &Bucket| {
            let parameter = &self.inventory[bucket.pieces.first()?.parameter];
            optimiser.matrix(parameter)?;
            let part = if parameter.cut.is_some() { parts * parameter.count() as f64 } else { 0.0 };
            Some(shares * bucket.count as f64 + part)
        };
        layout.buckets.iter().filter(|bucket| bucket.trainable).filter_map(of).sum::<f64>()
            * Dtype::F32.size() as f64
    }

    /// Of one step: the sums of gradients of which ranks that share layers have a part each.
    fn partial_gradients(&self) -> f64 {
        let partial =
            self.inventory.parameters.iter().filter(|parameter| parameter.partial && parameter.trainable);
        let bytes = partial.map(|parameter| parameter.count() * Dtype::F32.size()).sum::<usize>();
        2.0 * to_others(self.mesh.degrees().tensor) * bytes as f64
    }

    /// Bytes of the weights that a pass gathers, forward and back: those of each unit and those that it borrows, but for the
    /// last unit once.
    fn gathered(&self, layout: &Layout) -> [usize; 2] {
        let size = |bucket| layout[bucket].count * layout[bucket].dtype.size();
        let of_unit = |unit| layout.buckets_of(self.inventory, UnitId(unit)).into_iter().map(size).sum();
        let units: Vec<usize> = (0..self.inventory.units.len()).map(of_unit).collect();
        let forward = units.iter().sum();
        [forward, forward - units.last().copied().unwrap_or(0)]
    }

    /// Of one micro-batch: of each block the keys and values of all its tokens, gathered on each way through it, and the sum of
    /// their gradients.
    fn within_sequences(&self) -> f64 {
        let (model, degrees) = (&self.config.model, self.mesh.degrees());
        let width = model.heads.div_ceil(degrees.tensor) * (model.width / model.heads);
        let numbers = self.batch.micro * model.context * 2 * width * Dtype::F32.size();
        let times = if model.checkpointing { 4 } else { 3 };
        to_others(degrees.sequence_data) * (times * model.layers * numbers) as f64
    }

    /// Of one micro-batch: sums over rows and features before and behind both parts of each block, on both ways, those behind again
    /// where forward is done again; behind the embedding and before the head; and three numbers of each row for the loss.
    fn within_layers(&self) -> f64 {
        let (model, chunks) = (&self.config.model, self.mesh.degrees().sequence_data);
        let rows = self.batch.micro * model.context / chunks;
        let sums = (if model.checkpointing { 6 } else { 4 }) * model.layers + 2;
        2.0 * to_others(self.mesh.degrees().tensor)
            * (rows * (sums * model.width + 3) * Dtype::F32.size()) as f64
    }

    fn settings(&self, kind: StrategyKind) -> Settings {
        let mut config = self.config.clone();
        config.strategy.kind = kind;
        config.settings()
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
        let (micro, breadth) = (self.batch.micro, self.batch.breadth);
        let numbers = match self.extents {
            Extents::Tokens(vocabulary) => {
                let degrees = self.mesh.degrees();
                let rows = if strategy.sequence_parallel { degrees.tensor } else { 1 };
                let (parts, chunks) = (degrees.tensor, degrees.sequence_data);
                let gpt = &network::gpt(model, vocabulary);
                Activations { gpt, parts, rows, chunks, micro, breadth }.most()
            }
            Extents::Rows(features, classes) => {
                micro * breadth * (features + 2 * model.hidden.iter().sum::<usize>() + classes)
            }
        };
        numbers * Dtype::F32.size()
    }
}

/// How many ways a strategy cuts weights, gradients and the optimiser's state between so many data ranks.
pub(crate) fn divisors(kind: StrategyKind, ranks: usize) -> [usize; 3] {
    match kind.strategy() {
        Kind::Replicated => [1, 1, 1],
        Kind::Owners | Kind::Zero1 => [1, 1, ranks],
        Kind::Zero2 => [1, ranks, ranks],
        Kind::Zero3 => [ranks, ranks, ranks],
    }
}

/// What is sent forward, backward and after the step, of weights gathered forward and again backward, gradients to reduce and new
/// weights to tell: an all-reduce counts twice, as reduction and as gathering.
pub(crate) fn exchanged(
    kind: StrategyKind,
    [ahead, again]: [f64; 2],
    gradients: f64,
    stepped: f64,
) -> [f64; 3] {
    match kind.strategy() {
        Kind::Replicated => [0.0, 2.0 * gradients, 0.0],
        Kind::Owners => [0.0, 2.0 * gradients, stepped],
        Kind::Zero1 | Kind::Zero2 => [0.0, gradients, stepped],
        Kind::Zero3 => [ahead, again + gradients, 0.0],
    }
}

fn trained(bucket: &Bucket) -> usize {
    if bucket.trainable { bucket.count } else { 0 }
}

/// What each of so many ranks sends of what is reduced or gathered once.
pub(crate) fn to_others(ranks: usize) -> f64 {
    (ranks - 1) as f64 / ranks as f64
}
