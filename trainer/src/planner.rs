//! Plans of runs: strategy, memory, traffic and step time for a model and hardware. Pure arithmetic
//! with the trainer's own formulas where it has them.
//!
//! `unisono-train plan` evaluates [`PlanArgs`] and prints a [`PlanReport`]. `unisono-train explain`
//! prints the formulas with the same numbers.

pub(crate) mod args;
pub(crate) mod batch_recipe;
mod explain;
pub(crate) mod format;
mod hardware;
mod link;
pub(crate) mod measurements;
pub(crate) mod model_dims;
pub(crate) mod parallel_config;
pub(crate) mod parallel_dims;
pub(crate) mod report;
pub(crate) mod rules;
pub(crate) mod search;
pub(crate) mod step_time;
mod warnings;

pub use crate::planner::args::PlanArgs;
pub use crate::planner::batch_recipe::{BatchRecipe, scaled_rates};
pub use crate::planner::hardware::Hardware;
pub use crate::planner::link::{Link, Measurement, effective_bandwidth, ring, tree};
pub use crate::planner::measurements::sweep;
pub use crate::planner::model_dims::{BytesPerParam, ModelDims, parse_number};
pub use crate::planner::parallel_config::{ParallelConfig, collectives, gigabytes};
pub use crate::planner::parallel_dims::{attention_score_elements, expert_combinations, world_size};
pub use crate::planner::report::{PlanReport, StrategyRow};
pub use crate::planner::rules::{Decision, Rule, decide, rule_of_thumb};
pub use crate::planner::step_time::StepTime;

#[cfg(test)]
mod tests;
