//! How bytes get from one rank to another.
//!
//! A [`Fabric`] is what one rank of one communicator needs: a [`Link`] to every
//! peer, a [`Window`] where all ranks can reach each other's memory, a
//! [`ControlChannel`] path for notes out of band, and a [`WaitStrategy`] that knows the time
//! and how to wait. Four transports make fabrics: `threads`, `shm`, `tcp` and
//! `sim`. None of them knows what a collective is.

mod error;
mod footprint;
pub mod shm;
mod sync;
mod tag;

// Loom models only the shared-memory protocols of `shm`.
#[cfg(not(loom))]
pub mod control;
#[cfg(all(feature = "gpu", not(loom)))]
pub mod gpu;
#[cfg(not(loom))]
mod reconnect;
#[cfg(not(loom))]
pub mod secure;
#[cfg(not(loom))]
pub mod sim;
#[cfg(not(loom))]
pub mod sys;
#[cfg(not(loom))]
pub mod tcp;
#[cfg(not(loom))]
pub mod testing;
#[cfg(not(loom))]
pub mod threads;
#[cfg(not(loom))]
pub mod wait;

pub use error::{Error, Result};
pub use footprint::Footprint;
#[cfg(not(loom))]
pub use reconnect::{Reconnect, RegroupRequest};
pub use shm::eager::SlotClass;
#[cfg(not(loom))]
pub use shm::{HeapAllocation, SymmetricHeap, Window};
pub use tag::Tag;

#[cfg(not(loom))]
use std::any::Any;
#[cfg(not(loom))]
use std::sync::Arc;
use std::time::Duration;
use unisono_cuda::{Source, Target};

// Numbers and elements travel as they lie in memory, and sizes are 64 bits on all ranks.
const _: () = assert!(
    cfg!(all(target_endian = "little", target_pointer_width = "64")),
    "unisono runs on little-endian processors of 64 bits"
);

/// Sizes on which all ranks of a fabric agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Independent FIFOs in each direction between two ranks.
    pub lanes: usize,
    /// Messages that one FIFO holds before its sender must wait; a transport may hold more of short ones.
    pub slots: usize,
    /// Largest message, in bytes.
    pub slot_bytes: usize,
    /// Window lines: independent signal counters (one per channel).
    pub signal_lanes: usize,
    /// Bytes of one rank's window.
    pub window_bytes: usize,
    /// Bytes of one rank's heap, out of which callers get memory that peers reach: address space, not memory.
    pub heap_bytes: usize,
}

/// The head of a message that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the sender wrote beside the body.
    pub tag: Tag,
    /// Length of the body in bytes; never more than [`Geometry::slot_bytes`].
    pub bytes: usize,
}

/// FIFOs of messages to and from one peer, one pair for each lane.
///
/// Every call returns at once. Messages of one lane arrive whole, once, and in
/// the order sent; nothing is promised between lanes. What was written before
/// a `try_send` that returned true is visible to the receiver that sees the
/// message (release / acquire).
pub trait Link: Send {
    /// Sends one message made of `parts`, `bytes` long in all.
    ///
    /// `Ok(false)`: no room yet. Call again later **with the same arguments**
    /// (the message may already be partly on its way) until it is `Ok(true)`.
    fn try_send<'a>(
        &mut self,
        lane: usize,
        tag: &Tag,
        bytes: usize,
        parts: &mut dyn Iterator<Item = Source<'a>>,
    ) -> Result<bool>;

    /// The head of the oldest message not yet taken, if one is here.
    fn header(&mut self, lane: usize) -> Result<Option<Header>>;

    /// The body of the message whose head is here, once all of it is.
    fn body(&mut self, lane: usize) -> Result<Option<Source<'_>>>;

    /// Drops the message whose body was last returned; its slot is free again.
    fn release(&mut self, lane: usize);

    /// Moves the body of the message whose head is here into `target`, without
    /// staging where the transport can, and drops the message.
    ///
    /// `Ok(false)`: not all here yet; call again with the same target.
    /// `target` must be exactly [`Header::bytes`] long.
    fn recv_into(&mut self, lane: usize, target: Target<'_>) -> Result<bool>;

    /// Moves what has arrived out of the operating system into free slots, so
    /// that the peer can go on even while this rank waits for something else.
    fn progress(&mut self) -> Result<()>;

    /// What this link keeps in memory by itself.
    fn footprint(&self) -> Footprint {
        Footprint::default()
    }
}

/// What arrives on the control path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerEvent {
    /// A note that `from` posted.
    Message {
        /// The peer that posted it.
        from: usize,
        /// Its bytes, at most [`MAX_CONTROL_MSG_BYTES`].
        bytes: Vec<u8>,
    },
    /// Nothing will come from `from` any more: it ended, or its host did.
    Exited {
        /// The peer that is gone.
        from: usize,
    },
    /// The host of `from` has answered nothing for too long: it vanished, or the network to it is cut. Unlike
    /// [`PeerEvent::Closed`] this does not say that the peer ended: elsewhere it may go on.
    Unreachable {
        /// The peer that is out of reach.
        from: usize,
    },
    /// The connection with `from` was reset, and nothing proves that the peer ended: a network that was cut and healed, or
    /// somebody on the way, may have done so. It may go on, as with [`PeerEvent::Silent`].
    Reset {
        /// The peer with which there is no connection any more.
        from: usize,
    },
}

/// Holds a rank's door open: as long as this is there, whoever has lost the rank from sight can ask whether it lives. One
/// that goes on without ranks that may live, too, keeps the door of what they had in common.
#[cfg(not(loom))]
pub type ListenerGuard = Arc<dyn Any + Send + Sync>;

/// Largest note on the control path.
pub const MAX_CONTROL_MSG_BYTES: usize = 1024;

/// Notes between ranks beside the data, and news of their deaths.
///
/// Used only when something goes wrong or is slow: never on the hot path.
pub trait ControlChannel: Send {
    /// Posts a note to every other rank. Never blocks; the dead do not get it, and a rank that does not read
    /// its notes may lose some.
    fn post(&mut self, note: &[u8]);
    /// The next event, if one is here. Each peer's end is reported once.
    fn poll(&mut self) -> Option<PeerEvent>;

    /// This rank's door, if anybody may come and ask.
    #[cfg(not(loom))]
    fn listener_guard(&self) -> Option<ListenerGuard> {
        None
    }

    /// What this path keeps in memory; shared memory, which has the boards for notes in it, counts here.
    fn footprint(&self) -> Footprint {
        Footprint::default()
    }
}

/// The time, and how to wait when nothing can be done.
pub trait WaitStrategy: Send {
    /// Time since some fixed moment.
    fn now(&self) -> Duration;
    /// Lets time pass. `rounds` counts the calls since something last
    /// progressed: the longer, the more is given away (spin, yield, sleep).
    fn pause(&mut self, rounds: u32);
}

/// Everything that one rank of one communicator has to reach the others.
pub struct Fabric {
    /// This rank.
    pub rank: usize,
    /// Number of ranks.
    pub ranks: usize,
    /// The sizes agreed on.
    pub geometry: Geometry,
    /// Link to each rank; `None` at this rank's own place.
    pub links: Vec<Option<Box<dyn Link>>>,
    /// Memory of all ranks, where every rank can reach every other.
    #[cfg(not(loom))]
    pub window: Option<Window>,
    /// The path for notes and news of deaths.
    pub control: Box<dyn ControlChannel>,
    /// Clock and waiting.
    pub wait: Box<dyn WaitStrategy>,
    /// Short name of the transport to each rank, for tables and errors.
    pub transport: &'static str,
    /// Whether all ranks run on one host that has fewer cores; all ranks know alike.
    pub oversubscribed: bool,
}
