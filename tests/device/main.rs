//! Ranks on GPUs, on the software device: every collective by every algorithm, over threads.

#[path = "../support/mod.rs"]
mod support;

mod collectives;
mod failures;
mod links;
mod messages;
mod processes;
mod streams;
mod world;
