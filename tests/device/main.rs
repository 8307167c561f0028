//! Tests of ranks on GPUs, on the software device: every collective by every algorithm, over
//! threads.

#[path = "../support/mod.rs"]
mod support;

mod all_to_all;
mod collectives;
mod driver_calls;
mod failed_joins;
mod failures;
mod links;
mod processes;
mod scale;
mod send_recv;
mod streams;
mod symmetric_memory;
mod teardown;
mod topology;
mod user_op;
mod waiting_driver;
mod world;
