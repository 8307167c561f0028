//! Operations in host memory.

mod activation;
pub(crate) mod attention;
pub(crate) mod cross_entropy;
mod dropout;
mod instruction_sets;
mod norm;
mod rope;
mod rows;
pub(crate) mod vector;

pub use crate::ops::host::attention::AttentionShape;
pub(crate) use crate::ops::host::instruction_sets::InstructionSets;
pub use crate::ops::host::rope::Rotation;

use crate::allocator::Allocator;

/// Operations in host memory.
#[derive(Clone)]
pub struct Host {
    /// Number of threads for a matrix product.
    pub threads: usize,
    /// Allocator of workspaces.
    pub memory: Allocator,
}
