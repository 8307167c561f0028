//! Control channels, which carry small messages between ranks apart from the data, and report that
//! a rank has ended.
//!
//! | Channel | Peers | Messages | End of a peer |
//! |---|---|---|---|
//! | [`LocalControl`] | same host | mailboxes in shared memory | its liveness pipe closes |
//! | [`RemoteControl`] | any host | one authenticated socket to each peer | its socket closes |
//! | [`CombinedControl`] | both | both | both |

mod combined;
mod local;
mod peer;
mod remote;

pub use combined::CombinedControl;
pub use local::LocalControl;
pub use remote::RemoteControl;
