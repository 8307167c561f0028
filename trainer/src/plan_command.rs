//! Command `plan`: its arguments, the files that they name, and runs of planned meshes.
//!
//! [`unisono_plan`] has the arithmetic. This module gives it a configuration as numbers, this
//! machine as measured hardware, and runs of its candidates.

mod args;
mod files;
mod runs;

pub use args::PlanArgs;
pub use runs::{exact_memory, measure, measure_candidate, measure_rate};

#[cfg(test)]
mod tests;
