//! Messages with tags: sends and receives that progress beside the collectives.
//!
//! The thread that holds the engine moves them: in the waits of a collective, in the wait for a
//! message, or in the background. They have a lane of their own on every link, so no collective
//! delays them and none is delayed.
//!
//! A message of up to [`EAGER_BYTES_MAX`] bytes is sent at once, as long as the receiver stores
//! less than [`EAGER_CREDIT`] bytes of this sender that nobody has asked for. A longer one waits
//! for its receive. So no sender can fill the memory of a receiver.

mod drive;
mod frame;
mod matching;
mod peer;
mod submission;

pub(in crate::engine) use crate::engine::messages::drive::wait_round;
pub use crate::engine::messages::matching::MessageInfo;
pub(crate) use crate::engine::messages::matching::{INTERNAL_TAGS, Pattern};
pub(crate) use crate::engine::messages::submission::{RecvTask, SendTask, Submission, SubmissionQueue};

use crate::engine::exec::message::link;
use crate::engine::messages::frame::Frame;
use crate::engine::messages::matching::Matcher;
use crate::engine::messages::peer::{Outgoing, PeerMessages, Sent};
use crate::engine::mismatch::count_mismatch;
use crate::error::{Error, ErrorKind, Result};
use crate::schedule::Rank;
use std::collections::HashMap;
use std::sync::Arc;
use unisono_cuda::{Source, Store, copy_to};
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

/// The content of a message that no receive was posted for.
enum Arrived {
    /// The whole message.
    Eager(Vec<u8>),
    /// The sender keeps it under this number.
    Request(u64),
}

/// A long message that its receiver knows of.
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
        !self.granted.is_empty() || self.matcher.posted().next().is_some()
    }

    /// Returns the number of bytes received since the last call.
    pub(super) fn take_received_bytes(&mut self) -> usize {
        std::mem::take(&mut self.received_bytes)
    }

    /// Takes up the posted messages, and moves all messages as far as possible. Returns whether any
    /// moved.
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
            if any_source || self.awaits(peer) {
                moved |= self.drain(peer, links, |own| own.awaits(peer) || own.awaits_any_source())?;
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
        if self.matcher.peek(pattern).is_none() {
            for peer in 0..self.peers.len() {
                if peer != self.rank && pattern.source.is_none_or(|source| source == peer) {
                    self.drain(peer, links, |_| true)?;
                }
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
        let bytes = task.bytes().to_vec();
        let info = MessageInfo::new(self.rank, tag, bytes.len());
        match self.take_posted(&info) {
            Some(receive) => self.deliver(info, bytes[..].into(), receive),
            None => self.matcher.arrive(info, Arrived::Eager(bytes)),
        }
        task.finish(Ok(()));
    }

    fn send(&mut self, to: Rank, tag: u64, task: Box<dyn SendTask>) {
        self.unsent += 1;
        let bytes = task.bytes().len();
        let peer = &mut self.peers[to];
        if bytes <= EAGER_BYTES_MAX.min(self.slot_bytes) && peer.spend_credit(bytes) {
            return peer.outgoing.push_back(Outgoing::Eager { tag, bytes, task });
        }
        let send = self.next_id;
        self.next_id += 1;
        let frame = Frame::Request { tag, bytes: bytes as u64, send };
        peer.outgoing.push_back(Outgoing::Control(frame));
        peer.awaited += 1;
        self.offered.insert(send, Offered { peer: to, task });
    }

    fn receive(&mut self, pattern: Pattern, task: Box<dyn RecvTask>) {
        match self.matcher.take_arrived(&pattern) {
            Some((info, Arrived::Eager(bytes))) => {
                self.deliver(info, bytes[..].into(), task);
                if info.source != self.rank {
                    self.peers[info.source].owe_credit(info.bytes);
                }
            }
            Some((info, Arrived::Request(send))) => self.grant(info, send, task),
            None => {
                pattern.source.into_iter().for_each(|source| self.peers[source].awaited += 1);
                self.matcher.post(pattern, task);
            }
        }
    }

    /// Hands a whole message to its receive.
    fn deliver(&mut self, info: MessageInfo, body: Source<'_>, mut task: Box<dyn RecvTask>) {
        let buffer = task.bytes_mut();
        let length = buffer.len();
        let result = match buffer.get_mut(..info.bytes) {
            Some(place) => {
                copy_to(Store::Cached, place.into(), body);
                Ok(info)
            }
            None => Err(count_mismatch(info.source, info.bytes, self.rank, length)),
        };
        self.received_bytes += info.bytes;
        task.finish(result);
    }

    /// Lets the sender of a long message send it to `task`.
    fn grant(&mut self, info: MessageInfo, send: u64, mut task: Box<dyn RecvTask>) {
        let length = task.bytes_mut().len();
        let recv = self.next_id;
        self.next_id += 1;
        let peer = &mut self.peers[info.source];
        if info.bytes > length {
            // The sender is told that its message cannot be taken.
            peer.outgoing.push_back(Outgoing::Control(Frame::Grant { send, recv: REFUSED | length as u64 }));
            return task.finish(Err(count_mismatch(info.source, info.bytes, self.rank, length)));
        }
        peer.outgoing.push_back(Outgoing::Control(Frame::Grant { send, recv }));
        peer.awaited += 1;
        self.granted.insert(recv, Granted { info, task, filled: 0 });
    }

    /// Sends what can be sent to `peer` without waiting.
    fn flush(&mut self, peer: Rank, links: &mut Links) -> Result<bool> {
        let state = &mut self.peers[peer];
        if state.outgoing.is_empty() {
            return Ok(false);
        }
        let link = link(links, peer)?;
        let mut moved = false;
        loop {
            match state.send_next(link, self.lane, self.slot_bytes)? {
                Sent::Nothing => return Ok(moved),
                Sent::Frame => {}
                Sent::Message(task, result) => {
                    self.unsent -= 1;
                    task.finish(result);
                }
            }
            moved = true;
        }
    }

    /// Receives what has arrived from `peer`, as long as `wanted` says so after each frame.
    fn drain(&mut self, peer: Rank, links: &mut Links, wanted: impl Fn(&Self) -> bool) -> Result<bool> {
        let link = link(links, peer)?;
        let mut moved = false;
        while self.receive_frame(peer, link)? {
            moved = true;
            if !wanted(self) {
                break;
            }
        }
        if !moved {
            link.progress()?;
        }
        Ok(moved)
    }

    /// Receives one frame of `peer`. Returns false if none has arrived whole.
    fn receive_frame(&mut self, peer: Rank, link: &mut dyn Link) -> Result<bool> {
        let Some(header) = link.header(self.lane)? else {
            return Ok(false);
        };
        let frame = Frame::decode(&header.tag).ok_or_else(|| violation(peer, "a frame of no known kind"))?;
        if !frame.has_body() && header.bytes > 0 {
            return Err(violation(peer, "a frame with a body that should have none"));
        }
        match frame {
            Frame::Eager { tag } => self.receive_eager(MessageInfo::new(peer, tag, header.bytes), link),
            Frame::Data { recv, offset } => self.receive_data(peer, recv, offset, header.bytes, link),
            _ => {
                if link.body(self.lane)?.is_none() {
                    return Ok(false);
                }
                link.release(self.lane);
                self.on_control(peer, frame)?;
                Ok(true)
            }
        }
    }

    fn on_control(&mut self, peer: Rank, frame: Frame) -> Result<()> {
        match frame {
            Frame::Request { tag, bytes, send } => {
                let bytes = usize::try_from(bytes).map_err(|_| violation(peer, "an impossible length"))?;
                let info = MessageInfo::new(peer, tag, bytes);
                match self.take_posted(&info) {
                    Some(task) => self.grant(info, send, task),
                    None => self.matcher.arrive(info, Arrived::Request(send)),
                }
            }
            Frame::Grant { send, recv } => self.on_grant(peer, send, recv)?,
            Frame::Credit { bytes } => {
                let returned = self.peers[peer].return_credit(bytes);
                returned.ok_or_else(|| violation(peer, "credit for bytes that were never sent"))?;
            }
            Frame::Eager { .. } | Frame::Data { .. } => {}
        }
        Ok(())
    }

    fn on_grant(&mut self, peer: Rank, send: u64, recv: u64) -> Result<()> {
        let known = self.offered.get(&send).is_some_and(|offered| offered.peer == peer);
        let Some(Offered { task, .. }) = self.offered.remove(&send).filter(|_| known) else {
            return Err(violation(peer, "a grant for a message that was not offered"));
        };
        let (state, bytes) = (&mut self.peers[peer], task.bytes().len());
        state.awaited -= 1;
        if recv & REFUSED != 0 {
            self.unsent -= 1;
            task.finish(Err(count_mismatch(self.rank, bytes, peer, (recv & !REFUSED) as usize)));
            return Ok(());
        }
        state.outgoing.push_back(Outgoing::Data { recv, sent: 0, bytes, task });
        Ok(())
    }

    /// Takes the posted receive for a message.
    fn take_posted(&mut self, info: &MessageInfo) -> Option<Box<dyn RecvTask>> {
        let (pattern, task) = self.matcher.take_posted(info)?;
        pattern.source.into_iter().for_each(|source| self.peers[source].awaited -= 1);
        Some(task)
    }

    /// Receives a short message: into the buffer of its receive, or into memory of this engine.
    fn receive_eager(&mut self, info: MessageInfo, link: &mut dyn Link) -> Result<bool> {
        let peer = info.source;
        if !self.peers[peer].accepts_eager(info.bytes) {
            return Err(violation(peer, "more bytes than it has credit for"));
        }
        let Some(body) = link.body(self.lane)? else {
            return Ok(false);
        };
        self.peers[peer].store(info.bytes);
        match self.take_posted(&info) {
            Some(task) => {
                self.deliver(info, body, task);
                self.peers[peer].owe_credit(info.bytes);
            }
            None => {
                let mut stored = vec![0; info.bytes];
                copy_to(Store::Cached, stored[..].as_mut().into(), body);
                self.matcher.arrive(info, Arrived::Eager(stored));
            }
        }
        link.release(self.lane);
        Ok(true)
    }

    /// Receives bytes of a granted message straight into the buffer of its receive.
    fn receive_data(
        &mut self,
        peer: Rank,
        recv: u64,
        offset: u64,
        bytes: usize,
        link: &mut dyn Link,
    ) -> Result<bool> {
        let granted = self.granted.get_mut(&recv).filter(|granted| granted.info.source == peer);
        let Some(granted) = granted.filter(|granted| granted.filled as u64 == offset) else {
            return Err(violation(peer, "data that was not granted"));
        };
        let (filled, total) = (granted.filled, granted.info.bytes);
        let end = filled.checked_add(bytes).filter(|&end| end <= total);
        let place = end.and_then(|end| granted.task.bytes_mut().get_mut(filled..end));
        let Some(place) = place else {
            return Err(violation(peer, "more data than it announced"));
        };
        if !link.recv_into(self.lane, place.into())? {
            return Ok(false);
        }
        self.received_bytes += bytes;
        granted.filled += bytes;
        granted.task.progressed();
        if granted.filled == total
            && let Some(Granted { info, task, .. }) = self.granted.remove(&recv)
        {
            self.peers[peer].awaited -= 1;
            task.finish(Ok(info));
        }
        Ok(true)
    }

    /// Returns the ranks that messages wait for.
    pub(super) fn awaited(&self) -> impl Iterator<Item = Rank> {
        (0..self.peers.len()).filter(|&peer| self.peers[peer].awaited > 0)
    }

    /// Returns the ranks without which no message moves: those from which one is expected, and
    /// those that have no room for one.
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
        let offered = self.offered.extract_if(|_, offered| offered.peer == peer);
        let mut unsent: Vec<_> = offered.map(|(_, offered)| offered.task).collect();
        let granted = self.granted.extract_if(|_, granted| granted.info.source == peer);
        granted.for_each(|(_, granted)| granted.task.finish(Err(error.clone())));
        unsent.extend(
            std::mem::take(&mut self.peers[peer].outgoing).into_iter().filter_map(Outgoing::into_task),
        );
        self.unsent -= unsent.len();
        unsent.into_iter().for_each(|task| task.finish(Err(error.clone())));
        self.peers[peer] = PeerMessages::default();
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
        self.matcher.posted().any(|pattern| pattern.source.is_none())
    }
}

fn violation(peer: Rank, what: &str) -> Error {
    Error::new(ErrorKind::ProtocolViolation { peer, what: what.to_owned() })
}

/// Longest message that is sent before its receive is known.
const EAGER_BYTES_MAX: usize = 128 << 10;
/// Bytes that a receiver stores for one sender before a receive asks for them.
const EAGER_CREDIT: usize = 2 << 20;
/// Bytes that a stored message counts beyond its length, so that empty ones are bounded too.
const EAGER_OVERHEAD: usize = 64;
/// Bit of a grant that refuses: the other bits are the length of the receive's buffer.
const REFUSED: u64 = 1 << 63;
