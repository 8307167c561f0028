//! The named groups: which ranks have something in common.

use super::{Coordinates, Mesh};
use std::collections::BTreeMap;

/// A way to divide the world into groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum GroupKind {
    /// All ranks.
    World,
    /// The same layers, the same tokens: parts of each layer.
    Tensor,
    /// The same part of the model.
    Data,
    /// The same part of each layer, the same tokens: the stages.
    Pipeline,
    /// The same part of the model, the same sequences: parts of each sequence.
    SequenceData,
    /// The same part of the model, the same part of other sequences.
    BatchData,
    /// The same layers.
    TensorAndData,
    /// The same layers, the same sequences.
    TensorAndSequenceData,
    /// The same sequences: one whole replica of the model.
    ModelAndSequenceData,
}

impl GroupKind {
    /// All of them, in the order in which their communicators are made.
    pub const ALL: [Self; 9] = [
        Self::World,
        Self::Tensor,
        Self::Data,
        Self::Pipeline,
        Self::SequenceData,
        Self::BatchData,
        Self::TensorAndData,
        Self::TensorAndSequenceData,
        Self::ModelAndSequenceData,
    ];

    /// What the members of a group have in common: coordinates on the axes along which they do not differ.
    fn fixed_coordinates(self, at: Coordinates) -> Coordinates {
        let Coordinates { tensor, sequence_data, batch_data, pipeline } = at;
        let zero = Coordinates::default();
        match self {
            Self::World => zero,
            Self::Tensor => Coordinates { tensor: 0, ..at },
            Self::Data => Coordinates { tensor, pipeline, ..zero },
            Self::Pipeline => Coordinates { pipeline: 0, ..at },
            Self::SequenceData => Coordinates { sequence_data: 0, ..at },
            Self::BatchData => Coordinates { tensor, sequence_data, pipeline, ..zero },
            Self::TensorAndData => Coordinates { pipeline, ..zero },
            Self::TensorAndSequenceData => Coordinates { batch_data, pipeline, ..zero },
            Self::ModelAndSequenceData => Coordinates { batch_data, ..zero },
        }
    }
}

impl Mesh {
    /// All groups of a kind: lists of ascending ranks, each rank in exactly one of them.
    pub fn groups(&self, kind: GroupKind) -> Vec<Vec<usize>> {
        let mut groups = BTreeMap::<usize, Vec<usize>>::new();
        for rank in 0..self.world_size() {
            groups.entry(self.color(kind, rank)).or_default().push(rank);
        }
        groups.into_values().collect()
    }

    /// The ranks of the group of `rank`, ascending.
    pub fn group(&self, kind: GroupKind, rank: usize) -> Vec<usize> {
        let color = self.color(kind, rank);
        (0..self.world_size()).filter(|&other| self.color(kind, other) == color).collect()
    }

    /// The lowest rank of the group of `rank`: a name that no other group of this kind has.
    pub(super) fn color(&self, kind: GroupKind, rank: usize) -> usize {
        self.rank(kind.fixed_coordinates(self.coordinates(rank)))
    }
}
