//! Tensors, modules with explicit forward and backward, and models of them.
//!
//! A [`modules::Module`] computes on [`tensor::Tensor`]s with the operations of its [`pass::Pass`],
//! on the host or on a GPU. It reads weights from a [`strategy::Strategy`], which may keep only a
//! shard of them, and adds gradients to it. A [`model::Model`] is a list of blocks, which a
//! [`step_plan::StepPlan`] visits.
//!
//! For example, this runs a linear layer forward and backward:
//!
//! ```
//! use unisono_nn::allocator::Allocator;
//! use unisono_nn::modules::{Linear, LinearInit, Module};
//! use unisono_nn::parameter::Registry;
//! use unisono_nn::pass::{Pass, Seeds};
//! use unisono_nn::strategy::LocalStrategy;
//!
//! let (mut registry, memory) = (Registry::default(), Allocator::default());
//! let (_, layer) =
//!     registry.unit("layer", |registry| Linear::new(registry, 3, 2, LinearInit::fan_in(3)));
//! let mut strategy = LocalStrategy::new(registry.finish(), &memory, 1);
//! let mut pass = Pass::new(&mut strategy, &memory, Seeds::default(), 1);
//!
//! let input = pass.tensor_from(4, 3, &[0.5; 12])?;
//! let output = layer.forward(&mut pass, input)?;
//! assert_eq!((output.rows(), output.columns()), (4, 2));
//!
//! let slopes = pass.tensor_from(4, 2, &[1.0; 8])?;
//! let input_slopes = layer.backward(&mut pass, slopes)?;
//! assert_eq!((input_slopes.rows(), input_slopes.columns()), (4, 3));
//! // The gradient of each bias is the sum over four rows.
//! assert_eq!(strategy.gradients()[6..], [4.0, 4.0]);
//! # Ok::<(), unisono_nn::Error>(())
//! ```
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
pub mod process_group;
pub mod random;
pub mod step_plan;
pub mod strategy;
pub mod tensor;
#[doc(hidden)]
pub mod testing;

pub use counted::counted;
pub use error::{Error, Result};
