//! The control channel, which carries small messages apart from the data, and reports ranks that
//! ended.

use crate::Footprint;
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

/// News that a control channel reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerEvent {
    /// A message has arrived.
    Message {
        /// Rank that posted it.
        from: usize,
        /// Its bytes, at most [`MAX_CONTROL_MSG_BYTES`].
        bytes: Vec<u8>,
    },
    /// The process of a rank ended, or its host did. Nothing more arrives from it.
    Exited {
        /// Rank that ended.
        from: usize,
    },
    /// The host of a rank has not answered for too long, because it vanished or the network is cut.
    ///
    /// Unlike [`PeerEvent::Exited`], this is no proof that the rank ended. Other ranks may still
    /// reach it.
    Unreachable {
        /// Rank that cannot be reached.
        from: usize,
    },
    /// The connection to a rank was reset, and nothing proves that the rank ended.
    ///
    /// A network that was cut and works again resets connections, and an attacker on the path can
    /// do so, too. The rank may still run, as with [`PeerEvent::Unreachable`].
    Reset {
        /// Rank to which the connection is lost.
        from: usize,
    },
}

/// Keeps the listener of a rank open for as long as the guard exists.
///
/// A rank that lost its connection to this one connects to the listener to learn whether this rank
/// is alive. A rank that continues without others must therefore keep the guard of the communicator
/// that they shared.
pub type ListenerGuard = Arc<dyn Any + Send + Sync>;

/// Bytes of the largest control message.
pub const MAX_CONTROL_MSG_BYTES: usize = 1024;

/// Carries messages between ranks apart from the data, and reports ranks that ended.
///
/// A rank uses the channel only when something fails or is slow, never on the hot path.
pub trait ControlChannel: Send + Any {
    /// Posts a message to every other rank, and never blocks.
    ///
    /// Ranks that ended do not receive it. A rank that does not read its messages may lose some.
    fn post(&mut self, message: &[u8]);
    /// Returns the next event, if there is one. The end of a peer is reported once.
    fn poll(&mut self) -> Option<PeerEvent>;

    /// Waits until the peers' systems have received everything that was posted, but not longer than
    /// `limit`. Nothing may be posted afterwards.
    fn drain(&mut self, _limit: Duration) {}

    /// Returns a guard of this rank's listener, if the rank has one.
    fn listener_guard(&self) -> Option<ListenerGuard> {
        None
    }

    /// Returns the memory and the descriptors of this channel. The mailboxes are in shared memory,
    /// which is counted here.
    fn footprint(&self) -> Footprint {
        Footprint::default()
    }
}
