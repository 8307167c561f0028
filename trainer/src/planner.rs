//! Plans of runs: strategy, mesh and batch for a model and hardware, by the formulas of
//! [`cost`](crate::cost).
//!
//! `unisono-train plan` evaluates [`PlanArgs`] and prints a [`PlanReport`]. `unisono-train explain`
//! prints the formulas with the same numbers.

mod args;
mod batch_recipe;
mod explain;
mod parallel_dims;
mod report;
mod rules;
mod search;
mod warnings;

pub use crate::planner::args::{PlanArgs, parse_number};
pub use crate::planner::batch_recipe::{BatchRecipe, scaled_rates};
pub use crate::planner::parallel_dims::{attention_score_elements, expert_combinations, world_size};
pub use crate::planner::report::{PlanReport, StrategyRow, gigabytes};
pub use crate::planner::rules::{Decision, Rule, decide, rule_of_thumb};

#[cfg(test)]
mod tests;
