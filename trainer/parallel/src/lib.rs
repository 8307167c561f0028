//! Division of a model and its training over ranks.
//!
//! [`data_parallel`] keeps parameters in flat [`bucket`]s and reduces their gradients, whole or in
//! shards (ZeRO stages 1 to 3). [`tensor_parallel`] and [`experts`] divide layers, [`pipeline`]
//! divides a model into stages, and [`context_parallel`] divides sequences. A [`mesh`] says which
//! ranks do so with each other.
//!
//! Strategies know no tensors, so they serve programs that compute in the memory of a strategy and
//! report when gradients are ready. For example, two ranks average a gradient and keep a half of it
//! each (ZeRO-2):
//!
//! ```
//! use std::sync::Arc;
//! use unisono::Communicator;
//! use unisono_nn::allocator::Allocator;
//! use unisono_nn::parameter::{Init, Parameter, ParameterId, Registry, UnitId};
//! use unisono_nn::step_plan::{Direction, StepPlan};
//! use unisono_nn::strategy::Strategy;
//! use unisono_parallel::data_parallel::{
//!     DataParallel, ParallelKind, ProcessGroups, Settings, ShardedStrategy,
//! };
//!
//! fn norm_of_mean(comm: Communicator) -> unisono_nn::Result<f64> {
//!     let (mut registry, rank) = (Registry::default(), comm.rank());
//!     let weight = Parameter::new("weight", &[4], Init::Zeros);
//!     registry.unit("layer", |registry| registry.add(weight));
//!     let (inventory, memory) = (Arc::new(registry.finish()), Allocator::default());
//!     let (groups, settings) = (ProcessGroups::data_only(Some(comm)), Settings::default());
//!     let mut strategy =
//!         ShardedStrategy::new(ParallelKind::Zero2, &inventory, groups, &settings, &memory)?;
//!
//!     strategy.begin_step(&StepPlan::depth_first(1, 1))?;
//!     strategy.pre_unit(UnitId(0), Direction::Backward)?;
//!     let (_, gradient) = strategy.weights_and_gradient(ParameterId(0)).expect("it is trained");
//!     gradient.fill(if rank == 0 { 1.0 } else { 5.0 });
//!     strategy.grad_ready(ParameterId(0))?;
//!     strategy.post_unit(UnitId(0), Direction::Backward)?;
//!     strategy.finish_backward()?;
//!     strategy.grad_norm()
//! }
//!
//! let norms = unisono::local(2, |comm| Ok(norm_of_mean(comm).expect("a step")))?;
//! // The mean is 3 in each of four elements.
//! assert_eq!(norms, [6.0, 6.0]);
//! # Ok::<(), unisono::Error>(())
//! ```
#![forbid(unsafe_code)]

pub mod bucket;
pub mod context_parallel;
pub mod data_parallel;
pub mod experts;
pub mod mesh;
pub mod optimizer;
pub mod pipeline;
pub mod tensor_parallel;
#[doc(hidden)]
pub mod testing;
