//! Executors: eager for small operations, pipelined over links and windows, zero-copy in symmetric memory.
pub(in crate::engine) mod arith;
pub(in crate::engine) mod eager;
pub(in crate::engine) mod eager_step;
pub(in crate::engine) mod pipelined;
pub(in crate::engine) mod step;
pub(in crate::engine) mod zero_copy;
