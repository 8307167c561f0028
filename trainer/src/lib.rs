//! Training over unisono's collectives: data parallel, ZeRO and tensor parallel.
//!
//! Strategies know no tensor type. They keep flat buffers of named parameters and hear three events: a unit's weights are
//! needed, a unit is done with, a gradient is ready ([`strategy::Strategy`]). Models are made of explicit modules ([`nn`]) that
//! write gradients straight into those buffers.
#![forbid(unsafe_code)]

pub mod allocator;
pub mod checkpoint;
pub mod config;
pub mod data;
pub mod device;
pub mod error;
pub mod flat;
pub mod mesh;
pub mod models;
pub mod nn;
pub mod optim;
pub mod parallel;
pub mod parameter;
pub mod pass;
pub mod planner;
mod random;
pub mod strategy;
pub mod tensor;
pub mod tensor_parallel;
#[cfg(test)]
mod testing;
pub mod train;

pub use error::{Error, Result};
