#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod comm;
mod group;
mod group_calls;
mod id;
pub mod result;

pub use comm::{Comm, NcclType, ReduceOp};
pub use group::Group;
pub use group_calls::{group_end, group_start};
pub use id::Id;
pub use result::{NcclError, NcclStatus};

/// The same names, as `cudarc::nccl::safe` has them.
pub mod safe {
    pub use crate::{Comm, Group, Id, NcclType, ReduceOp, group_end, group_start};
}
