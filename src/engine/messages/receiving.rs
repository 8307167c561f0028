//! The receiving side of messages: frames that arrive, and receives that are posted.

use crate::engine::messages::frame::Frame;
use crate::engine::messages::matching::{MessageInfo, Pattern};
use crate::engine::messages::submission::RecvTask;
use crate::engine::messages::{Arrived, Granted, Messages, REFUSED};
use crate::engine::mismatch::count_mismatch;
use crate::error::{Error, ErrorKind, Result};
use crate::schedule::Rank;
use unisono_reducers::{Source, Store, copy_to};
use unisono_transports::Link;

impl Messages {
    /// Takes up a posted receive.
    pub(super) fn receive(&mut self, pattern: Pattern, task: Box<dyn RecvTask>) {
        match self.matcher.take_arrived(&pattern) {
            Some((info, Arrived::Eager(bytes))) => {
                self.deliver(info, bytes[..].into(), task);
                // A message of this rank to itself has spent no credit.
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
    pub(super) fn deliver(&mut self, info: MessageInfo, body: Source<'_>, mut task: Box<dyn RecvTask>) {
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
            peer.grant(send, REFUSED | length as u64);
            return task.finish(Err(count_mismatch(info.source, info.bytes, self.rank, length)));
        }
        peer.grant(send, recv);
        peer.awaited += 1;
        self.granted.insert(recv, Granted { info, task, filled: 0 });
    }

    /// Receives one frame of `peer`. Returns false if none has arrived whole.
    pub(super) fn receive_frame(&mut self, peer: Rank, link: &mut dyn Link) -> Result<bool> {
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
                // A link drops only a message whose body it has returned, so the empty body is
                // fetched, too.
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
                // Programs allocate memory of this length, and no memory is longer.
                let bytes = usize::try_from(bytes).ok().filter(|&bytes| isize::try_from(bytes).is_ok());
                let bytes = bytes.ok_or_else(|| violation(peer, "an impossible length"))?;
                if !self.peers[peer].accept_announcement() {
                    return Err(violation(peer, "more announcements than a receiver stores"));
                }
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
                self.release_held(peer);
            }
            Frame::Eager { .. } | Frame::Data { .. } => {}
        }
        Ok(())
    }

    /// Takes the posted receive for a message.
    pub(super) fn take_posted(&mut self, info: &MessageInfo) -> Option<Box<dyn RecvTask>> {
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
        // The sender has spent credit for the message. So it counts as stored even if a receive
        // takes it at once, and the same credit is returned below.
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
        if bytes == 0 && total > 0 {
            return Err(violation(peer, "data without a byte"));
        }
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
}

/// Returns the error about a frame that breaks the rules.
pub(super) fn violation(peer: Rank, what: &str) -> Error {
    Error::new(ErrorKind::ProtocolViolation { peer, what: what.to_owned() })
}
