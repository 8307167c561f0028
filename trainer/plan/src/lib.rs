//! Plans of training runs by arithmetic: memory, traffic and step time by formula, and the mesh,
//! strategy and batch that a model on some hardware should have.
//!
//! Nothing here reads a file, measures or starts ranks. The caller gives numbers: a
//! [`ModelShape`](cost::ModelShape), which may be no more than a number of parameters, and
//! [`Hardware`](cost::Hardware). For a run whose parameters are known, [`RunShape`] and the
//! inventory of a rank's parameters give exact bytes: see [`CostModel`](cost::CostModel).
//!
//! For example, a model of 7 billion parameters on eight hosts of eight GPUs:
//!
//! ```
//! use unisono_parallel::data_parallel::ParallelKind;
//! use unisono_plan::cost::Hardware;
//! use unisono_plan::planner::{PlanReport, published_model};
//!
//! let shape = published_model("llama2-7b").expect("the name of a model");
//! let hardware = Hardware::named("h100-80", 64)?;
//! let (tokens_per_step, bucket_bytes) = (1 << 22, 25.0 * 1024.0 * 1024.0);
//! let plan = PlanReport::new(shape, hardware, tokens_per_step, bucket_bytes)?;
//!
//! let parallel = plan.decision.parallel;
//! assert_eq!((parallel.kind, parallel.tensor, parallel.data), (ParallelKind::Zero1, 1, 64));
//! println!("{}", plan.plan());
//! # Ok::<(), unisono_nn::Error>(())
//! ```
#![forbid(unsafe_code)]

mod batch_plan;
pub mod cost;
pub mod planner;
mod shapes;
mod stages;

pub use batch_plan::BatchPlan;
pub use shapes::{GptShape, RunShape, SequenceSharing};
pub use stages::{Stages, unit_costs};
