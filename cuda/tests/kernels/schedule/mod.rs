//! Schedules carried out by kernels on the software device: ranks are launches in threads of one process.

mod algorithms;
mod failures;
mod ll;
mod one_shot;
mod program;
mod races;
mod results;
mod world;
