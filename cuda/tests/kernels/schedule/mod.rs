//! Schedules carried out by kernels on the software device: ranks are launches in threads of one process.

mod algorithms;
mod lines;
mod one_shot;
mod program;
mod races;
mod right;
mod world;
mod wrong;
