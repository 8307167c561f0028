//! Choice of strategy, mesh and batch for a model and hardware, by the formulas of
//! [`cost`](crate::cost).
//!
//! A [`PlanReport`] is a plan with the numbers behind it, as text, tables, JSON and a picture.
//!
//! | part | file |
//! |---|---|
//! | published models, and descriptions of hosts | `presets`, `topology` |
//! | decision tree, and its leaves | `tree`, with `rules` |
//! | meshes that a plan may propose | `meshes` |
//! | step time and memory of each | `search` |
//! | choice between tree and search | `choice` |
//! | division of the batch | `batch_recipe` |
//! | text, tables, formulas, picture | `report`, with `tables`, `explain`, `plot`, `warnings` |

mod batch_recipe;
mod choice;
mod counts;
mod explain;
mod meshes;
mod plot;
mod presets;
mod report;
mod rules;
mod search;
mod tables;
mod throughput;
mod topology;
mod tree;
mod warnings;

pub use crate::planner::batch_recipe::BatchRecipe;
pub use crate::planner::presets::{published_model, published_names};
pub use crate::planner::report::{PlanReport, StrategyRow};
pub use crate::planner::rules::{Decision, Rule};
pub use crate::planner::search::{Candidate, Search, TooLarge};
pub use crate::planner::tables::Measured;
pub use crate::planner::throughput::Throughput;
pub use crate::planner::topology::Topology;
#[doc(hidden)]
pub use crate::planner::topology::fuzz as fuzz_topology;
pub use crate::planner::tree::Remedy;

#[cfg(test)]
mod tests;
