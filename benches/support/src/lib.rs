//! Sizes and statistics shared by the benchmarks and the command.

pub mod size;
pub mod stats;
