//! Tensors, modules with explicit forward and backward, and models of them.
//!
//! A [`modules::Module`] computes on [`tensor::Tensor`]s with the operations of its [`pass::Pass`],
//! on the host or on a GPU. It reads weights from a [`strategy::Strategy`], which may keep only a
//! shard of them, and adds gradients to it. A [`model::Model`] is a list of blocks, which a
//! [`step_plan::StepPlan`] visits.
#![forbid(unsafe_code)]

pub mod allocator;
pub mod batch;
pub mod counted;
pub mod device;
pub mod error;
pub mod gpu_timeline;
pub mod model;
pub mod modules;
pub mod ops;
pub mod parameter;
pub mod pass;
pub mod placement;
pub mod process_group;
pub mod random;
pub mod step_plan;
pub mod strategy;
pub mod tensor;
#[doc(hidden)]
pub mod testing;

pub use counted::counted;
pub use error::{Error, Result};
