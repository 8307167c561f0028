//! The course of a training run: how large its batches are and how fast it learns.

mod batch;
mod schedule;

pub use batch::Batch;
pub use schedule::{Scale, Schedule, Shape};
