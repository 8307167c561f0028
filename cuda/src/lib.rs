//! Element types, reduction operations, and the code that combines memory.
//!
//! [`reduce`] and its relatives run on the CPU. The kernels of `cuda/kernels` compute the same on a
//! GPU. [`device`] has GPU memory, streams and launches.

pub mod device;
mod dtype;
mod element;
#[cfg(feature = "emulator")]
pub mod emulator;
mod float8;
mod host;
mod memory;
pub mod raw;
mod reduce_kind;
mod structured;
#[cfg(feature = "emulator")]
pub mod test_gpu;

pub use crate::reduce_kind::{PostOp, ReduceKind, Scalar};
#[cfg(feature = "gpu")]
pub use cudarc;
pub use dtype::{DType, DTypeClass};
pub use element::{Element, as_bytes, as_bytes_mut};
pub use float8::{F8E4M3, F8E5M2};
pub use half::{bf16, f16};
#[cfg(feature = "matmul")]
pub use host::matmul::{Matrix, MatrixMut, matmul};
pub use host::{
    Store, average, block_square_sums, clip_factor, copy, copy_into, copy_to, fill, narrow, pack, reduce,
    reduce_among, reduce_assign, reduce_assign_into, reduce_by, reduce_into, reduce_to, scale,
    scale_and_clip, unpack, widen,
};
pub use memory::{Source, Target};
pub use num_complex::{self, Complex};
pub use structured::{Bool, Locatable, Located};
