//! Trains models over unisono's collectives: data, tensor, sequence, pipeline, context and expert
//! parallel, ZeRO stages 1 to 3, checkpoints, and a planner that chooses among them.
//!
//! Three crates below this one serve other programs, too: [`unisono_nn`] has tensors, modules and
//! the interface of models, [`unisono_parallel`] divides them over ranks, and [`unisono_plan`]
//! predicts and chooses such divisions.
#![forbid(unsafe_code)]

mod available_memory;
pub mod checkpoint;
pub mod config;
pub mod data;
mod file_kind;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod machine;
pub mod models;
mod output_file;
pub mod plan_command;
pub mod progress;
pub mod train;
