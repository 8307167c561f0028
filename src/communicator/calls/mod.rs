//! How a call runs: its checks, its turn, its thread, its options and its handle.

pub(in crate::communicator) mod background;
pub(in crate::communicator) mod call_options;
pub(in crate::communicator) mod counts;
pub(in crate::communicator) mod exchange;
pub mod foreign;
pub(in crate::communicator) mod memory;
pub(in crate::communicator) mod message_wait;
pub(in crate::communicator) mod op_queue;
pub(in crate::communicator) mod operation;
pub(in crate::communicator) mod task_queue;
pub(in crate::communicator) mod thread_pool;
pub(in crate::communicator) mod validate;
pub(in crate::communicator) mod work;
