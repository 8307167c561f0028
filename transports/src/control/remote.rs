//! Notes between processes: on boards within a host, over one authenticated socket to each peer elsewhere.

use crate::secure::record::RecordLayer;
use crate::shm::ControlMailboxes;
use crate::shm::liveness::{LivenessMonitor, LivenessPipe};
use crate::sys::socket::{Stream, is_reset, is_unreachable};
use crate::tcp::connect::lazy_link::{DialContext, Liveness, LivenessProbe};
use crate::{ControlChannel, Error, Footprint, ListenerGuard, MAX_CONTROL_MSG_BYTES, PeerEvent, Result};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// The control path among ranks that share memory: notes on their boards, and their lifelines.
#[derive(Debug)]
pub struct LocalControl {
    mailboxes: ControlMailboxes,
    event_fd: LivenessMonitor,
    /// Whose notes are read next.
    next_peer: usize,
    /// Who has ended, while its last notes may still be unread.
    exited_peer: Option<usize>,
    _own_pipe: LivenessPipe,
}

impl LocalControl {
    /// Over everybody's boards, this rank's lifeline and the ends of the others'.
    pub fn new(notes: ControlMailboxes, own: LivenessPipe, watch: LivenessMonitor) -> Self {
        Self { mailboxes: notes, event_fd: watch, next_peer: 0, exited_peer: None, _own_pipe: own }
    }

    /// A descriptor that can be read when somebody has ended.
    ///
    /// # Errors
    /// The system's.
    pub fn watch(&self) -> Result<OwnedFd> {
        let failed = |source| Error::System { what: "cannot duplicate a descriptor".to_owned(), source };
        self.event_fd.fd().try_clone_to_owned().map_err(failed)
    }

    fn next_message(&mut self, from: usize) -> Option<PeerEvent> {
        self.mailboxes.read(from).map(|bytes| PeerEvent::Message { from, bytes })
    }
}

impl ControlChannel for LocalControl {
    fn post(&mut self, note: &[u8]) {
        debug_assert!(note.len() <= MAX_CONTROL_MSG_BYTES);
        self.mailboxes.write(note);
    }

    fn poll(&mut self) -> Option<PeerEvent> {
        let ranks = self.mailboxes.ranks();
        for _ in 0..ranks {
            let from = self.next_peer;
            self.next_peer = (self.next_peer + 1) % ranks;
            if let Some(event) = self.next_message(from) {
                return Some(event);
            }
        }
        self.exited_peer = self.exited_peer.or_else(|| self.event_fd.next_exited());
        let from = self.exited_peer?;
        // What it wrote between the look at its board and its end.
        self.next_message(from).or_else(|| self.exited_peer.take().map(|from| PeerEvent::Exited { from }))
    }

    fn footprint(&self) -> Footprint {
        // Its own lifeline is one more.
        let lines = Footprint { descriptors: 1 + self.event_fd.descriptors(), ..Footprint::default() };
        self.mailboxes.footprint() + lines
    }
}

/// The control path to ranks of this host and of others.
#[derive(Debug)]
pub struct CombinedControl(pub LocalControl, pub RemoteControl);

impl ControlChannel for CombinedControl {
    fn post(&mut self, note: &[u8]) {
        self.0.post(note);
        self.1.post(note);
    }

    fn poll(&mut self) -> Option<PeerEvent> {
        self.0.poll().or_else(|| self.1.poll())
    }

    fn listener_guard(&self) -> Option<ListenerGuard> {
        self.1.listener_guard()
    }

    fn footprint(&self) -> Footprint {
        self.0.footprint() + self.1.footprint()
    }
}

/// The control path over sockets.
#[derive(Debug)]
pub struct RemoteControl {
    peers: Vec<Option<Peer>>,
    /// Whose turn it is to be polled, so that a chatty peer drowns nobody.
    next_peer: usize,
    /// How this rank knocks, and its own door, if it has one.
    context: Option<Arc<DialContext>>,
}

/// A socket, and what is half written and half read on it.
#[derive(Debug)]
struct Peer {
    stream: Stream,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
    closed: bool,
    /// Whether the peer was not heard of any more before it was closed, or the connection was reset.
    unreachable: bool,
    reset: bool,
    /// Where its acceptor is, and what is asked there.
    listener_address: Option<SocketAddr>,
    probe: Option<LivenessProbe>,
    /// Bytes posted since the peer was last heard, which it may not have read.
    unacked_bytes: usize,
    /// How long its host may answer nothing, if that is looked at.
    keepalive_timeout: Option<Duration>,
}

impl RemoteControl {
    /// Over one connection to each peer; none to oneself.
    ///
    /// # Errors
    /// The system's.
    pub fn new(streams: Vec<Option<Stream>>) -> Result<Self> {
        let peer = |stream: Option<Stream>| -> Result<Option<Peer>> {
            let Some(stream) = stream else { return Ok(None) };
            stream.set_nonblocking()?;
            Ok(Some(Peer {
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
            }))
        };
        Ok(Self { peers: streams.into_iter().map(peer).collect::<Result<_>>()?, next_peer: 0, context: None })
    }

    /// Peers whose hosts have answered nothing for `after` are told of as [`PeerEvent::Silent`].
    ///
    /// # Errors
    /// The system's.
    pub fn with_keepalive(mut self, after: Duration) -> Result<Self> {
        for peer in self.peers.iter_mut().flatten() {
            peer.keepalive_timeout = Some(after);
            peer.stream.set_keepalive(after)?;
        }
        Ok(self)
    }

    /// Where a peer's connection is reset, the end of the peer is believed only if nobody listens at its door, by rank among
    /// `doors`; else it is told of as [`PeerEvent::Cut`]. This rank's own door stays open meanwhile.
    #[must_use]
    pub fn with_probe(mut self, common: Arc<DialContext>, doors: &[SocketAddr]) -> Self {
        for (peer, door) in self.peers.iter_mut().zip(doors) {
            peer.iter_mut().for_each(|peer| peer.listener_address = Some(*door));
        }
        self.context = Some(common);
        self
    }

    /// Descriptors that can be read when there is news.
    ///
    /// # Errors
    /// The system's.
    pub fn event_fds(&self) -> Result<Vec<OwnedFd>> {
        self.peers.iter().flatten().map(|peer| peer.stream.duplicate()).collect()
    }
}

impl ControlChannel for RemoteControl {
    fn post(&mut self, note: &[u8]) {
        debug_assert!(note.len() <= MAX_CONTROL_MSG_BYTES);
        for peer in self.peers.iter_mut().flatten() {
            if !peer.closed && peer.outgoing.len() < OUTGOING_BYTES_MAX {
                peer.outgoing.extend((note.len() as u16).to_le_bytes());
                peer.outgoing.extend(note);
                peer.on_posted(2 + note.len());
            }
            peer.flush();
        }
    }

    fn poll(&mut self) -> Option<PeerEvent> {
        let ranks = self.peers.len();
        for _ in 0..ranks {
            let from = self.next_peer;
            self.next_peer = (self.next_peer + 1) % ranks;
            if let Some(Some(peer)) = self.peers.get_mut(from)
                && let Some(event) = peer.poll(from, self.context.as_deref())
            {
                return Some(event);
            }
        }
        None
    }

    fn listener_guard(&self) -> Option<ListenerGuard> {
        self.context.clone().map(|common| -> ListenerGuard { common })
    }

    fn footprint(&self) -> Footprint {
        let open = self.peers.iter().flatten().count();
        let buffers = |peer: &Peer| {
            let sealed = peer.stream.record_layer().map_or(0, RecordLayer::buffer_bytes);
            peer.incoming.capacity() + peer.outgoing.capacity() + sealed
        };
        let staging = self.peers.iter().flatten().map(buffers).sum();
        Footprint { staging, sockets: open, descriptors: open, ..Footprint::default() }
    }
}

impl Peer {
    /// Who reads nothing, because it has nothing to wait for, must not look like a host that answers nothing: that
    /// is how a connection without room ends, too.
    fn on_posted(&mut self, bytes: usize) {
        let before = self.unacked_bytes;
        self.unacked_bytes += bytes;
        if self.keepalive_timeout.is_some()
            && before <= UNACKED_BYTES_MAX
            && self.unacked_bytes > UNACKED_BYTES_MAX
        {
            let _ = self.stream.set_keepalive(Duration::ZERO);
        }
    }

    /// It reads, as it writes.
    fn on_received(&mut self) {
        if let (Some(after), true) = (self.keepalive_timeout, self.unacked_bytes > UNACKED_BYTES_MAX) {
            let _ = self.stream.set_keepalive(after);
        }
        self.unacked_bytes = 0;
    }

    fn flush(&mut self) {
        while !self.outgoing.is_empty() {
            match self.stream.write(&self.outgoing) {
                Ok(0) => return,
                Ok(sent) => drop(self.outgoing.drain(..sent)),
                // The peer is gone; reading will say so, but not why.
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

    /// Remembers why the connection ends: the kernel says so once.
    fn record_error(&mut self, error: &std::io::Error) {
        self.unreachable |= is_unreachable(error);
        self.reset |= is_reset(error);
    }

    fn poll(&mut self, from: usize, common: Option<&DialContext>) -> Option<PeerEvent> {
        self.flush();
        if let Some(bytes) = self.next_message() {
            return Some(PeerEvent::Message { from, bytes });
        }
        if self.closed {
            return self.poll_probe(from, common);
        }
        let mut buffer = [0; 2 * MAX_CONTROL_MSG_BYTES];
        match self.stream.read(&mut buffer) {
            Ok(None) => None,
            Ok(Some(count)) if count > 0 => {
                self.incoming.extend(&buffer[..count]);
                self.on_received();
                self.next_message().map(|bytes| PeerEvent::Message { from, bytes })
            }
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                // What is read next is the end, which is this rank's doing and says nothing of the other.
                self.reset = true;
                tracing::error!(from, %error, "notes of a rank cannot be trusted");
                Some(PeerEvent::Message { from, bytes: Vec::new() })
            }
            ended => {
                self.closed = true;
                ended.err().iter().for_each(|error| self.record_error(error));
                self.on_closed(from, common)
            }
        }
    }

    /// What the end of the connection tells of the peer. A reset tells nothing: it is asked for.
    fn on_closed(&mut self, from: usize, common: Option<&DialContext>) -> Option<PeerEvent> {
        match (self.listener_address, common) {
            _ if self.unreachable => Some(PeerEvent::Unreachable { from }),
            (Some(door), Some(common)) if self.reset => {
                self.probe = Some(LivenessProbe::new(door, common));
                self.poll_probe(from, Some(common))
            }
            _ => Some(PeerEvent::Exited { from }),
        }
    }

    /// What has come of the question at the peer's door, once, if there is one.
    fn poll_probe(&mut self, from: usize, common: Option<&DialContext>) -> Option<PeerEvent> {
        let fate = self.probe.as_mut()?.advance(common?)?;
        self.probe = None;
        tracing::info!(from, ?fate, "the connection for notes of a rank was reset");
        Some(if fate == Liveness::Dead { PeerEvent::Exited { from } } else { PeerEvent::Reset { from } })
    }

    /// The next whole note. A length that no note has ends the conversation.
    fn next_message(&mut self) -> Option<Vec<u8>> {
        let (length, rest) = self.incoming.split_first_chunk::<2>()?;
        let length = u16::from_le_bytes(*length) as usize;
        if length > MAX_CONTROL_MSG_BYTES {
            self.incoming.clear();
            return Some(Vec::new());
        }
        let note = rest.get(..length)?.to_vec();
        self.incoming.drain(..2 + length);
        Some(note)
    }
}

/// Much less than a socket has room for, however small the notes are.
const UNACKED_BYTES_MAX: usize = 4 << 10;
/// Notes that a peer does not read are dropped from here on.
const OUTGOING_BYTES_MAX: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    fn pair() -> (RemoteControl, RemoteControl) {
        let (one, other) = UnixStream::pair().unwrap();
        let near = RemoteControl::new(vec![None, Some(Stream::Unix(one))]).unwrap();
        (near, RemoteControl::new(vec![Some(Stream::Unix(other)), None]).unwrap())
    }

    #[test]
    fn messages_arrive_in_order_before_exit() {
        let (mut near, mut far) = pair();
        for size in [0, 1, MAX_CONTROL_MSG_BYTES, 5] {
            near.post(&vec![size as u8; size]);
        }
        drop(near);
        for size in [0, 1, MAX_CONTROL_MSG_BYTES, 5] {
            assert_eq!(far.poll(), Some(PeerEvent::Message { from: 0, bytes: vec![size as u8; size] }));
        }
        assert_eq!((far.poll(), far.poll()), (Some(PeerEvent::Exited { from: 0 }), None));
    }

    #[test]
    fn non_reading_peer_is_not_unreachable() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let one = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let other = listener.accept().unwrap().0;
        let after = Duration::from_secs(3);
        let near = RemoteControl::new(vec![None, Some(Stream::from(one))]).unwrap();
        let mut near = near.with_keepalive(after).unwrap();
        let mut far = RemoteControl::new(vec![Some(Stream::from(other)), None]).unwrap();
        let asks_for = |near: &RemoteControl| {
            rustix::net::sockopt::tcp_user_timeout(&near.peers[1].as_ref().unwrap().stream).unwrap()
        };
        assert_eq!(asks_for(&near), 3000);
        (0..UNACKED_BYTES_MAX / 32).for_each(|_| near.post(&[7; 32]));
        assert_eq!(asks_for(&near), 0);
        far.post(&[1]);
        while near.poll().is_none() {}
        assert_eq!(asks_for(&near), 3000);
    }

    #[test]
    fn non_reading_peer_costs_bounded_memory() {
        let (mut near, _far) = pair();
        for _ in 0..10_000 {
            near.post(&[7; MAX_CONTROL_MSG_BYTES]);
        }
        let kept = near.peers[1].as_ref().unwrap().outgoing.len();
        assert!(kept < OUTGOING_BYTES_MAX + 2 * MAX_CONTROL_MSG_BYTES);
    }
}
