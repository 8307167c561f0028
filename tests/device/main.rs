//! Ranks on GPUs, on the software device: every collective by every algorithm, over threads.

#[path = "../support/mod.rs"]
mod support;

mod collectives;
mod exchanges;
mod failures;
mod lending;
mod links;
mod messages;
mod own;
mod parting;
mod processes;
mod rings;
mod streams;
mod world;
