//! Services of the operating system: calls on sockets, shared memory, users, CPU affinity, resource
//! limits, mapped and private files, random bytes, inherited signals and standard error. Other
//! modules act at the end of the process, and keep forked children apart.

pub mod affinity;
pub mod at_exit;
pub mod close_on_fork;
pub mod descriptors;
pub mod fork_guard;
pub(crate) mod hide_on_fork;
mod huge_pages;
mod lazy_part;
pub mod mapped_file;
pub mod private_file;
pub mod random;
pub mod rlimit;
pub mod segment;
pub mod signals;
mod slot_list;
pub mod socket_calls;
pub mod stderr;
pub mod timer_slack;
pub mod user;
