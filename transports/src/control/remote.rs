//! The control channel over sockets.

use crate::control::peer::Peer;
use crate::net::stream::Stream;
use crate::sync::Instant;
use crate::tcp::connect::lazy_link::DialContext;
use crate::{ControlChannel, Footprint, ListenerGuard, MAX_CONTROL_MSG_BYTES, PeerEvent, Result};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// A control channel with one socket to each peer.
#[derive(Debug)]
pub struct RemoteControl {
    peers: Vec<Option<Peer>>,
    /// Rank that is polled next, so that every peer gets its turn.
    next_peer: usize,
    /// Context of liveness probes, with this rank's own acceptor.
    context: Option<Arc<DialContext>>,
}

impl RemoteControl {
    /// Creates the channel from one connection to each peer, by rank. The connection at this rank's
    /// own index is `None`.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) if a socket cannot be made non-blocking.
    pub fn new(streams: Vec<Option<Stream>>) -> Result<Self> {
        let peers = streams.into_iter().map(|stream| stream.map(Peer::new).transpose());
        Ok(Self { peers: peers.collect::<Result<_>>()?, next_peer: 0, context: None })
    }

    /// Reports a peer as [`PeerEvent::Unreachable`] if its host has not answered for `timeout`.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) if the kernel refuses the option.
    pub fn with_keepalive(mut self, timeout: Duration) -> Result<Self> {
        self.peers.iter_mut().flatten().try_for_each(|peer| peer.enable_keepalive(timeout))?;
        Ok(self)
    }

    /// Probes the address of a peer in `listeners`, by rank, after a reset of its connection.
    ///
    /// The peer is reported as [`PeerEvent::Exited`] if nobody listens there, and as
    /// [`PeerEvent::Reset`] otherwise. This rank's own listener stays open as long as the channel
    /// exists.
    #[must_use]
    pub fn with_probe(mut self, context: Arc<DialContext>, listeners: &[SocketAddr]) -> Self {
        for (peer, address) in self.peers.iter_mut().zip(listeners) {
            peer.iter_mut().for_each(|peer| peer.listener_address = Some(*address));
        }
        self.context = Some(context);
        self
    }

    /// Sends bytes that need not be messages, as a peer that violates the protocol may do.
    pub(crate) fn send_unframed(&mut self, bytes: &[u8]) {
        for peer in self.peers.iter_mut().flatten() {
            peer.outgoing.extend(bytes);
            peer.flush();
        }
    }

    /// Duplicates the descriptors that become readable when there are events.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) if the process has no descriptor left.
    pub fn event_fds(&self) -> Result<Vec<OwnedFd>> {
        self.peers.iter().flatten().map(|peer| peer.stream.duplicate()).collect()
    }
}

impl ControlChannel for RemoteControl {
    fn post(&mut self, message: &[u8]) {
        debug_assert!(message.len() <= MAX_CONTROL_MSG_BYTES);
        self.peers.iter_mut().flatten().for_each(|peer| peer.post(message));
    }

    fn poll(&mut self) -> Option<PeerEvent> {
        let ranks = self.peers.len();
        for _ in 0..ranks {
            let rank = self.next_peer;
            self.next_peer = (self.next_peer + 1) % ranks;
            if let Some(Some(peer)) = self.peers.get_mut(rank)
                && let Some(event) = peer.poll(rank, self.context.as_deref())
            {
                return Some(event);
            }
        }
        None
    }

    fn drain(&mut self, limit: Duration) {
        let deadline = Instant::now() + limit;
        for peer in self.peers.iter_mut().flatten() {
            peer.flush();
            // If a peer does not receive the last message, it notices the end of the connection.
            let _ = peer.stream.drain(deadline);
        }
    }

    fn listener_guard(&self) -> Option<ListenerGuard> {
        self.context.clone().map(|context| -> ListenerGuard { context })
    }

    fn footprint(&self) -> Footprint {
        let sockets = self.peers.iter().flatten().count();
        let staging = self.peers.iter().flatten().map(Peer::buffer_bytes).sum();
        Footprint { staging, sockets, descriptors: sockets, ..Footprint::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::peer::{OUTGOING_BYTES_MAX, UNACKED_BYTES_MAX};
    use std::os::unix::net::UnixStream;

    fn pair() -> (RemoteControl, RemoteControl) {
        let (first, second) = UnixStream::pair().unwrap();
        let local = RemoteControl::new(vec![None, Some(Stream::Unix(first))]).unwrap();
        (local, RemoteControl::new(vec![Some(Stream::Unix(second)), None]).unwrap())
    }

    #[test]
    fn messages_arrive_in_order_before_exit() {
        let (mut local, mut remote) = pair();
        for size in [0, 1, MAX_CONTROL_MSG_BYTES, 5] {
            local.post(&vec![size as u8; size]);
        }
        drop(local);
        for size in [0, 1, MAX_CONTROL_MSG_BYTES, 5] {
            assert_eq!(remote.poll(), Some(PeerEvent::Message { from: 0, bytes: vec![size as u8; size] }));
        }
        assert_eq!((remote.poll(), remote.poll()), (Some(PeerEvent::Exited { from: 0 }), None));
    }

    #[test]
    fn non_reading_peer_is_not_unreachable() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let first = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let second = listener.accept().unwrap().0;
        let timeout = Duration::from_secs(3);
        let local = RemoteControl::new(vec![None, Some(Stream::from(first))]).unwrap();
        let mut local = local.with_keepalive(timeout).unwrap();
        let mut remote = RemoteControl::new(vec![Some(Stream::from(second)), None]).unwrap();
        let asks_for = |control: &RemoteControl| {
            rustix::net::sockopt::tcp_user_timeout(&control.peers[1].as_ref().unwrap().stream).unwrap()
        };
        assert_eq!(asks_for(&local), 3000);
        (0..UNACKED_BYTES_MAX / 32).for_each(|_| local.post(&[7; 32]));
        assert_eq!(asks_for(&local), 0);
        remote.post(&[1]);
        while local.poll().is_none() {}
        assert_eq!(asks_for(&local), 3000);
    }

    #[test]
    fn non_reading_peer_costs_bounded_memory() {
        let (mut local, _remote) = pair();
        for _ in 0..10_000 {
            local.post(&[7; MAX_CONTROL_MSG_BYTES]);
        }
        let kept = local.peers[1].as_ref().unwrap().outgoing.len();
        assert!(kept < OUTGOING_BYTES_MAX + 2 * MAX_CONTROL_MSG_BYTES);
    }
}
