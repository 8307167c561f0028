//! Training over unisono's collectives: data parallel, ZeRO and tensor parallel.
//!
//! Strategies know no tensor type. They keep flat buffers of named parameters and hear three events: a unit's weights are
//! needed, a unit is done with, a gradient is ready ([`strategy::Strategy`]). Models are made of explicit modules ([`nn`]) that
//! write gradients straight into those buffers.
#![forbid(unsafe_code)]

pub mod error;
pub mod memory;
pub mod models;
pub mod nn;
pub mod parameter;
pub mod pass;
pub mod strategy;
pub mod tensor;

pub use error::{Error, Result};
