//! Device mesh: tensor, data and pipeline parallel ranks of a world, and the groups among them.
//!
//! A [`Mesh`] is pure arithmetic for a world of any size. [`MeshGroups`] holds its communicators.
//! The ranks are numbered along the axes of [`Degrees::order`].
//!
//! | part | file |
//! |---|---|
//! | axes, and their order | `axes` |
//! | groups of ranks that differ in some coordinates only | `kind` |
//! | a communicator for each group | `groups` |
//! | host and NUMA domain of a rank | `location` |
//! | warnings about groups that leave a host | `placement` |
//! | picture of a mesh, with hosts | `display` |
//! | random seeds by coordinates | `seeds` |

mod axes;
mod display;
mod groups;
mod kind;
mod location;
mod placement;
mod seeds;

pub use axes::{Axis, AxisOrder};
pub use display::MeshOnHosts;
pub use groups::MeshGroups;
pub use kind::GroupKind;
#[doc(hidden)]
pub use location::fuzz as fuzz_cores;
pub use location::{HostId, Location};
pub use seeds::{Phase, SeedSource};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use unisono_nn::error::{Error, Result};

/// Degrees of parallelism. The data parallel degree is the remaining factor of the world size.
///
/// The world has tensor × `sequence_data` × batch × pipeline ranks. Batch ranks have different
/// sequences. Two kinds of parallelism reuse ranks of others:
/// - Sequence parallelism (`strategy.sequence_parallel`) is folded into the tensor parallel ranks.
/// - Expert parallelism is folded into the data ranks, or a factor of batch if `expert_folded` is
///   false. The world then has tensor × `sequence_data` × replicas × expert × pipeline ranks.
///
/// [`Mesh::factors`] returns the factors of a mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Degrees {
    /// Number of ranks that share each layer.
    pub tensor: usize,
    /// Number of pipeline stages.
    pub pipeline: usize,
    /// Number of ranks that share each sequence. Must divide the data parallel degree. Sequences
    /// whose length it does not divide are padded.
    pub sequence_data: usize,
    /// Number of data ranks that divide the experts of each layer. Must divide the data parallel
    /// degree and the number of experts.
    pub expert: usize,
    /// Divides experts between any data ranks, also those that share sequences. Otherwise experts
    /// are an axis of their own: only ranks with different sequences divide them.
    pub expert_folded: bool,
    /// Axes from neighbors in the world outwards: `tensor`, `sequence_data`, `batch_data` and
    /// `pipeline`, each once.
    pub order: AxisOrder,
}

impl Default for Degrees {
    fn default() -> Self {
        Self {
            tensor: 1,
            pipeline: 1,
            sequence_data: 1,
            expert: 1,
            expert_folded: true,
            order: AxisOrder::default(),
        }
    }
}

/// World of ranks with valid degrees.
///
/// ```
/// use unisono_parallel::mesh::{Degrees, Mesh};
///
/// let mesh = Mesh::new(8, Degrees { tensor: 2, pipeline: 2, ..Degrees::default() })?;
/// assert_eq!(mesh.data_size(), 2);
/// assert_eq!(mesh.rank(mesh.coordinates(5)), 5);
/// # Ok::<(), unisono_nn::Error>(())
/// ```
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
pub const MAX_RANKS: usize = 1 << 24;

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
        // Degrees come from a configuration, and their product may not fit.
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

    /// Returns the number of ranks with the same part of the model and different sequences: the
    /// batch ranks.
    pub fn batch_data_size(&self) -> usize {
        self.data_size() / self.degrees.sequence_data
    }

    /// Returns the number of ranks with the same experts.
    pub fn expert_data_size(&self) -> usize {
        self.data_size() / self.degrees.expert
    }

    /// Returns the factors of the world size. Experts are one of them unless they are folded into
    /// the data ranks. Sequence parallelism never is: its ranks are the tensor parallel ranks.
    pub fn factors(&self) -> Vec<(&'static str, usize)> {
        let Degrees { tensor, pipeline, sequence_data, expert, expert_folded, .. } = self.degrees;
        let batch = self.batch_data_size();
        let of_batch = match expert_folded {
            true => vec![("batch", batch)],
            false => vec![("batch", batch / expert), ("expert", expert)],
        };
        let (inner, outer) = ([("tensor", tensor), ("sequence", sequence_data)], [("pipeline", pipeline)]);
        [&inner[..], &of_batch, &outer].concat()
    }

    /// Returns the rank among those that divide the experts of a layer.
    pub fn expert_rank(&self, coordinates: Coordinates) -> usize {
        match self.degrees.expert_folded {
            true => self.data_rank(coordinates) % self.degrees.expert,
            false => coordinates.batch_data % self.degrees.expert,
        }
    }

    /// Returns the number of ranks along `axis`.
    pub fn axis_size(&self, axis: Axis) -> usize {
        match axis {
            Axis::Tensor => self.degrees.tensor,
            Axis::SequenceData => self.degrees.sequence_data,
            Axis::BatchData => self.batch_data_size(),
            Axis::Pipeline => self.degrees.pipeline,
        }
    }

    /// Returns the coordinates of `rank`.
    ///
    /// # Panics
    /// Panics if the rank does not exist.
    pub fn coordinates(&self, rank: usize) -> Coordinates {
        assert!(rank < self.world_size, "rank {rank} of {}", self.world_size);
        self.place(Coordinates::default(), rank, self.degrees.order.axes())
    }

    /// Returns the rank at these coordinates, each of which is below the size of its axis.
    pub fn rank(&self, coordinates: Coordinates) -> usize {
        self.index(coordinates, self.degrees.order.axes())
    }

    /// Returns the rank among those with the same part of the model, which are numbered in the
    /// order of the world.
    pub fn data_rank(&self, coordinates: Coordinates) -> usize {
        self.index(coordinates, self.degrees.order.data_axes())
    }

    /// Returns the coordinates with this data rank, and otherwise those of `coordinates`.
    fn with_data_rank(&self, coordinates: Coordinates, data_rank: usize) -> Coordinates {
        self.place(coordinates, data_rank, self.degrees.order.data_axes())
    }

    /// Returns the number of `coordinates` along `axes`, whose first changes fastest.
    fn index(
        &self,
        coordinates: Coordinates,
        axes: impl IntoIterator<Item = Axis, IntoIter: DoubleEndedIterator>,
    ) -> usize {
        axes.into_iter().rev().fold(0, |index, axis| index * self.axis_size(axis) + coordinates.on(axis))
    }

    /// Returns the coordinates with number `index` along `axes`, and otherwise those of
    /// `coordinates`.
    fn place(
        &self,
        coordinates: Coordinates,
        index: usize,
        axes: impl IntoIterator<Item = Axis>,
    ) -> Coordinates {
        let step = |(coordinates, index): (Coordinates, usize), axis| {
            let size = self.axis_size(axis);
            (coordinates.with(axis, index % size), index / size)
        };
        axes.into_iter().fold((coordinates, index), step).0
    }
}

#[cfg(test)]
mod placement_tests;
#[cfg(test)]
mod tests;
