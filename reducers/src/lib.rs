//! Element types, reduction operations, and the CPU code that reduces and copies memory.
//!
//! [`reduce`] and its relatives combine memory that a peer may write at the same time, so they take
//! [`Source`] and [`Target`] in place of slices. They use AVX-512, AVX2 or portable code, depending
//! on the processor, and all three give the same bits.

mod dtype;
mod element;
mod float8;
mod host;
mod memory;
mod plain;
pub mod raw;
mod reduce_kind;
mod structured;

pub use crate::reduce_kind::{PostOp, ReduceKind, Scalar};
pub use dtype::{DType, DTypeClass};
pub use element::{Element, as_bytes, as_bytes_mut};
pub use float8::{F8E4M3, F8E5M2};
pub use half::{bf16, f16};
pub use host::{
    Store, average, block_square_sums, clip_factor, copy, copy_into, copy_to, fill, instruction_set, narrow,
    pack, reduce, reduce_among, reduce_assign, reduce_assign_into, reduce_by, reduce_into, reduce_to, scale,
    scale_and_clip, unpack, widen,
};
pub use memory::{Source, Target};
pub use num_complex::{self, Complex};
pub use plain::Plain;
pub use structured::{Bool, Locatable, Located};
