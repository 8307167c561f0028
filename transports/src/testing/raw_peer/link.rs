//! The links of a peer that breaks the protocol.

use super::frame::Frame;
use super::{State, Wrong, lock};
use crate::tcp::TcpLink;
use crate::tcp::connect::lazy_link::LazyLink;
use crate::{Footprint, Header, Link, Result, Tag};
use std::any::Any;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use unisono_reducers::{Source, Store, Target, copy_to};

/// A link that carries frames of its own beside those of its user.
pub(super) struct RawLink {
    /// `None` once the connection has ended.
    inner: Option<Box<dyn Link>>,
    state: Arc<Mutex<State>>,
    /// A frame of the user is partly sent.
    is_sending: bool,
    /// Frames go through the queue, since the first one that was changed.
    is_diverted: bool,
    /// Frames to send, and how often each.
    queue: VecDeque<(Frame, usize)>,
    /// A frame that comes after so many others.
    held: Option<(usize, Frame)>,
}

impl RawLink {
    pub(super) fn new(inner: Box<dyn Link>, state: Arc<Mutex<State>>) -> Self {
        let (queue, held) = (VecDeque::new(), None);
        Self { inner: Some(inner), state, is_sending: false, is_diverted: false, queue, held }
    }

    /// Sends what is in the queue. A frame that the link refuses is dropped.
    fn pump(&mut self) {
        let Some(inner) = &mut self.inner else { return self.queue.clear() };
        while let Some((Frame { lane, tag, body }, times)) = self.queue.front_mut() {
            let parts = &mut std::iter::once(Source::from(&body[..]));
            if let Ok(false) = inner.try_send(*lane, tag, body.len(), parts) {
                return;
            }
            *times -= 1;
            if *times == 0 {
                self.queue.pop_front();
            }
        }
    }

    /// Puts a frame into the queue, and one that was held for it.
    fn push(&mut self, frame: Frame) {
        self.queue.push_back((frame, 1));
        match self.held.take() {
            Some((0, held)) => self.queue.push_back((held, 1)),
            Some((after, held)) => self.held = Some((after - 1, held)),
            None => {}
        }
    }

    fn tcp(&mut self) -> Option<&mut TcpLink> {
        let inner = &mut **self.inner.as_mut()? as &mut dyn Any;
        match inner.is::<TcpLink>() {
            true => inner.downcast_mut::<TcpLink>(),
            false => inner.downcast_mut::<LazyLink>()?.connected(),
        }
    }

    /// Does the wrong thing, to this frame if there is one.
    fn act(&mut self, frame: Option<Frame>) {
        self.is_diverted = true;
        let shared = Arc::clone(&self.state);
        let state = &mut *lock(&shared);
        let intact = frame.clone();
        let mut changed = state.frame_like(frame);
        match state.wrong {
            Wrong::Length => {
                let more = if self.tcp().is_some() { 4096 } else { 0 };
                let bytes_max = state.slot_bytes + more;
                state.change_length(&mut changed, bytes_max);
                self.push(changed);
            }
            Wrong::Repeat => {
                intact.into_iter().for_each(|frame| self.push(frame));
                self.queue.push_back((changed, state.random.choose(&[1, 1, 2, 40])));
            }
            Wrong::Swap => self.held = intact.map(|frame| (0, frame)),
            Wrong::Withhold => {}
            Wrong::Tag => {
                state.change_tag(&mut changed.tag);
                self.push(changed);
            }
            Wrong::Lane => {
                changed.lane = state.random.below(state.lanes);
                self.push(changed);
            }
            Wrong::Contents => {
                state.change_contents(&mut changed);
                self.push(changed);
                // The next frames may be changed as well.
                state.has_acted = state.random.one_in(4);
            }
            Wrong::Late => {
                intact.into_iter().for_each(|frame| self.push(frame));
                self.held = Some((1 + state.random.below(6), changed));
            }
            Wrong::Early => {
                let word = state.random.choose(&[0, 3]);
                changed.tag.0[word] = changed.tag.0[word].wrapping_add(1 + state.random.below(3) as u64);
                self.push(changed);
                intact.into_iter().for_each(|frame| self.push(frame));
            }
            Wrong::Message => {
                self.queue.extend(state.messages());
                intact.into_iter().for_each(|frame| self.push(frame));
            }
            Wrong::Unframed => self.send_unframed(state, intact),
            Wrong::Memory | Wrong::Control | Wrong::UnframedControl => {
                match state.wrong {
                    Wrong::Memory => state.write_memory(),
                    _ => state.make_notes(),
                }
                intact.into_iter().for_each(|frame| self.push(frame));
            }
            Wrong::Silence => state.is_silent = true,
            Wrong::Close => self.inner = None,
        }
        state.is_silent |= state.wrong != Wrong::Contents && state.random.one_in(4);
    }

    /// Sends bytes that are no frame before a frame of the user. One that is not connected yet
    /// tries again with the next frame.
    fn send_unframed(&mut self, state: &mut State, intact: Option<Frame>) {
        let (bytes, socket) = (state.unframed(), state.random.below(4));
        match self.tcp() {
            Some(tcp) => tcp.send_unframed(socket, &bytes),
            None => state.has_acted = false,
        }
        intact.into_iter().for_each(|frame| self.push(frame));
    }
}

impl Link for RawLink {
    fn try_send<'a>(
        &mut self,
        lane: usize,
        tag: &Tag,
        bytes: usize,
        parts: &mut dyn Iterator<Item = Source<'a>>,
    ) -> Result<bool> {
        let acts = !self.is_sending && lock(&self.state).is_time(false);
        if !acts && !self.is_diverted {
            let Some(inner) = &mut self.inner else { return Ok(true) };
            let sent = inner.try_send(lane, tag, bytes, parts)?;
            if !self.is_sending {
                // Lengths are enough for most of what is repeated, and copies take time.
                let kept = Frame { lane, tag: *tag, body: vec![1; bytes] };
                State::keep(&mut lock(&self.state).sent, kept);
            }
            self.is_sending = !sent;
            return Ok(sent);
        }
        self.pump();
        if self.queue.len() > QUEUE_MAX && !acts {
            return Ok(false);
        }
        let mut body = Vec::with_capacity(bytes);
        for part in parts {
            let start = body.len();
            body.resize(start + part.len(), 0);
            copy_to(Store::Cached, Target::from(&mut body[start..]), part);
        }
        let frame = Frame { lane, tag: *tag, body };
        if acts {
            self.act(Some(frame));
        } else if !lock(&self.state).is_silent {
            self.push(frame);
        }
        self.pump();
        Ok(true)
    }

    fn header(&mut self, lane: usize) -> Result<Option<Header>> {
        if !self.is_sending && lock(&self.state).is_time(true) {
            self.act(None);
        }
        self.pump();
        let Some(inner) = &mut self.inner else { return Ok(None) };
        let found = inner.header(lane)?;
        if let Some(Header { tag, .. }) = found {
            State::keep(&mut lock(&self.state).arrived, Frame { lane, tag, body: Vec::new() });
        }
        Ok(found)
    }

    fn body(&mut self, lane: usize) -> Result<Option<Source<'_>>> {
        self.inner.as_mut().map_or(Ok(None), |inner| inner.body(lane))
    }

    fn release(&mut self, lane: usize) {
        if let Some(inner) = &mut self.inner {
            inner.release(lane);
        }
    }

    fn recv_into(&mut self, lane: usize, target: Target<'_>) -> Result<bool> {
        self.inner.as_mut().map_or(Ok(false), |inner| inner.recv_into(lane, target))
    }

    fn progress(&mut self) -> Result<()> {
        self.pump();
        self.inner.as_mut().map_or(Ok(()), |inner| inner.progress())
    }

    fn drain(&mut self, limit: Duration) -> bool {
        self.pump();
        self.inner.as_mut().is_none_or(|inner| inner.drain(limit))
    }

    fn footprint(&self) -> Footprint {
        self.inner.as_ref().map_or_else(Footprint::default, |inner| inner.footprint())
    }
}

/// Frames in the queue from which on the user waits.
const QUEUE_MAX: usize = 64;
