//! Messages with tags, which are sends and receives that progress at the same time as collectives.
//!
//! The thread that holds the engine moves messages. It does so while a collective waits, while a
//! thread waits for a message, or in the background. Messages have a separate lane on every link,
//! so they do not delay collectives, and collectives do not delay them.
//!
//! A message of up to [`EAGER_BYTES_MAX`] bytes is sent at once, and the receiver stores it until
//! its receive comes. A receiver stores at most [`EAGER_CREDIT`] bytes of each sender. A message
//! that is longer, or that does not fit into this space, is announced and waits for its receive. A
//! receiver stores [`ANNOUNCED_MAX`] announcements of a sender, and the sender keeps further
//! messages. So no sender can fill the memory of a receiver.
//!
//! Every frame carries something that is bounded: credit, an announcement, a grant, or bytes of a
//! granted message. A frame that carries nothing is a violation. One round takes at most
//! [`FRAMES_PER_LOOK`] frames of a peer, so that no peer keeps this rank from its own waits and
//! their deadlines.

mod drive;
mod frame;
#[cfg(any(test, feature = "fuzzing"))]
mod fuzzing;
mod matching;
mod peer;
mod receiving;
#[cfg(any(test, feature = "fuzzing"))]
mod scripted;
mod submission;
#[cfg(all(test, not(shuttle)))]
mod tests;
mod waiting;

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use crate::engine::messages::fuzzing::fuzz;
pub use crate::engine::messages::matching::MessageInfo;
pub(crate) use crate::engine::messages::matching::{INTERNAL_TAGS, Pattern};
pub(crate) use crate::engine::messages::submission::{RecvTask, SendTask, Submission, SubmissionQueue};

use crate::engine::exec::message::link;
use crate::engine::messages::frame::Frame;
use crate::engine::messages::matching::Matcher;
use crate::engine::messages::peer::{Outgoing, PeerMessages, Sent};
use crate::engine::messages::receiving::violation;
use crate::engine::mismatch::count_mismatch;
use crate::error::{Error, Result};
use crate::schedule::Rank;
use std::collections::hash_map::{Entry, HashMap};
use std::sync::Arc;
use unisono_transports::Link;

/// The links of a fabric, by rank.
pub(super) type Links = [Option<Box<dyn Link>>];

/// The messages of one communicator at one rank.
pub(super) struct Messages {
    rank: Rank,
    lane: usize,
    slot_bytes: usize,
    submissions: Arc<SubmissionQueue>,
    matcher: Matcher<Box<dyn RecvTask>, Arrived>,
    /// The sends whose receivers have not granted a place yet.
    offered: HashMap<u64, Offered>,
    /// The receives whose data is on the way.
    granted: HashMap<u64, Granted>,
    peers: Vec<PeerMessages>,
    next_id: u64,
    /// Number of sends that are not done.
    unsent: usize,
    /// Number of bytes received.
    received_bytes: usize,
}

/// The content of a message for which no receive was posted.
enum Arrived {
    /// The whole message.
    Eager(Vec<u8>),
    /// The number under which the sender keeps the message.
    Request(u64),
}

/// A long message that was announced to its receiver.
struct Offered {
    peer: Rank,
    task: Box<dyn SendTask>,
}

/// A receive of a long message that its sender may send.
struct Granted {
    info: MessageInfo,
    task: Box<dyn RecvTask>,
    filled: usize,
}

impl Messages {
    pub(super) fn new(rank: Rank, ranks: usize, lane: usize, slot_bytes: usize) -> Self {
        Self {
            rank,
            lane,
            slot_bytes,
            submissions: Arc::default(),
            matcher: Matcher::default(),
            offered: HashMap::new(),
            granted: HashMap::new(),
            peers: (0..ranks).map(|_| PeerMessages::default()).collect(),
            next_id: 0,
            unsent: 0,
            received_bytes: 0,
        }
    }

    /// Returns the queue through which other threads post messages.
    pub(super) fn submissions(&self) -> &Arc<SubmissionQueue> {
        &self.submissions
    }

    /// Returns the number of sends that are not done.
    pub(super) fn unsent(&self) -> usize {
        self.unsent
    }

    /// Returns whether a message is under way or waited for.
    #[inline]
    pub(super) fn is_active(&self) -> bool {
        self.submissions.is_filled() || self.unsent > 0 || self.is_receiving()
    }

    fn is_receiving(&self) -> bool {
        !self.granted.is_empty() || self.matcher.has_posted()
    }

    /// Returns the number of bytes received since the last call.
    pub(super) fn take_received_bytes(&mut self) -> usize {
        std::mem::take(&mut self.received_bytes)
    }

    /// Takes the posted messages from the queue, and moves all messages as far as possible. Returns
    /// true if any moved.
    #[inline(never)] // It would lengthen every wait of an operation.
    pub(super) fn progress(&mut self, links: &mut Links) -> Result<bool> {
        self.take_submissions();
        let mut moved = false;
        let any_source = self.awaits_any_source();
        for peer in 0..self.peers.len() {
            if peer == self.rank {
                continue;
            }
            moved |= self.flush(peer, links)?;
            // Each look at a link takes time in the wait of an operation. So a peer is looked at
            // only if it has to send data, a grant or credit.
            if any_source || self.awaits(peer) {
                // The look ends with the last awaited frame, because one more look would find
                // nothing.
                let wanted = |messages: &Self| messages.awaits(peer) || messages.awaits_any_source();
                moved |= self.drain(peer, links, FRAMES_PER_LOOK, wanted)?;
                // A grant that was just made leaves at once.
                moved |= self.flush(peer, links)?;
            }
        }
        Ok(moved)
    }

    /// Returns whether something is expected from `peer`.
    fn awaits(&self, peer: Rank) -> bool {
        let state = &self.peers[peer];
        state.awaited > 0 || state.is_short_of_credit()
    }

    /// Returns the first message that has arrived and that `pattern` accepts.
    pub(super) fn probe(&mut self, pattern: &Pattern, links: &mut Links) -> Result<Option<MessageInfo>> {
        let absent = |messages: &Self| messages.matcher.peek(pattern).is_none();
        for peer in 0..self.peers.len() {
            if peer != self.rank && pattern.source.is_none_or(|source| source == peer) && absent(self) {
                self.drain(peer, links, FRAMES_PER_PROBE, absent)?;
            }
        }
        Ok(self.matcher.peek(pattern))
    }

    /// Takes up the messages that other threads posted.
    pub(super) fn take_submissions(&mut self) {
        for submission in self.submissions.take() {
            self.submit(submission);
        }
    }

    /// Takes up one posted message.
    pub(super) fn submit(&mut self, submission: Submission) {
        match submission {
            Submission::Send { to, tag, task } if to == self.rank => self.send_to_self(tag, task),
            Submission::Send { to, tag, task } => self.send(to, tag, task),
            Submission::Recv { pattern, task } => self.receive(pattern, task),
        }
    }

    fn send_to_self(&mut self, tag: u64, task: Box<dyn SendTask>) {
        // The send is complete at once, so the bytes are copied and do not wait for a receive.
        let bytes = task.bytes().to_vec();
        let info = MessageInfo::new(self.rank, tag, bytes.len());
        match self.take_posted(&info) {
            Some(receive) => self.deliver(info, bytes[..].into(), receive),
            None => self.matcher.arrive(info, Arrived::Eager(bytes)),
        }
        task.finish(Ok(()));
    }

    fn send(&mut self, receiver: Rank, tag: u64, task: Box<dyn SendTask>) {
        self.unsent += 1;
        // Messages to a peer keep their order.
        let held = if self.peers[receiver].held.is_empty() {
            self.start_send(receiver, tag, task)
        } else {
            Some(task)
        };
        if let Some(task) = held {
            self.peers[receiver].held.push_back((tag, task));
        }
    }

    /// Sends or announces a message. Returns the message if the peer has no room for it or its
    /// announcement.
    fn start_send(&mut self, receiver: Rank, tag: u64, task: Box<dyn SendTask>) -> Option<Box<dyn SendTask>> {
        let bytes = task.bytes().len();
        let peer = &mut self.peers[receiver];
        if bytes <= EAGER_BYTES_MAX.min(self.slot_bytes) && peer.spend_credit(bytes) {
            peer.outgoing.push_back(Outgoing::Eager { tag, bytes, task });
            return None;
        }
        if !peer.announce() {
            return Some(task);
        }
        let send = self.next_id;
        self.next_id += 1;
        let frame = Frame::Request { tag, bytes: bytes as u64, send };
        peer.outgoing.push_back(Outgoing::Control(frame));
        peer.awaited += 1;
        self.offered.insert(send, Offered { peer: receiver, task });
        None
    }

    /// Sends or announces the messages to a peer that were held, as far as there is room.
    fn release_held(&mut self, receiver: Rank) {
        while let Some((tag, task)) = self.peers[receiver].held.pop_front() {
            if let Some(task) = self.start_send(receiver, tag, task) {
                // The message goes back to the front, because messages to a peer keep their order.
                return self.peers[receiver].held.push_front((tag, task));
            }
        }
    }

    /// Sends what can be sent to `peer` without waiting.
    fn flush(&mut self, peer: Rank, links: &mut Links) -> Result<bool> {
        let state = &mut self.peers[peer];
        if state.outgoing.is_empty() {
            return Ok(false);
        }
        let link = link(links, peer)?;
        let mut moved = false;
        for _ in 0..FRAMES_PER_LOOK {
            match state.send_next(link, self.lane, self.slot_bytes)? {
                Sent::Nothing => break,
                Sent::Frame => {}
                Sent::Message(task, result) => {
                    self.unsent -= 1;
                    task.finish(result);
                }
            }
            moved = true;
        }
        Ok(moved)
    }

    /// Receives what has arrived from `peer`, up to `frames` frames, and as long as `wanted` says
    /// so after each of them.
    fn drain(
        &mut self,
        peer: Rank,
        links: &mut Links,
        frames: usize,
        wanted: impl Fn(&Self) -> bool,
    ) -> Result<bool> {
        let link = link(links, peer)?;
        let (mut moved, mut is_drained) = (false, false);
        for _ in 0..frames {
            is_drained = !self.receive_frame(peer, link)?;
            moved |= !is_drained;
            if is_drained || !wanted(self) {
                break;
            }
        }
        self.peers[peer].is_drained = is_drained;
        if !moved {
            link.progress()?;
        }
        Ok(moved)
    }

    /// Sends a message for which the receiver has granted a place, or ends a message that the
    /// receiver has refused.
    fn on_grant(&mut self, peer: Rank, send: u64, recv: u64) -> Result<()> {
        let task = match self.offered.entry(send) {
            Entry::Occupied(offered) if offered.get().peer == peer => offered.remove().task,
            _ => return Err(violation(peer, "a grant for a message that was not offered to it")),
        };
        let (state, bytes) = (&mut self.peers[peer], task.bytes().len());
        state.awaited -= 1;
        state.is_granted();
        if recv & REFUSED != 0 {
            self.unsent -= 1;
            task.finish(Err(count_mismatch(self.rank, bytes, peer, (recv & !REFUSED) as usize)));
        } else {
            state.outgoing.push_back(Outgoing::Data { recv, sent: 0, bytes, task });
        }
        self.release_held(peer);
        Ok(())
    }

    /// Returns the ranks that messages wait for, although all that they sent has been received.
    pub(super) fn awaited_in_vain(&self) -> impl Iterator<Item = Rank> {
        (0..self.peers.len()).filter(|&peer| self.peers[peer].awaited > 0 && self.is_drained(peer))
    }

    /// Returns whether the last look found nothing more of `peer`.
    pub(super) fn is_drained(&self, peer: Rank) -> bool {
        self.peers[peer].is_drained
    }

    /// Returns the ranks for which messages wait, because a message is expected from them or they
    /// have no room for one.
    pub(super) fn partners(&self) -> impl Iterator<Item = Rank> {
        let any_source = self.awaits_any_source();
        (0..self.peers.len()).filter(move |&peer| {
            peer != self.rank && (any_source || self.awaits(peer) || !self.peers[peer].outgoing.is_empty())
        })
    }

    /// Ends the messages to and from `peer` with `error`.
    pub(super) fn fail_peer(&mut self, peer: Rank, error: &Error) {
        let posted = self.matcher.take_posted_where(|pattern| pattern.source == Some(peer));
        posted.into_iter().for_each(|(_, task)| task.finish(Err(error.clone())));
        // A message that the peer has only announced never comes.
        let is_announced = |info: &MessageInfo, content: &Arrived| {
            info.source == peer && matches!(content, Arrived::Request(_))
        };
        self.matcher.drop_arrived_where(is_announced);
        let granted = self.granted.extract_if(|_, granted| granted.info.source == peer);
        granted.for_each(|(_, granted)| granted.task.finish(Err(error.clone())));
        let offered = self.offered.extract_if(|_, offered| offered.peer == peer);
        let mut unsent: Vec<_> = offered.map(|(_, offered)| offered.task).collect();
        unsent.extend(self.peers[peer].end());
        self.unsent -= unsent.len();
        unsent.into_iter().for_each(|task| task.finish(Err(error.clone())));
    }

    /// Ends the receives from any source with `error`.
    pub(super) fn fail_any_source(&mut self, error: &Error) {
        let posted = self.matcher.take_posted_where(|pattern| pattern.source.is_none());
        posted.into_iter().for_each(|(_, task)| task.finish(Err(error.clone())));
    }

    /// Ends all messages with `error`.
    pub(super) fn fail_all(&mut self, error: &Error) {
        self.submissions.take().into_iter().for_each(|submission| submission.fail(error));
        (0..self.peers.len()).for_each(|peer| self.fail_peer(peer, error));
        self.fail_any_source(error);
    }

    /// Returns whether receives from any source are posted.
    pub(super) fn awaits_any_source(&self) -> bool {
        self.matcher.awaits_any_source()
    }
}

/// Longest message that is sent before its receive is known.
const EAGER_BYTES_MAX: usize = 128 << 10;
/// Number of bytes without a posted receive that a receiver stores for one sender.
const EAGER_CREDIT: usize = 2 << 20;
/// Number of bytes that is added to the length of each stored message, so that the number of empty
/// messages is bounded, too.
const EAGER_OVERHEAD: usize = 64;
/// Number of announcements without a posted receive that a receiver stores for one sender.
const ANNOUNCED_MAX: usize = 1 << 14;
/// Largest number of frames to or from one peer in one round, so that the round ends even if the
/// peer is fast.
const FRAMES_PER_LOOK: usize = 64;
/// Number of frames of one peer that a probe takes. It is the number that the peer may send without
/// posted receives.
const FRAMES_PER_PROBE: usize = EAGER_CREDIT / EAGER_OVERHEAD + ANNOUNCED_MAX;
/// Bit of a grant that refuses the message. The other bits are then the length of the receive's
/// buffer.
const REFUSED: u64 = 1 << 63;
