//! Plans of runs: strategy, mesh and batch for a model and hardware, by the formulas of
//! [`cost`](crate::cost).
//!
//! `unisono-train plan` evaluates [`PlanArgs`] and prints a [`PlanReport`]. `unisono-train explain`
//! prints the formulas with the same numbers.
//!
//! | part | file |
//! |---|---|
//! | command line, and its files | `args`, with `presets` and `topology` |
//! | decision tree, and its leaves | `tree`, with `rules` |
//! | meshes that a plan may propose | `meshes` |
//! | step time and memory of each | `search` |
//! | choice between tree and search | `choice` |
//! | division of the batch | `batch_recipe` |
//! | configurations of meshes, and measured runs | `runs` |
//! | text, tables, formulas, picture | `report`, with `tables`, `explain`, `plot`, `warnings` |

mod args;
mod batch_recipe;
mod choice;
mod counts;
mod explain;
mod meshes;
mod plot;
mod presets;
mod report;
mod rules;
mod runs;
mod search;
mod tables;
mod throughput;
mod topology;
mod tree;
mod warnings;

pub use crate::planner::args::{PlanArgs, parse_number};
pub use crate::planner::batch_recipe::{BatchRecipe, scaled_rates};
pub use crate::planner::counts::{attention_score_elements, expert_combinations};
pub use crate::planner::report::{PlanReport, StrategyRow, gigabytes};
pub use crate::planner::rules::{Decision, Rule, rule_of_thumb};
pub use crate::planner::runs::{Measured, measure, measure_rate, model_flops};
pub use crate::planner::search::{Candidate, Search, TooLarge};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use crate::planner::topology::fuzz as fuzz_topology;
pub use crate::planner::tree::{Remedy, decide};

#[cfg(test)]
mod tests;
