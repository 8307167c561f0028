//! Axes of a mesh, and the order in which they number the ranks.

use super::Coordinates;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use unisono_nn::error::{Error, Result};

/// Axis of a mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// Parts of each layer.
    Tensor,
    /// Parts of each sequence.
    SequenceData,
    /// Groups of sequences.
    BatchData,
    /// Pipeline stages.
    Pipeline,
}

impl Axis {
    /// All axes, in the usual order.
    pub const ALL: [Self; 4] = [Self::Tensor, Self::SequenceData, Self::BatchData, Self::Pipeline];

    /// Returns the name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tensor => "tensor",
            Self::SequenceData => "sequence_data",
            Self::BatchData => "batch_data",
            Self::Pipeline => "pipeline",
        }
    }
}

/// Order of all axes: ranks next to each other in the world differ on the first axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Vec<Axis>", into = "Vec<Axis>")]
#[schemars(with = "Vec<Axis>")]
pub struct AxisOrder([Axis; 4]);

impl AxisOrder {
    /// Stages next to each other in the world, and data ranks apart.
    pub const PIPELINE_FIRST: Self =
        Self([Axis::Tensor, Axis::Pipeline, Axis::SequenceData, Axis::BatchData]);

    /// Creates an order that has each axis once.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the missing axis.
    pub fn new(axes: &[Axis]) -> Result<Self> {
        if let Some(missing) = Axis::ALL.into_iter().find(|axis| !axes.contains(axis)) {
            return Err(Error::invalid(format!(
                "mesh.order names each axis once, and not {}",
                missing.name()
            )));
        }
        let array = axes.try_into().map_err(|_| {
            Error::invalid(format!("mesh.order names {} axes: a mesh has {}", axes.len(), Axis::ALL.len()))
        })?;
        Ok(Self(array))
    }

    /// Returns all orders.
    pub fn all() -> impl Iterator<Item = Self> {
        let order = |number: usize| {
            let (mut left, mut number) = (Axis::ALL.to_vec(), number);
            let axes = (1..=4).rev().map(|count| {
                let axis = left.remove(number % count);
                number /= count;
                axis
            });
            let axes: Vec<_> = axes.collect();
            Self::new(&axes).expect("each axis once")
        };
        (0..24).map(order)
    }

    /// Returns the axes, from neighbors in the world outwards.
    pub fn axes(self) -> [Axis; 4] {
        self.0
    }

    /// Returns the axes of data ranks, from neighbors outwards.
    pub(super) fn data_axes(self) -> impl DoubleEndedIterator<Item = Axis> {
        self.0.into_iter().filter(|axis| matches!(axis, Axis::SequenceData | Axis::BatchData))
    }
}

impl Default for AxisOrder {
    fn default() -> Self {
        Self(Axis::ALL)
    }
}

impl TryFrom<Vec<Axis>> for AxisOrder {
    type Error = Error;

    fn try_from(axes: Vec<Axis>) -> Result<Self> {
        Self::new(&axes)
    }
}

impl From<AxisOrder> for Vec<Axis> {
    fn from(order: AxisOrder) -> Self {
        order.0.to_vec()
    }
}

/// Lists the names with commas between them, as an override of `mesh.order` takes them.
impl std::fmt::Display for AxisOrder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.map(Axis::name).join(","))
    }
}

impl Coordinates {
    /// Returns the coordinate on `axis`.
    pub fn on(self, axis: Axis) -> usize {
        match axis {
            Axis::Tensor => self.tensor,
            Axis::SequenceData => self.sequence_data,
            Axis::BatchData => self.batch_data,
            Axis::Pipeline => self.pipeline,
        }
    }

    /// Replaces the coordinate on `axis`.
    pub fn with(mut self, axis: Axis, value: usize) -> Self {
        let coordinate = match axis {
            Axis::Tensor => &mut self.tensor,
            Axis::SequenceData => &mut self.sequence_data,
            Axis::BatchData => &mut self.batch_data,
            Axis::Pipeline => &mut self.pipeline,
        };
        *coordinate = value;
        self
    }
}
