//! Flight records, traces, traffic and memory statistics.

pub(crate) mod flight;
pub(crate) mod memory;
pub(crate) mod trace;
pub(crate) mod traffic;
