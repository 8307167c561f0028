//! Operations in host memory.

mod activation;
pub(crate) mod attention;
pub mod cross_entropy;
mod dropout;
mod instruction_sets;
mod norm;
mod rope;
mod rows;
pub mod vector;

pub use crate::ops::host::attention::AttentionShape;
pub use crate::ops::host::instruction_sets::InstructionSets;
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
