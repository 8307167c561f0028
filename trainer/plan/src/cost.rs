//! Predictions of memory, traffic and time of runs, without a run.
//!
//! | question | file |
//! |---|---|
//! | how much memory does a rank need? | `memory`, with `activations` |
//! | what does each data parallel strategy keep and send? | `GroupBytes` of `unisono_parallel` |
//! | how many bytes does a rank send in a step? | `traffic` |
//! | how many floating-point operations does a step take? | `flops` |
//! | who sends how much over which link, for an [`Estimate`]? | `exchange` |
//! | how long does a step take on some hardware? | `step_time`, with `link` and `hardware` |
//! | what do exchanges cost ranks that share cores? | `exchange_costs` |
//!
//! Each formula has two sources of sizes. A [`CostModel`] takes them from the parameters of a run,
//! so its bytes are exact. An [`Estimate`] takes them from a [`ModelShape`], which may be no more
//! than a number of parameters.

mod activations;
mod cost_model;
mod estimate;
mod exchange;
mod exchange_costs;
mod flops;
pub(crate) mod format;
mod hardware;
mod link;
mod measurements;
mod memory;
mod model_shape;
mod step_time;
mod traffic;

pub use cost_model::CostModel;
pub(crate) use estimate::bucket_count;
pub use estimate::{Estimate, ParallelConfig};
pub use exchange::{Exchange, ExchangeKind};
pub use exchange_costs::{CoreCost, ExchangeCosts};
pub use flops::flops_per_sample;
pub use format::{sections, table};
pub use hardware::{Hardware, LinkClass};
pub use link::{Link, Measurement, many_data_ranks, ring};
pub(crate) use link::{MAX_USEFUL_DATA_RANKS, effective_bandwidth, tree};
#[doc(hidden)]
pub use measurements::fuzz as fuzz_measurements;
pub use measurements::parse as parse_measurements;
pub use memory::{classes_in_memory, in_memory};
pub use model_shape::{BytesPerParam, ModelShape};
pub use step_time::StepTime;
pub use traffic::Traffic;
