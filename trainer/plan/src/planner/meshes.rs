//! Meshes that a plan may propose.
//!
//! Tensor parallel groups stay within a host, and pipeline stages are whole hosts. Ranks divide
//! sequences, or shard weights over more than [`MAX_USEFUL_DATA_RANKS`] ranks, only where a model
//! needs it. Experts are divided between expert parallel ranks, and ZeRO shards everything else.

use crate::batch_plan::factors;
use crate::cost::{Hardware, MAX_USEFUL_DATA_RANKS, ModelShape, ParallelConfig};
use unisono_parallel::data_parallel::ParallelKind;
use unisono_parallel::data_parallel::ShardGroups;
use unisono_parallel::mesh::{Degrees, Mesh};

/// Number of tokens from which a sequence counts as very long.
pub(crate) const LONG_SEQUENCE: usize = 128 << 10;

/// Set of meshes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Allowed {
    /// Meshes of the usual rules.
    Usual,
    /// Also meshes for models that fit on no usual one.
    Needed,
}

/// Returns the meshes of this model and hardware, with strategies and activation checkpointing.
pub(crate) fn legal(shape: &ModelShape, hardware: &Hardware, allowed: Allowed) -> Vec<ParallelConfig> {
    let tensors = [1].into_iter().chain(tensor_degrees(shape, hardware));
    let factors = tensors.flat_map(|tensor| {
        let stages = stage_counts(shape, hardware, tensor, allowed);
        stages.into_iter().map(move |pipeline| (tensor, pipeline))
    });
    let meshes = factors.flat_map(|(tensor, pipeline)| on(shape, hardware, allowed, tensor, pipeline));
    meshes.filter(|parallel| parallel.divides_into(shape.shard_ranks)).collect()
}

/// Returns the meshes with these tensor and pipeline degrees.
fn on(
    shape: &ModelShape,
    hardware: &Hardware,
    allowed: Allowed,
    tensor: usize,
    pipeline: usize,
) -> Vec<ParallelConfig> {
    let data = hardware.ranks / (tensor * pipeline);
    let base = ParallelConfig { tensor, pipeline, data, ..ParallelConfig::replicated(data) };
    let contexts = context_degrees(shape, data, allowed).into_iter();
    let meshes = contexts.flat_map(|context| {
        let experts = expert_degrees(shape, data).into_iter();
        experts.map(move |expert| ParallelConfig { context, expert, ..base })
    });
    let strategies = strategies(shape, data, allowed);
    let recomputes = [shape.gpt.activation_checkpointing, true];
    let recomputes = if recomputes[0] { &recomputes[1..] } else { &recomputes[..] };
    let variants = |mesh: ParallelConfig| {
        let choices = strategies.iter().flat_map(|&kind| recomputes.iter().map(move |&again| (kind, again)));
        choices.map(move |(kind, activation_checkpointing)| ParallelConfig {
            kind,
            activation_checkpointing,
            ..mesh
        })
    };
    meshes.flat_map(variants).collect()
}

/// Returns the tensor parallel degrees from 2, within a host, that divide the heads. They divide or
/// repeat the heads of keys and values.
pub(crate) fn tensor_degrees(shape: &ModelShape, hardware: &Hardware) -> Vec<usize> {
    let extents = [hardware.per_host, hardware.ranks, shape.gpt.heads];
    let goes = |tensor: &usize| {
        let divides = extents.iter().all(|extent| extent.is_multiple_of(*tensor));
        divides && shape.gpt.shares_kv_heads(*tensor)
    };
    powers_of_two(hardware.per_host).filter(|&tensor| tensor > 1).filter(goes).collect()
}

/// Returns the numbers of pipeline stages: whole hosts, each with a layer. Stages divide a host
/// only where a model needs it.
fn stage_counts(shape: &ModelShape, hardware: &Hardware, tensor: usize, allowed: Allowed) -> Vec<usize> {
    let Hardware { ranks, per_host, .. } = *hardware;
    let are_hosts = |stages: usize| (ranks / stages).is_multiple_of(per_host) || allowed == Allowed::Needed;
    let goes = |&stages: &usize| ranks.is_multiple_of(tensor * stages) && (stages == 1 || are_hosts(stages));
    powers_of_two(shape.gpt.layers).filter(goes).collect()
}

/// Returns the numbers of ranks that share each sequence: several only for long sequences.
fn context_degrees(shape: &ModelShape, data: usize, allowed: Allowed) -> Vec<usize> {
    let context = shape.gpt.context;
    let limit = if context >= LONG_SEQUENCE || allowed == Allowed::Needed { data } else { 1 };
    let goes = |ranks: &usize| data.is_multiple_of(*ranks) && context.is_multiple_of(*ranks);
    powers_of_two(limit).filter(goes).collect()
}

/// Returns the expert parallel degrees: all above 1 that divide the experts and the data ranks, or
/// 1 if there are none.
pub(crate) fn expert_degrees(shape: &ModelShape, data: usize) -> Vec<usize> {
    let mut degrees = factors(shape.experts());
    degrees.retain(|degree| data.is_multiple_of(*degree));
    if degrees.len() > 1 { degrees.split_off(1) } else { degrees }
}

fn strategies(shape: &ModelShape, data: usize, allowed: Allowed) -> Vec<ParallelKind> {
    if data == 1 {
        return vec![ParallelKind::Replicated];
    }
    let shard_ranks = ShardGroups::new(shape.shard_ranks, data).shards;
    let few = shard_ranks <= MAX_USEFUL_DATA_RANKS || allowed == Allowed::Needed;
    let goes = |kind: &ParallelKind| match kind {
        ParallelKind::Zero3 => few,
        kind => shape.experts() == 1 || kind.shards_gradients(),
    };
    ParallelKind::ALL.into_iter().filter(goes).collect()
}

/// Returns 1, 2, 4 and so on, up to `most`.
pub(crate) fn powers_of_two(most: usize) -> impl Iterator<Item = usize> {
    (0..usize::BITS).map(|power| 1 << power).take_while(move |&power| power <= most)
}

impl ParallelConfig {
    /// Returns the degrees of the mesh.
    pub fn degrees(&self) -> Degrees {
        Degrees {
            tensor: self.tensor,
            pipeline: self.pipeline,
            sequence_data: self.context,
            expert: self.expert,
            ..Degrees::default()
        }
    }

    /// Returns the mesh.
    ///
    /// # Errors
    /// Fails if the degrees do not divide their axes.
    pub fn mesh(&self) -> unisono_nn::error::Result<Mesh> {
        Mesh::new(self.tensor * self.pipeline * self.data, self.degrees())
    }

    /// Returns the number of ranks with different samples.
    pub fn batch_ranks(&self) -> usize {
        self.data / self.context
    }

    /// Returns the degrees in words, without those of 1.
    pub(crate) fn words(&self) -> String {
        let named = [
            ("tensor", self.tensor),
            ("pipeline", self.pipeline),
            ("data", self.data),
            ("context", self.context),
            ("expert", self.expert),
        ];
        let words = named.iter().filter(|(_, degree)| *degree > 1);
        let words: Vec<_> = words.map(|(name, degree)| format!("{name} {degree}")).collect();
        if words.is_empty() { "one rank".to_owned() } else { words.join(" x ") }
    }
}
