//! Collective communication for Rust.
#![forbid(unsafe_code)]

pub mod schedule;
