//! Operations in host memory.

mod activation;
pub(crate) mod cross_entropy;
mod dropout;
mod norm;
mod rope;
mod rows;
pub(crate) mod vector;

pub use crate::ops::host::rope::Rotation;

/// Operations in host memory.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// Number of threads for a matrix product.
    pub threads: usize,
}
