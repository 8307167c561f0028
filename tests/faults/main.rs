//! Deliberate faults with real processes: killed and stopped ranks, cut networks, exhausted limits,
//! corrupting connections.
//!
//! Every fault is an error, in time, that names the affected rank. The long forms run by `cargo
//! xtask faults`, which sets `TEST_LONG`.

#[path = "../support/mod.rs"]
mod support;

mod endings;
mod exits;
mod faulty_connection;
mod grow;
mod kill_and_shrink;
mod kill_random;
mod late_stores;
mod limits;
mod network;
mod process;
mod proxy;
mod recovery;
mod related;
mod soak;
mod stopped;
mod training_loop;
mod worker;

/// Repetitions in the short form, and in the long form.
fn times(quick: usize, long: usize) -> usize {
    if std::env::var_os("TEST_LONG").is_some() { long } else { quick }
}
