//! Flight records, traces, traffic and memory statistics.
pub(crate) mod memory_stats;
pub(crate) mod recorder;
pub(crate) mod trace;
pub(crate) mod traffic;
