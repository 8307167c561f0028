//! The ranks that a strategy works with.

use crate::error::Result;
use unisono::Communicator;

/// The groups of one rank of a mesh that a strategy needs.
#[derive(Clone, Default)]
pub struct ProcessGroups {
    /// The ranks that share the data; none where this one is alone.
    pub data: Option<Communicator>,
    /// The ranks that share every layer; none where this one is alone.
    pub tensor: Option<Communicator>,
}

impl ProcessGroups {
    /// Of these groups. Sums over the tensor-parallel group get a communicator of their own, so that they need not wait for
    /// what modules do on the other.
    ///
    /// # Errors
    /// If ranks cannot meet.
    pub fn new(data: Option<Communicator>, tensor: Option<&Communicator>) -> Result<Self> {
        let tensor = tensor.map(Communicator::duplicate).transpose()?;
        Ok(Self { data, tensor })
    }

    /// With the ranks that share the data alone.
    pub fn data_only(data: Option<Communicator>) -> Self {
        Self { data, tensor: None }
    }
}
