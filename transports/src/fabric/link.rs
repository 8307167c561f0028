//! Links: FIFOs of messages between two ranks.

use crate::{Footprint, Result, Tag};
use std::any::Any;
use std::time::Duration;
use unisono_reducers::{Source, Target};

/// Header of a message that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Tag that the sender attached.
    pub tag: Tag,
    /// Bytes of the body, at most [`Geometry::slot_bytes`](crate::Geometry::slot_bytes).
    pub bytes: usize,
}

/// FIFOs of messages to and from one peer, one pair for each lane.
///
/// No call waits. Messages of one lane arrive whole, once, and in the order sent. Nothing is
/// promised between lanes. Memory that was written before a `try_send` that returned true is
/// visible to the receiver that sees the message (release / acquire).
pub trait Link: Send + Any {
    /// Sends one message made of `parts`, `bytes` long in all.
    ///
    /// `Ok(false)` means that there is no room yet. The caller must call again later **with the
    /// same arguments** until the result is `Ok(true)`, because the message may already be partly
    /// sent.
    fn try_send<'a>(
        &mut self,
        lane: usize,
        tag: &Tag,
        bytes: usize,
        parts: &mut dyn Iterator<Item = Source<'a>>,
    ) -> Result<bool>;

    /// Returns the header of the oldest message that was not taken yet, if one has arrived.
    fn header(&mut self, lane: usize) -> Result<Option<Header>>;

    /// Returns the body of the message whose header has arrived, once all of the body has.
    fn body(&mut self, lane: usize) -> Result<Option<Source<'_>>>;

    /// Drops the message whose body was last returned, and frees its slot.
    fn release(&mut self, lane: usize);

    /// Moves the body of the message whose header has arrived into `target`, and drops the message.
    ///
    /// The transport copies nothing in between where it can avoid it. `target` must be exactly
    /// [`Header::bytes`] long. `Ok(false)` means that the body is incomplete; the caller must call
    /// again with the same target.
    fn recv_into(&mut self, lane: usize, target: Target<'_>) -> Result<bool>;

    /// Moves arrived bytes out of the operating system into free slots, so that the peer can
    /// continue while this rank waits for something else.
    fn progress(&mut self) -> Result<()>;

    /// Waits until the peer's system has all that was sent, so that the end of this process loses
    /// nothing. Returns false if it has not within `limit`.
    ///
    /// Nothing may be sent afterwards.
    fn drain(&mut self, _limit: Duration) -> bool {
        true
    }

    /// Returns the memory and the descriptors of this link.
    fn footprint(&self) -> Footprint {
        Footprint::default()
    }
}
