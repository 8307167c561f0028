#![doc = include_str!("../README.md")]

mod call;
mod error;
mod extension;
mod gradients;
mod module;
mod tensor;

pub use error::{Error, Result};
pub use extension::{Call, CollectiveOps};
pub use gradients::GradientSync;
pub use module::broadcast_module;
pub use tensor::{all_gather, all_reduce, all_to_all, broadcast, reduce_scatter};
