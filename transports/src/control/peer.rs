//! One socket of the remote control channel, with the bytes that are half written and half read.
//!
//! A message is two bytes of length, little-endian, and at most [`MAX_CONTROL_MSG_BYTES`].

use crate::net::stream::Stream;
use crate::secure::record::RecordLayer;
use crate::sys::close_on_fork::CloseOnFork;
use crate::sys::socket_calls::{is_reset, is_unreachable};
use crate::tcp::connect::lazy_link::{DialContext, Liveness, LivenessProbe};
use crate::{MAX_CONTROL_MSG_BYTES, PeerEvent, Result};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

/// The connection to one peer.
#[derive(Debug)]
pub(super) struct Peer {
    _close_on_fork: CloseOnFork,
    pub(super) stream: Stream,
    pub(super) outgoing: Vec<u8>,
    incoming: Vec<u8>,
    closed: bool,
    /// The peer's host did not answer before the connection closed.
    unreachable: bool,
    /// The connection was reset.
    reset: bool,
    /// Address of the peer's acceptor, to which a liveness probe connects after a reset.
    pub(super) listener_address: Option<SocketAddr>,
    probe: Option<LivenessProbe>,
    /// Number of bytes that the peer may not have read. These are the bytes that were posted since
    /// the peer last sent anything.
    unacked_bytes: usize,
    /// Time without an answer after which the peer's host is unreachable. It is `None` if nothing
    /// checks this.
    keepalive_timeout: Option<Duration>,
}

impl Peer {
    pub(super) fn new(stream: Stream) -> Result<Self> {
        stream.set_nonblocking()?;
        Ok(Self {
            _close_on_fork: CloseOnFork::new(stream.as_fd()),
            stream,
            outgoing: Vec::new(),
            incoming: Vec::new(),
            closed: false,
            unreachable: false,
            reset: false,
            listener_address: None,
            probe: None,
            unacked_bytes: 0,
            keepalive_timeout: None,
        })
    }

    pub(super) fn enable_keepalive(&mut self, timeout: Duration) -> Result<()> {
        self.keepalive_timeout = Some(timeout);
        self.stream.set_keepalive(timeout)
    }

    /// Queues a message and sends as much as the kernel takes. A full queue drops the message.
    pub(super) fn post(&mut self, message: &[u8]) {
        if !self.closed && self.outgoing.len() < OUTGOING_BYTES_MAX {
            self.outgoing.extend((message.len() as u16).to_le_bytes());
            self.outgoing.extend(message);
            self.on_posted(2 + message.len());
        }
        self.flush();
    }

    /// Bytes of the buffers of this connection.
    pub(super) fn buffer_bytes(&self) -> usize {
        let sealed = self.stream.record_layer().map_or(0, RecordLayer::buffer_bytes);
        self.incoming.capacity() + self.outgoing.capacity() + sealed
    }

    /// Returns the next event of this peer, if there is one.
    pub(super) fn poll(&mut self, rank: usize, context: Option<&DialContext>) -> Option<PeerEvent> {
        self.flush();
        // Messages come before the end of the connection, because they may give the reason for it.
        if let Some(bytes) = self.next_message() {
            return Some(PeerEvent::Message { from: rank, bytes });
        }
        if self.closed {
            return self.poll_probe(rank, context);
        }
        let mut buffer = [0; 2 * MAX_CONTROL_MSG_BYTES];
        match self.stream.read(&mut buffer) {
            Ok(None) => None,
            Ok(Some(count)) if count > 0 => {
                self.incoming.extend(&buffer[..count]);
                self.on_received();
                self.next_message().map(|bytes| PeerEvent::Message { from: rank, bytes })
            }
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                // The record layer shuts the connection down. So the end that is read next comes
                // from this rank, and says nothing about the peer.
                self.reset = true;
                tracing::error!(rank, %error, "the control connection was tampered with");
                Some(PeerEvent::Message { from: rank, bytes: Vec::new() })
            }
            ended => {
                self.closed = true;
                ended.err().iter().for_each(|error| self.record_error(error));
                self.on_closed(rank, context)
            }
        }
    }

    /// Disables keepalive while the peer reads nothing. The kernel treats a full socket like a host
    /// that does not answer, and a busy peer must not look unreachable.
    fn on_posted(&mut self, bytes: usize) {
        let earlier_bytes = self.unacked_bytes;
        self.unacked_bytes += bytes;
        if self.keepalive_timeout.is_some()
            && earlier_bytes <= UNACKED_BYTES_MAX
            && self.unacked_bytes > UNACKED_BYTES_MAX
        {
            let _ = self.stream.set_keepalive(Duration::ZERO);
        }
    }

    /// Enables keepalive again, because a peer that writes also reads.
    fn on_received(&mut self) {
        if let (Some(timeout), true) = (self.keepalive_timeout, self.unacked_bytes > UNACKED_BYTES_MAX) {
            let _ = self.stream.set_keepalive(timeout);
        }
        self.unacked_bytes = 0;
    }

    pub(super) fn flush(&mut self) {
        while !self.outgoing.is_empty() {
            match self.stream.write(&self.outgoing) {
                Ok(0) => return,
                Ok(sent) => drop(self.outgoing.drain(..sent)),
                // The peer is gone. A later read reports the end, but not its reason.
                Err(error) => {
                    self.record_error(&error);
                    self.outgoing.clear();
                }
            }
        }
        if let Err(error) = self.stream.flush() {
            self.record_error(&error);
        }
    }

    /// Records the reason for which the connection ends, because the kernel reports it once.
    fn record_error(&mut self, error: &std::io::Error) {
        self.unreachable |= is_unreachable(error);
        self.reset |= is_reset(error);
    }

    /// Returns the event for a connection that has closed. A reset proves nothing, so a probe
    /// connects to the peer's host.
    fn on_closed(&mut self, rank: usize, context: Option<&DialContext>) -> Option<PeerEvent> {
        match (self.listener_address, context) {
            _ if self.unreachable => Some(PeerEvent::Unreachable { from: rank }),
            (Some(address), Some(context)) if self.reset => {
                self.probe = Some(LivenessProbe::new(address, context));
                self.poll_probe(rank, Some(context))
            }
            _ => Some(PeerEvent::Exited { from: rank }),
        }
    }

    /// Returns the result of the probe, once.
    fn poll_probe(&mut self, rank: usize, context: Option<&DialContext>) -> Option<PeerEvent> {
        let liveness = self.probe.as_mut()?.advance(context?)?;
        self.probe = None;
        tracing::info!(rank, ?liveness, "the control connection was reset");
        let dead = liveness == Liveness::Dead;
        Some(if dead { PeerEvent::Exited { from: rank } } else { PeerEvent::Reset { from: rank } })
    }

    /// Takes the next whole message. A length above the limit drops all that was received, and
    /// gives an empty message.
    fn next_message(&mut self) -> Option<Vec<u8>> {
        let (length, body) = self.incoming.split_first_chunk::<2>()?;
        let length = u16::from_le_bytes(*length) as usize;
        if length > MAX_CONTROL_MSG_BYTES {
            self.incoming.clear();
            return Some(Vec::new());
        }
        let message = body.get(..length)?.to_vec();
        self.incoming.drain(..2 + length);
        Some(message)
    }
}

/// Limit of unread bytes. It is much less than a socket can hold, even if the messages are small.
pub(super) const UNACKED_BYTES_MAX: usize = 4 << 10;
/// Length of the queue above which messages are dropped.
pub(super) const OUTGOING_BYTES_MAX: usize = 64 << 10;
