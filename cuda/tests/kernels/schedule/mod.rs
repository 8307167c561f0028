//! Schedules executed by kernels on the emulator. Ranks are launches in threads of one process.

mod algorithms;
mod failures;
mod ll;
mod one_shot;
mod program;
mod races;
mod results;
mod world;
