//! Trains models over unisono's collectives: data, tensor, sequence, pipeline, context and expert
//! parallel, ZeRO stages 1 to 3, checkpoints, and a planner that chooses among them.
//!
//! A strategy keeps flat buffers of named parameters and knows no tensor type. It receives three
//! events: a unit needs its weights, a unit is finished, a gradient is ready
//! ([`strategy::Strategy`]). Models consist of explicit modules ([`nn`]) that write gradients
//! directly into those buffers.
#![forbid(unsafe_code)]

pub mod allocator;
mod available_memory;
pub mod checkpoint;
pub mod config;
pub mod cost;
mod counted;
pub mod data;
pub mod device;
pub mod error;
pub mod experts;
mod file_kind;
pub mod flat;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod gpu_timeline;
pub mod mesh;
pub mod models;
pub mod nn;
pub mod ops;
pub mod optim;
mod output_file;
pub mod parallel;
pub mod parameter;
pub mod pass;
pub mod pipeline;
pub mod planner;
pub mod process_group;
pub mod progress;
mod random;
mod stages;
pub mod step_plan;
pub mod strategy;
pub mod tensor;
pub mod tensor_parallel;
#[cfg(test)]
mod testing;
pub mod train;

pub use counted::counted;
pub use error::{Error, Result};
