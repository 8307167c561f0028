//! Communicators that a strategy works with.

use crate::error::Result;
use unisono::Communicator;

/// Groups that a strategy needs, for one rank of a mesh.
#[derive(Clone, Default)]
pub struct ProcessGroups {
    /// Data parallel group; `None` if this rank is alone.
    pub data: Option<Communicator>,
    /// Tensor parallel group; `None` if this rank is alone.
    pub tensor: Option<Communicator>,
}

impl ProcessGroups {
    /// Creates the groups. Sums over the tensor parallel group get a communicator of their own, so
    /// that they do not wait for the modules' operations.
    ///
    /// # Errors
    /// Fails if the communicator cannot be duplicated.
    pub fn new(data: Option<Communicator>, tensor: Option<&Communicator>) -> Result<Self> {
        let tensor = tensor.map(Communicator::duplicate).transpose()?;
        Ok(Self { data, tensor })
    }

    /// Creates groups without tensor parallelism.
    pub fn data_only(data: Option<Communicator>) -> Self {
        Self { data, tensor: None }
    }
}
