//! Device mesh: tensor, data and pipeline parallel ranks of a world, and the groups among them.
//!
//! A [`Mesh`] is pure arithmetic for a world of any size. [`MeshGroups`] holds its communicators.

mod display;
mod groups;
mod hosts;
mod kind;
mod seeds;

pub use groups::MeshGroups;
pub use hosts::HostId;
pub use kind::GroupKind;
pub use seeds::{Phase, SeedSource};

use crate::error::{Error, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Degrees of parallelism. The data parallel degree is the remaining factor of the world size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Degrees {
    /// Number of ranks that share each layer.
    pub tensor: usize,
    /// Number of pipeline stages.
    pub pipeline: usize,
    /// Number of ranks that share each sequence. Must divide the data parallel degree and the
    /// sequence length.
    pub sequence_data: usize,
    /// Number of data ranks that share the experts of each layer. Must divide the data parallel
    /// degree and the number of experts.
    pub expert: usize,
    /// Shares experts among all data ranks, also those that share sequences. Otherwise experts are
    /// an axis of their own: ranks with different sequences share them.
    pub expert_folded: bool,
    /// Makes neighboring stages neighbors in the world, instead of neighboring data ranks.
    pub pipeline_first: bool,
}

impl Default for Degrees {
    fn default() -> Self {
        Self {
            tensor: 1,
            pipeline: 1,
            sequence_data: 1,
            expert: 1,
            expert_folded: true,
            pipeline_first: false,
        }
    }
}

/// World of ranks with valid degrees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mesh {
    world_size: usize,
    degrees: Degrees,
}

/// Coordinates of a rank on the four axes of a mesh.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Coordinates {
    /// Part of each layer.
    pub tensor: usize,
    /// Part of each sequence.
    pub sequence_data: usize,
    /// Group of sequences.
    pub batch_data: usize,
    /// Pipeline stage.
    pub pipeline: usize,
}

/// Limit on ranks beyond any real world.
const MAX_RANKS: usize = 1 << 24;

impl Mesh {
    /// Creates a mesh of `world` ranks with these degrees.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the numbers and the violated rule.
    pub fn new(world: usize, degrees: Degrees) -> Result<Self> {
        let Degrees { tensor, pipeline, sequence_data, expert, .. } = degrees;
        let named = [
            ("world", world),
            ("tensor", tensor),
            ("pipeline", pipeline),
            ("sequence_data", sequence_data),
            ("expert", expert),
        ];
        if let Some((name, _)) = named.into_iter().find(|&(_, degree)| degree == 0) {
            return Err(Error::invalid(format!("{name} = 0: a degree is at least 1")));
        }
        if world > MAX_RANKS {
            return Err(Error::invalid(format!("a world of {world} ranks: there may be {MAX_RANKS}")));
        }
        let model = tensor.checked_mul(pipeline).filter(|&model| world.is_multiple_of(model));
        let Some(model) = model else {
            let what = format!(
                "a world of {world} ranks cannot be split into tensor = {tensor} times pipeline = {pipeline}"
            );
            return Err(Error::invalid(format!("{what}: their product must divide it")));
        };
        let data = world / model;
        if !data.is_multiple_of(sequence_data) {
            let what =
                format!("sequence_data = {sequence_data} does not divide the data parallel degree {data}");
            let sum = format!("{data} = {world} ranks / (tensor {tensor} * pipeline {pipeline})");
            return Err(Error::invalid(format!("{what}, where {sum}")));
        }
        let mesh = Self { world_size: world, degrees };
        mesh.check_experts().map(|()| mesh)
    }

    /// Checks that expert parallel groups divide the data ranks.
    fn check_experts(&self) -> Result<()> {
        let Degrees { expert, expert_folded, sequence_data, .. } = self.degrees;
        let data = self.data_size();
        if data.is_multiple_of(expert) && (expert_folded || self.batch_data_size().is_multiple_of(expert)) {
            return Ok(());
        }
        let (name, among) = match expert_folded {
            true => ("data parallel degree", data),
            false => ("number of ranks with different sequences", self.batch_data_size()),
        };
        let what = format!("expert = {expert} does not divide the {name} {among}");
        let sum = match expert_folded {
            true => format!("{} ranks / {}", self.world_size, self.world_size / data),
            false => format!("data {data} / sequence_data {sequence_data}"),
        };
        Err(Error::invalid(format!("{what}, where {among} = {sum}")))
    }

    /// Returns the number of ranks.
    pub fn world_size(&self) -> usize {
        self.world_size
    }

    /// Returns the degrees of parallelism.
    pub fn degrees(&self) -> Degrees {
        self.degrees
    }

    /// Returns the data parallel degree: the number of ranks with the same part of the model.
    pub fn data_size(&self) -> usize {
        self.world_size / (self.degrees.tensor * self.degrees.pipeline)
    }

    /// Returns the number of ranks with the same part of the model and different sequences.
    pub fn batch_data_size(&self) -> usize {
        self.data_size() / self.degrees.sequence_data
    }

    /// Returns the number of ranks with the same experts.
    pub fn expert_data_size(&self) -> usize {
        self.data_size() / self.degrees.expert
    }

    /// Returns the rank among those that share the experts of a layer.
    pub fn expert_rank(&self, at: Coordinates) -> usize {
        match self.degrees.expert_folded {
            true => self.data_rank(at) % self.degrees.expert,
            false => at.batch_data % self.degrees.expert,
        }
    }

    /// Returns the coordinates of `rank`.
    ///
    /// # Panics
    /// Panics if the rank does not exist.
    pub fn coordinates(&self, rank: usize) -> Coordinates {
        assert!(rank < self.world_size, "rank {rank} of {}", self.world_size);
        let Degrees { tensor, pipeline, sequence_data, pipeline_first, .. } = self.degrees;
        let (outer, data_degree) = (rank / tensor, self.data_size());
        let (data, stage) = match pipeline_first {
            true => (outer / pipeline, outer % pipeline),
            false => (outer % data_degree, outer / data_degree),
        };
        Coordinates {
            tensor: rank % tensor,
            sequence_data: data % sequence_data,
            batch_data: data / sequence_data,
            pipeline: stage,
        }
    }

    /// Returns the rank at these coordinates.
    pub fn rank(&self, at: Coordinates) -> usize {
        let Degrees { tensor, pipeline, pipeline_first, .. } = self.degrees;
        let outer = match pipeline_first {
            true => self.data_rank(at) * pipeline + at.pipeline,
            false => at.pipeline * self.data_size() + self.data_rank(at),
        };
        outer * tensor + at.tensor
    }

    /// Returns the rank among those with the same part of the model.
    pub fn data_rank(&self, at: Coordinates) -> usize {
        at.batch_data * self.degrees.sequence_data + at.sequence_data
    }
}

#[cfg(test)]
mod tests;
