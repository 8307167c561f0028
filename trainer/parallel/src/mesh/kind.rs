//! Kinds of groups, by the coordinates that their members share.

use super::{Coordinates, Degrees, Mesh};
use std::collections::BTreeMap;

/// Division of the world into groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum GroupKind {
    /// All ranks.
    World,
    /// Ranks with the same layers and tokens, and different parts of each layer.
    Tensor,
    /// Ranks with the same part of the model.
    Data,
    /// Ranks with the same part of each layer and the same tokens: the pipeline stages.
    Pipeline,
    /// Ranks with the same part of the model and the same sequences, and different chunks of them.
    SequenceData,
    /// Ranks with the same part of the model, and the same chunk of different sequences.
    BatchData,
    /// Ranks with the same layers.
    TensorAndData,
    /// Ranks with the same layers and sequences.
    TensorAndSequenceData,
    /// Ranks with the same sequences: one whole replica of the model.
    ModelAndSequenceData,
    /// Ranks with the same part of the model, which divide its experts.
    Expert,
    /// Ranks with the same part of the model and the same experts.
    ExpertData,
}

impl GroupKind {
    /// All kinds, in the order in which communicators are created.
    pub const ALL: [Self; 11] = [
        Self::World,
        Self::Tensor,
        Self::Data,
        Self::Pipeline,
        Self::SequenceData,
        Self::BatchData,
        Self::TensorAndData,
        Self::TensorAndSequenceData,
        Self::ModelAndSequenceData,
        Self::Expert,
        Self::ExpertData,
    ];

    /// Returns the coordinates that the members of a group share: those of its lowest rank.
    fn fixed_coordinates(self, mesh: &Mesh, coordinates: Coordinates) -> Coordinates {
        let Coordinates { tensor, sequence_data, batch_data, pipeline } = coordinates;
        let zero = Coordinates::default();
        match self {
            Self::World => zero,
            Self::Tensor => Coordinates { tensor: 0, ..coordinates },
            Self::Data => Coordinates { tensor, pipeline, ..zero },
            Self::Pipeline => Coordinates { pipeline: 0, ..coordinates },
            Self::SequenceData => Coordinates { sequence_data: 0, ..coordinates },
            Self::BatchData => Coordinates { tensor, sequence_data, pipeline, ..zero },
            Self::TensorAndData => Coordinates { pipeline, ..zero },
            Self::TensorAndSequenceData => Coordinates { batch_data, pipeline, ..zero },
            Self::ModelAndSequenceData => Coordinates { batch_data, ..zero },
            Self::Expert => mesh.lowest_in_expert_group(coordinates),
            Self::ExpertData => mesh.lowest_with_same_experts(coordinates),
        }
    }
}

impl Mesh {
    /// Returns all groups of a kind: ascending lists that contain each rank once.
    pub fn groups(&self, kind: GroupKind) -> Vec<Vec<usize>> {
        let mut groups = BTreeMap::<usize, Vec<usize>>::new();
        for rank in 0..self.world_size() {
            groups.entry(self.color(kind, rank)).or_default().push(rank);
        }
        groups.into_values().collect()
    }

    /// Returns the ranks of the group of `rank`, ascending.
    pub fn group(&self, kind: GroupKind, rank: usize) -> Vec<usize> {
        let color = self.color(kind, rank);
        (0..self.world_size()).filter(|&other| self.color(kind, other) == color).collect()
    }

    /// Returns the lowest rank of the group of `rank`, which identifies the group.
    pub(super) fn color(&self, kind: GroupKind, rank: usize) -> usize {
        self.rank(kind.fixed_coordinates(self, self.coordinates(rank)))
    }

    /// Returns the coordinates of the first rank of the expert group of the one at `coordinates`.
    fn lowest_in_expert_group(&self, coordinates: Coordinates) -> Coordinates {
        let Degrees { expert, expert_folded, .. } = self.degrees();
        match expert_folded {
            true => self.with_data_rank(coordinates, self.data_rank(coordinates) / expert * expert),
            false => Coordinates { batch_data: coordinates.batch_data / expert * expert, ..coordinates },
        }
    }

    /// Returns the coordinates of the first rank with the same experts as the one at `coordinates`.
    fn lowest_with_same_experts(&self, coordinates: Coordinates) -> Coordinates {
        match self.degrees().expert_folded {
            true => self.with_data_rank(coordinates, self.expert_rank(coordinates)),
            false => {
                Coordinates { batch_data: self.expert_rank(coordinates), sequence_data: 0, ..coordinates }
            }
        }
    }
}
