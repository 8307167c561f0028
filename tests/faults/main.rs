//! Faults that are made on purpose, with real processes: ranks that are killed or stopped, networks that are cut, limits
//! that are reached, connections that garble what they carry. Every one of them is an error, in time, that names who.
//!
//! What CI has no time for runs by `cargo xtask faults`, which sets `TEST_LONG`.

#[path = "../support/mod.rs"]
mod support;

mod exits;
mod faulty_connection;
mod grow;
mod kill_and_shrink;
mod kill_random;
mod limits;
mod network;
mod process;
mod proxy;
mod soak;
mod stopped;
mod worker;

/// How much later than it should something may be noticed here, and how much where no test beside it keeps the cores busy.
fn lateness() -> f64 {
    if times(0, 1) == 1 { 1.1 } else { 2.0 }
}

/// So many here, and so many where time does not matter.
fn times(quick: usize, long: usize) -> usize {
    if std::env::var_os("TEST_LONG").is_some() { long } else { quick }
}
