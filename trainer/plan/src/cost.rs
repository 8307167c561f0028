//! Predicts memory, traffic and time of runs, without a run.
//!
//! | question | file |
//! |---|---|
//! | how much memory does a rank need? | `memory`, with `activations` |
//! | what does each data parallel strategy keep and send? | `sharding` |
//! | how many bytes does a rank send in a step? | `traffic` |
//! | how many floating-point operations does a step take? | `flops` |
//! | who sends how much over which link, for an [`Estimate`]? | `exchange` |
//! | how long does a step take on some hardware? | `step_time`, with `link` and `hardware` |
//!
//! Each formula has two sources of sizes. A run takes them from its parameters, so its bytes are
//! exact. An [`Estimate`] takes them from a [`ModelShape`], which may be no more than a number of
//! parameters.

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

pub(crate) use cost_model::CostModel;
pub use estimate::{Estimate, ParallelConfig, bucket_count};
pub use exchange::{Exchange, ExchangeKind};
pub(crate) use exchange_costs::core_seconds;
pub use exchange_costs::{CoreCost, ExchangeCosts};
pub(crate) use flops::{flops_per_sample, peak_flops, peak_flops_on};
pub use hardware::{Hardware, LinkClass};
pub use link::{Link, Measurement, effective_bandwidth, ring, tree};
pub(crate) use link::{MAX_USEFUL_DATA_RANKS, many_data_ranks};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use measurements::fuzz as fuzz_measurements;
pub use measurements::sweep;
pub(crate) use memory::{classes_in_memory, in_memory};
pub use model_shape::{BytesPerParam, ModelShape};
pub use step_time::StepTime;
pub use traffic::Traffic;
