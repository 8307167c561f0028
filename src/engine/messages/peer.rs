//! The messages to and from one peer.

use crate::engine::messages::frame::Frame;
use crate::engine::messages::submission::SendTask;
use crate::engine::messages::{ANNOUNCED_MAX, EAGER_CREDIT, EAGER_OVERHEAD};
use crate::error::{Error, Result};
use std::collections::VecDeque;
use unisono_reducers::Source;
use unisono_transports::Link;

/// The state of the messages to and from one peer.
#[derive(Default)]
pub(super) struct PeerMessages {
    /// Frames that wait for room on the link, in order.
    pub(super) outgoing: VecDeque<Outgoing>,
    /// Number of frames that only the peer can send: messages with receives, and grants.
    pub(super) awaited: usize,
    /// Bytes that the peer stores of this rank's eager messages, as far as is known.
    in_flight: usize,
    /// Bytes stored here of the peer's eager messages, or not yet returned as credit.
    stored: usize,
    /// Bytes of credit to be returned.
    owed: usize,
    /// Sends for which there is neither credit nor an announcement left, in order.
    pub(super) held: VecDeque<(u64, Box<dyn SendTask>)>,
    /// Number of this rank's announcements that the peer has not granted.
    announced: usize,
    /// Number of the peer's announcements that this rank has not granted.
    ungranted: usize,
    /// True if the peer has left, so that nobody needs credit.
    has_left: bool,
    /// True if the last look found nothing more of the peer.
    pub(super) is_drained: bool,
}

/// One entry of the queue to a peer.
pub(super) enum Outgoing {
    Control(Frame),
    Eager { tag: u64, bytes: usize, task: Box<dyn SendTask> },
    Data { recv: u64, sent: usize, bytes: usize, task: Box<dyn SendTask> },
}

impl Outgoing {
    pub(super) fn into_task(self) -> Option<Box<dyn SendTask>> {
        match self {
            Outgoing::Control(_) => None,
            Outgoing::Eager { task, .. } | Outgoing::Data { task, .. } => Some(task),
        }
    }
}

/// The outcome of one attempt to send.
pub(super) enum Sent {
    /// The queue is empty, or the link has no room.
    Nothing,
    /// A frame that completes no message.
    Frame,
    /// The last frame of a message.
    Message(Box<dyn SendTask>, Result<()>),
}

impl Sent {
    /// Returns the outcome for the last frame of an entry.
    fn of(entry: Outgoing, result: Result<()>) -> Self {
        entry.into_task().map_or(Sent::Frame, |task| Sent::Message(task, result))
    }
}

impl PeerMessages {
    /// Takes credit for an eager message, if there is enough.
    pub(super) fn spend_credit(&mut self, bytes: usize) -> bool {
        let fits = self.in_flight + bytes + EAGER_OVERHEAD <= EAGER_CREDIT;
        if fits {
            self.in_flight += bytes + EAGER_OVERHEAD;
        }
        fits
    }

    /// Returns whether credit of the peer should be read.
    pub(super) fn is_short_of_credit(&self) -> bool {
        self.in_flight > EAGER_CREDIT / 2
    }

    /// Books credit that the peer returned. `None` if it is none, or was never spent.
    pub(super) fn return_credit(&mut self, bytes: u64) -> Option<()> {
        let bytes = usize::try_from(bytes).ok().filter(|&bytes| bytes > 0)?;
        self.in_flight = self.in_flight.checked_sub(bytes)?;
        Some(())
    }

    /// Counts an announcement of this rank, unless the peer stores as many as it must.
    pub(super) fn announce(&mut self) -> bool {
        let fits = self.announced < ANNOUNCED_MAX;
        self.announced += usize::from(fits);
        fits
    }

    /// Counts an announcement of this rank as granted.
    pub(super) fn is_granted(&mut self) {
        self.announced -= 1;
    }

    /// Counts an announcement of the peer. Returns false if it may make no more.
    pub(super) fn accept_announcement(&mut self) -> bool {
        let fits = self.ungranted < ANNOUNCED_MAX;
        self.ungranted += usize::from(fits);
        fits
    }

    /// Answers an announcement of the peer with a grant.
    pub(super) fn grant(&mut self, send: u64, recv: u64) {
        self.ungranted -= 1;
        self.outgoing.push_back(Outgoing::Control(Frame::Grant { send, recv }));
    }

    /// Ends all that waits for the peer, and returns the sends among it. Messages of the peer that
    /// are stored here stay.
    pub(super) fn end(&mut self) -> impl Iterator<Item = Box<dyn SendTask>> {
        let (stored, owed) = (self.stored, self.owed);
        let ended = std::mem::replace(self, Self { stored, owed, has_left: true, ..Self::default() });
        let outgoing = ended.outgoing.into_iter().filter_map(Outgoing::into_task);
        outgoing.chain(ended.held.into_iter().map(|(_, task)| task))
    }

    /// Returns whether the peer may send an eager message of this length.
    pub(super) fn accepts_eager(&self, bytes: usize) -> bool {
        // The length comes from the peer. The first comparison keeps the sum from overflowing.
        bytes <= EAGER_CREDIT && self.stored + bytes + EAGER_OVERHEAD <= EAGER_CREDIT
    }

    /// Counts an eager message of the peer as stored.
    pub(super) fn store(&mut self, bytes: usize) {
        self.stored += bytes + EAGER_OVERHEAD;
    }

    /// Returns the credit of an eager message that is no longer stored. Credit travels in batches.
    pub(super) fn owe_credit(&mut self, bytes: usize) {
        self.owed += bytes + EAGER_OVERHEAD;
        if self.has_left {
            self.stored -= std::mem::take(&mut self.owed);
        } else if self.owed >= EAGER_CREDIT / 4 {
            self.outgoing.push_back(Outgoing::Control(Frame::Credit { bytes: self.owed as u64 }));
            self.stored -= std::mem::take(&mut self.owed);
        }
    }

    /// Sends the next frame of the queue, if the link has room.
    pub(super) fn send_next(&mut self, link: &mut dyn Link, lane: usize, slot_bytes: usize) -> Result<Sent> {
        let Some(mut next) = self.outgoing.pop_front() else {
            return Ok(Sent::Nothing);
        };
        let (frame, body) = match &next {
            Outgoing::Control(frame) => (*frame, Some(&[][..])),
            Outgoing::Eager { tag, bytes, task } => (Frame::Eager { tag: *tag }, part(&**task, 0, *bytes)),
            Outgoing::Data { recv, sent, bytes, task } => {
                let frame = Frame::Data { recv: *recv, offset: *sent as u64 };
                (frame, part(&**task, *sent, (*bytes).min(*sent + slot_bytes)))
            }
        };
        let Some(body) = body else {
            let text = "the buffer of a send became shorter while it was sent";
            return Ok(Sent::of(next, Err(Error::invalid_usage(text))));
        };
        let length = body.len();
        let sent = link.try_send(lane, &frame.encode(), length, &mut std::iter::once(Source::from(body)));
        if !matches!(sent, Ok(true)) {
            // The link wants the same frame again; after an error, the queue is what failed.
            self.outgoing.push_front(next);
            return sent.map(|_| Sent::Nothing).map_err(Error::from);
        }
        if let Outgoing::Data { sent, bytes, task, .. } = &mut next {
            *sent += length;
            task.progressed();
            if *sent < *bytes {
                // Other messages to the peer get their turn.
                self.outgoing.push_back(next);
                return Ok(Sent::Frame);
            }
        }
        Ok(Sent::of(next, Ok(())))
    }
}

/// Returns a part of a message, unless the buffer became shorter.
fn part(task: &dyn SendTask, start: usize, end: usize) -> Option<&[u8]> {
    task.bytes().get(start..end)
}
