//! Links, which are FIFOs of messages between two ranks.

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
/// No call waits. Messages of one lane arrive complete, once, and in the order sent. Messages of
/// different lanes have no order. If a `try_send` returns true, memory that was written before it
/// is visible to the receiver that sees the message (release / acquire).
pub trait Link: Send + Any {
    /// Sends one message that consists of `parts`, whose total length is `bytes`.
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

    /// Returns the body of the message whose header has arrived, if the whole body has arrived,
    /// too.
    fn body(&mut self, lane: usize) -> Result<Option<Source<'_>>>;

    /// Drops the message whose body was last returned, and frees its slot.
    fn release(&mut self, lane: usize);

    /// Moves the body of the message whose header has arrived into `target`, and drops the message.
    ///
    /// The transport avoids intermediate copies if it can. `target` must be exactly
    /// [`Header::bytes`] long. `Ok(false)` means that the body is incomplete. The caller must then
    /// call again with the same target.
    fn recv_into(&mut self, lane: usize, target: Target<'_>) -> Result<bool>;

    /// Moves arrived bytes out of the operating system into free slots, so that the peer can
    /// continue while this rank waits for something else.
    fn progress(&mut self) -> Result<()>;

    /// Waits until the peer's system has received everything that was sent, so that nothing is lost
    /// when this process ends. Returns false if this takes longer than `limit`.
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
