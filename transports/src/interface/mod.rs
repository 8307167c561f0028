//! The interface of every transport, which consists of the links of a rank, its control channel and
//! clock, and their errors. [`Fabric`](crate::Fabric) holds one of each.

mod control_channel;
mod error;
mod footprint;
mod link;
mod tag;

pub use control_channel::{ControlChannel, ListenerGuard, MAX_CONTROL_MSG_BYTES, PeerEvent};
pub use error::{Error, Result};
pub use footprint::Footprint;
pub use link::{Header, Link};
pub use tag::Tag;

use std::task::Waker;
use std::time::Duration;

/// Sizes on which all ranks of a fabric agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Number of independent FIFOs in each direction between two ranks.
    pub lanes: usize,
    /// Number of messages that a FIFO holds before its sender must wait. A transport may hold a
    /// larger number of short messages.
    pub slots: usize,
    /// Bytes of the largest message.
    pub slot_bytes: usize,
    /// Number of independent signal counters of a window.
    pub signal_lanes: usize,
    /// Bytes of one rank's window.
    pub window_bytes: usize,
    /// Bytes of address space of one rank's heap. Memory is committed when it is first written.
    pub heap_bytes: usize,
}

/// The way in which a rank waits for others. `UNISONO_WAIT` sets it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitMode {
    /// `auto`: a call on the caller's thread spins, then yields, then sleeps. It sleeps soon if
    /// another process computes on its core. An operation that runs in the background waits as with
    /// `block`.
    #[default]
    Auto,
    /// `spin`: never yields the core. This is fastest if every rank has its own core.
    Spin,
    /// `yield`: spins, then repeatedly yields the core to other threads.
    Yield,
    /// `block`: spins for some microseconds, then sleeps until a peer wakes it. The core is free
    /// for other work.
    Block,
}

impl std::str::FromStr for WaitMode {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "spin" => Ok(Self::Spin),
            "yield" => Ok(Self::Yield),
            "block" => Ok(Self::Block),
            _ => Err(format!("`{text}` is none of auto, spin, yield, block")),
        }
    }
}

/// The clock of a rank, and its way to wait when it can make no progress.
pub trait WaitStrategy: Send {
    /// Returns the time since a fixed moment.
    fn now(&self) -> Duration;
    /// Lets time pass.
    ///
    /// `rounds` counts the calls since the last progress. With more calls, the strategy uses less
    /// of the processor: it first spins, then yields, then sleeps.
    fn pause(&mut self, rounds: u32);
    /// Lets time pass as [`WaitStrategy::pause`] does. A publication of one of the `awaited` ranks
    /// ends a sleep, if the strategy can be woken and all of them share memory with this rank.
    fn pause_for(&mut self, rounds: u32, _awaited: &mut dyn Iterator<Item = usize>) {
        self.pause(rounds);
    }
    /// Sets the way to wait from now on. A strategy that has only one way ignores this.
    fn set_mode(&mut self, _mode: WaitMode) {}
    /// Returns a waker with which another thread of this rank can end a sleep, at least almost
    /// always. If a strategy never sleeps, or only for a short time, the waker does nothing.
    fn waker(&self) -> Waker {
        Waker::noop().clone()
    }
    /// Returns true if time is simulated. Then only a thread that waits may use the fabric.
    fn is_simulated(&self) -> bool {
        false
    }
}
