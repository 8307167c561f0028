//! Messages of rank 0 over links whose other ends are a script, for tests and fuzzing.

use crate::engine::messages::frame::Frame;
use crate::engine::messages::{MessageInfo, Messages, Pattern, RecvTask, SendTask, Submission};
use crate::error::{Error, Result};
use crate::schedule::Rank;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use unisono_reducers::{Source, Store, Target, copy_to};
use unisono_transports::{Header, Link, Tag};

/// The state of rank 0, and what the script sees of it.
pub(super) struct Script {
    pub(super) messages: Messages,
    links: Vec<Option<Box<dyn Link>>>,
    wires: Vec<Arc<Mutex<Wire>>>,
    outcomes: Arc<Mutex<Outcomes>>,
}

/// The two directions between rank 0 and a peer.
#[derive(Default)]
struct Wire {
    /// Frames of the peer that have not been taken, with the lengths of their bodies.
    incoming: VecDeque<(Tag, usize)>,
    /// Frames that rank 0 has sent.
    sent: Vec<Frame>,
    /// True if there is no room for a frame of rank 0.
    full: bool,
    /// Number of frames of the peer that were taken.
    taken: usize,
}

/// The ends of messages.
#[derive(Debug, Default)]
pub(super) struct Outcomes {
    /// Number of messages that were posted.
    pub(super) posted: usize,
    /// Results of sends, in the order of their ends.
    pub(super) sends: Vec<Result<()>>,
    /// Results of receives, in the order of their ends.
    pub(super) receives: Vec<Result<MessageInfo>>,
    /// Number of messages that were dropped without an end.
    pub(super) lost: usize,
}

impl Outcomes {
    /// Returns the number of messages that have ended.
    pub(super) fn ended(&self) -> usize {
        self.sends.len() + self.receives.len()
    }
}

impl Script {
    /// Creates the state of rank 0 among `ranks` ranks.
    pub(super) fn new(ranks: usize) -> Self {
        let wires: Vec<Arc<Mutex<Wire>>> = (0..ranks).map(|_| Arc::default()).collect();
        let link = |(peer, wire): (Rank, &Arc<Mutex<Wire>>)| -> Option<Box<dyn Link>> {
            (peer > 0).then(|| Box::new(ScriptedLink { wire: Arc::clone(wire), current: None }) as _)
        };
        let links = wires.iter().enumerate().map(link).collect();
        Self { messages: Messages::new(0, ranks, LANE, SLOT_BYTES), links, wires, outcomes: Arc::default() }
    }

    fn wire(&self, peer: Rank) -> MutexGuard<'_, Wire> {
        self.wires[peer].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn outcomes(&self) -> MutexGuard<'_, Outcomes> {
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a frame with a body of `bytes` bytes arrive from `peer`.
    #[cfg(all(test, not(shuttle)))]
    pub(super) fn arrive(&self, peer: Rank, frame: Frame, bytes: usize) {
        self.arrive_raw(peer, frame.encode(), bytes);
    }

    /// Lets a frame with any tag arrive.
    pub(super) fn arrive_raw(&self, peer: Rank, tag: Tag, bytes: usize) {
        self.wire(peer).incoming.push_back((tag, bytes.min(SLOT_BYTES)));
    }

    /// Posts a send.
    pub(super) fn send(&mut self, receiver: Rank, tag: u64, bytes: usize) {
        let task = Box::new(Counted { buffer: Some(vec![0; bytes]), outcomes: self.post() });
        self.messages.submit(Submission::Send { to: receiver, tag, task });
    }

    /// Posts a receive.
    pub(super) fn receive(&mut self, source: Option<Rank>, tag: Option<u64>, bytes: usize) {
        let task = Box::new(Counted { buffer: Some(vec![0; bytes]), outcomes: self.post() });
        self.messages.submit(Submission::Recv { pattern: Pattern { source, tag }, task });
    }

    fn post(&self) -> Arc<Mutex<Outcomes>> {
        self.outcomes().posted += 1;
        Arc::clone(&self.outcomes)
    }

    /// Moves messages once.
    pub(super) fn progress(&mut self) -> Result<bool> {
        self.messages.progress(&mut self.links)
    }

    /// Moves messages until nothing more moves.
    #[cfg(all(test, not(shuttle)))]
    pub(super) fn settle(&mut self) -> Result<()> {
        while self.progress()? {}
        Ok(())
    }

    pub(super) fn probe(&mut self, source: Option<Rank>, tag: Option<u64>) -> Result<Option<MessageInfo>> {
        self.messages.probe(&Pattern { source, tag }, &mut self.links)
    }

    /// Returns the frames that were sent to `peer` since the last call.
    pub(super) fn take_sent(&self, peer: Rank) -> Vec<Frame> {
        std::mem::take(&mut self.wire(peer).sent)
    }

    /// Returns the number of frames of `peer` that were taken.
    pub(super) fn taken(&self, peer: Rank) -> usize {
        self.wire(peer).taken
    }

    /// Sets whether the link to `peer` has no room.
    pub(super) fn set_full(&self, peer: Rank, full: bool) {
        self.wire(peer).full = full;
    }
}

struct ScriptedLink {
    wire: Arc<Mutex<Wire>>,
    /// The frame that has arrived and is not released.
    current: Option<Header>,
}

impl ScriptedLink {
    fn wire(&self) -> MutexGuard<'_, Wire> {
        self.wire.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Link for ScriptedLink {
    fn try_send<'a>(
        &mut self,
        lane: usize,
        tag: &Tag,
        bytes: usize,
        parts: &mut dyn Iterator<Item = Source<'a>>,
    ) -> unisono_transports::Result<bool> {
        assert_eq!((lane, parts.map(|part| part.len()).sum::<usize>()), (LANE, bytes));
        let mut wire = self.wire();
        if !wire.full {
            wire.sent.push(Frame::decode(tag).expect("a frame"));
        }
        Ok(!wire.full)
    }

    fn header(&mut self, _lane: usize) -> unisono_transports::Result<Option<Header>> {
        if self.current.is_none() {
            let arrived = self.wire().incoming.pop_front();
            self.current = arrived.map(|(tag, bytes)| Header { tag, bytes });
        }
        Ok(self.current)
    }

    fn body(&mut self, lane: usize) -> unisono_transports::Result<Option<Source<'_>>> {
        Ok(self.header(lane)?.map(|header| Source::from(&BODY[..header.bytes])))
    }

    fn release(&mut self, _lane: usize) {
        let released = self.current.take();
        self.wire().taken += usize::from(released.is_some());
    }

    fn recv_into(&mut self, lane: usize, target: Target<'_>) -> unisono_transports::Result<bool> {
        let Some(body) = self.body(lane)? else { return Ok(false) };
        assert_eq!(target.len(), body.len());
        copy_to(Store::Cached, target, body);
        self.release(lane);
        Ok(true)
    }

    fn progress(&mut self) -> unisono_transports::Result<()> {
        Ok(())
    }
}

/// A message whose end is counted.
struct Counted {
    /// The buffer, until the message has ended.
    buffer: Option<Vec<u8>>,
    outcomes: Arc<Mutex<Outcomes>>,
}

impl Counted {
    fn end(mut self) -> Arc<Mutex<Outcomes>> {
        self.buffer = None;
        Arc::clone(&self.outcomes)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if self.buffer.is_some() {
            self.outcomes.lock().unwrap_or_else(PoisonError::into_inner).lost += 1;
        }
    }
}

impl SendTask for Counted {
    fn bytes(&self) -> &[u8] {
        self.buffer.as_deref().unwrap_or_default()
    }

    fn progressed(&self) {}

    fn finish(self: Box<Self>, result: Result<()>) {
        (*self).end().lock().unwrap_or_else(PoisonError::into_inner).sends.push(result);
    }
}

impl RecvTask for Counted {
    fn bytes_mut(&mut self) -> &mut [u8] {
        self.buffer.as_deref_mut().unwrap_or_default()
    }

    fn progressed(&self) {}

    fn finish(self: Box<Self>, result: Result<MessageInfo>) {
        (*self).end().lock().unwrap_or_else(PoisonError::into_inner).receives.push(result);
    }
}

/// Returns an error that ends messages.
pub(super) fn ending() -> Error {
    Error::invalid_usage("the script ends them")
}

const LANE: usize = 3;
pub(super) const SLOT_BYTES: usize = 64 << 10;
static BODY: [u8; SLOT_BYTES] = [7; SLOT_BYTES];
