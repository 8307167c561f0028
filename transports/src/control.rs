//! Notes between processes: on boards within a host, over one authenticated socket to each peer elsewhere.

use crate::lazy::{Dialling, Fate, Knock};
use crate::lifeline::{Lifeline, Watch};
use crate::seal::Seal;
use crate::shm::Notes;
use crate::socket::{Stream, is_reset, is_silence};
use crate::{Control, Door, Error, Event, Footprint, MAX_NOTE_BYTES, Result};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// The control path among ranks that share memory: notes on their boards, and their lifelines.
#[derive(Debug)]
pub struct Neighbours {
    notes: Notes,
    watch: Watch,
    /// Whose notes are read next.
    turn: usize,
    /// Who has ended, while its last notes may still be unread.
    ending: Option<usize>,
    _own: Lifeline,
}

impl Neighbours {
    /// Over everybody's boards, this rank's lifeline and the ends of the others'.
    pub fn new(notes: Notes, own: Lifeline, watch: Watch) -> Self {
        Self { notes, watch, turn: 0, ending: None, _own: own }
    }

    /// A descriptor that can be read when somebody has ended.
    ///
    /// # Errors
    /// The system's.
    pub fn watch(&self) -> Result<OwnedFd> {
        let failed = |source| Error::System { what: "cannot duplicate a descriptor".to_owned(), source };
        self.watch.fd().try_clone_to_owned().map_err(failed)
    }

    fn read(&mut self, from: usize) -> Option<Event> {
        self.notes.read(from).map(|bytes| Event::Note { from, bytes })
    }
}

impl Control for Neighbours {
    fn post(&mut self, note: &[u8]) {
        debug_assert!(note.len() <= MAX_NOTE_BYTES);
        self.notes.write(note);
    }

    fn poll(&mut self) -> Option<Event> {
        let ranks = self.notes.ranks();
        for _ in 0..ranks {
            let from = self.turn;
            self.turn = (self.turn + 1) % ranks;
            if let Some(event) = self.read(from) {
                return Some(event);
            }
        }
        self.ending = self.ending.or_else(|| self.watch.ended());
        let from = self.ending?;
        // What it wrote between the look at its board and its end.
        self.read(from).or_else(|| self.ending.take().map(|from| Event::Closed { from }))
    }

    fn footprint(&self) -> Footprint {
        // Its own lifeline is one more.
        let lines = Footprint { descriptors: 1 + self.watch.descriptors(), ..Footprint::default() };
        self.notes.footprint() + lines
    }
}

/// The control path to ranks of this host and of others.
#[derive(Debug)]
pub struct Everybody(pub Neighbours, pub Sockets);

impl Control for Everybody {
    fn post(&mut self, note: &[u8]) {
        self.0.post(note);
        self.1.post(note);
    }

    fn poll(&mut self) -> Option<Event> {
        self.0.poll().or_else(|| self.1.poll())
    }

    fn door(&self) -> Option<Door> {
        self.1.door()
    }

    fn footprint(&self) -> Footprint {
        self.0.footprint() + self.1.footprint()
    }
}

/// The control path over sockets.
#[derive(Debug)]
pub struct Sockets {
    peers: Vec<Option<Peer>>,
    /// Whose turn it is to be polled, so that a chatty peer drowns nobody.
    turn: usize,
    /// How this rank knocks, and its own door, if it has one.
    common: Option<Arc<Dialling>>,
}

/// A socket, and what is half written and half read on it.
#[derive(Debug)]
struct Peer {
    stream: Stream,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
    closed: bool,
    /// Whether the peer was not heard of any more before it was closed, or the connection was reset.
    silent: bool,
    reset: bool,
    /// Where its doorman is, and what is asked there.
    door: Option<SocketAddr>,
    knock: Option<Knock>,
    /// Bytes posted since the peer was last heard, which it may not have read.
    unread: usize,
    /// How long its host may answer nothing, if that is looked at.
    silence_max: Option<Duration>,
}

impl Sockets {
    /// Over one connection to each peer; none to oneself.
    ///
    /// # Errors
    /// The system's.
    pub fn new(streams: Vec<Option<Stream>>) -> Result<Self> {
        let peer = |stream: Option<Stream>| -> Result<Option<Peer>> {
            let Some(stream) = stream else { return Ok(None) };
            stream.never_block()?;
            Ok(Some(Peer {
                stream,
                outgoing: Vec::new(),
                incoming: Vec::new(),
                closed: false,
                silent: false,
                reset: false,
                door: None,
                knock: None,
                unread: 0,
                silence_max: None,
            }))
        };
        Ok(Self { peers: streams.into_iter().map(peer).collect::<Result<_>>()?, turn: 0, common: None })
    }

    /// Peers whose hosts have answered nothing for `after` are told of as [`Event::Silent`].
    ///
    /// # Errors
    /// The system's.
    pub fn telling_of_silence(mut self, after: Duration) -> Result<Self> {
        for peer in self.peers.iter_mut().flatten() {
            peer.silence_max = Some(after);
            peer.stream.end_in_silence(after)?;
        }
        Ok(self)
    }

    /// Where a peer's connection is reset, the end of the peer is believed only if nobody listens at its door, by rank among
    /// `doors`; else it is told of as [`Event::Cut`]. This rank's own door stays open meanwhile.
    #[must_use]
    pub fn knocking(mut self, common: Arc<Dialling>, doors: &[SocketAddr]) -> Self {
        for (peer, door) in self.peers.iter_mut().zip(doors) {
            peer.iter_mut().for_each(|peer| peer.door = Some(*door));
        }
        self.common = Some(common);
        self
    }

    /// Descriptors that can be read when there is news.
    ///
    /// # Errors
    /// The system's.
    pub fn watch(&self) -> Result<Vec<OwnedFd>> {
        self.peers.iter().flatten().map(|peer| peer.stream.duplicate()).collect()
    }
}

impl Control for Sockets {
    fn post(&mut self, note: &[u8]) {
        debug_assert!(note.len() <= MAX_NOTE_BYTES);
        for peer in self.peers.iter_mut().flatten() {
            if !peer.closed && peer.outgoing.len() < OUTGOING_BYTES_MAX {
                peer.outgoing.extend((note.len() as u16).to_le_bytes());
                peer.outgoing.extend(note);
                peer.posted(2 + note.len());
            }
            peer.flush();
        }
    }

    fn poll(&mut self) -> Option<Event> {
        let ranks = self.peers.len();
        for _ in 0..ranks {
            let from = self.turn;
            self.turn = (self.turn + 1) % ranks;
            if let Some(Some(peer)) = self.peers.get_mut(from)
                && let Some(event) = peer.poll(from, self.common.as_deref())
            {
                return Some(event);
            }
        }
        None
    }

    fn door(&self) -> Option<Door> {
        self.common.clone().map(|common| -> Door { common })
    }

    fn footprint(&self) -> Footprint {
        let open = self.peers.iter().flatten().count();
        let buffers = |peer: &Peer| {
            let sealed = peer.stream.sealed().map_or(0, Seal::staging);
            peer.incoming.capacity() + peer.outgoing.capacity() + sealed
        };
        let staging = self.peers.iter().flatten().map(buffers).sum();
        Footprint { staging, sockets: open, descriptors: open, ..Footprint::default() }
    }
}

impl Peer {
    /// Who reads nothing, because it has nothing to wait for, must not look like a host that answers nothing: that
    /// is how a connection without room ends, too.
    fn posted(&mut self, bytes: usize) {
        let before = self.unread;
        self.unread += bytes;
        if self.silence_max.is_some() && before <= UNREAD_BYTES_MAX && self.unread > UNREAD_BYTES_MAX {
            let _ = self.stream.end_in_silence(Duration::ZERO);
        }
    }

    /// It reads, as it writes.
    fn heard(&mut self) {
        if let (Some(after), true) = (self.silence_max, self.unread > UNREAD_BYTES_MAX) {
            let _ = self.stream.end_in_silence(after);
        }
        self.unread = 0;
    }

    fn flush(&mut self) {
        while !self.outgoing.is_empty() {
            match self.stream.write(&self.outgoing) {
                Ok(0) => return,
                Ok(sent) => drop(self.outgoing.drain(..sent)),
                // The peer is gone; reading will say so, but not why.
                Err(error) => {
                    self.foresee(&error);
                    self.outgoing.clear();
                }
            }
        }
        if let Err(error) = self.stream.flush() {
            self.foresee(&error);
        }
    }

    /// Remembers why the connection ends: the kernel says so once.
    fn foresee(&mut self, error: &std::io::Error) {
        self.silent |= is_silence(error);
        self.reset |= is_reset(error);
    }

    fn poll(&mut self, from: usize, common: Option<&Dialling>) -> Option<Event> {
        self.flush();
        if let Some(bytes) = self.note() {
            return Some(Event::Note { from, bytes });
        }
        if self.closed {
            return self.ask(from, common);
        }
        let mut buffer = [0; 2 * MAX_NOTE_BYTES];
        match self.stream.read(&mut buffer) {
            Ok(None) => None,
            Ok(Some(count)) if count > 0 => {
                self.incoming.extend(&buffer[..count]);
                self.heard();
                self.note().map(|bytes| Event::Note { from, bytes })
            }
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                // What is read next is the end, which is this rank's doing and says nothing of the other.
                self.reset = true;
                tracing::error!(from, %error, "notes of a rank cannot be trusted");
                Some(Event::Note { from, bytes: Vec::new() })
            }
            ended => {
                self.closed = true;
                ended.err().iter().for_each(|error| self.foresee(error));
                self.end(from, common)
            }
        }
    }

    /// What the end of the connection tells of the peer. A reset tells nothing: it is asked for.
    fn end(&mut self, from: usize, common: Option<&Dialling>) -> Option<Event> {
        match (self.door, common) {
            _ if self.silent => Some(Event::Silent { from }),
            (Some(door), Some(common)) if self.reset => {
                self.knock = Some(Knock::at(door, common));
                self.ask(from, Some(common))
            }
            _ => Some(Event::Closed { from }),
        }
    }

    /// What has come of the question at the peer's door, once, if there is one.
    fn ask(&mut self, from: usize, common: Option<&Dialling>) -> Option<Event> {
        let fate = self.knock.as_mut()?.advance(common?)?;
        self.knock = None;
        tracing::info!(from, ?fate, "the connection for notes of a rank was reset");
        Some(if fate == Fate::Ended { Event::Closed { from } } else { Event::Cut { from } })
    }

    /// The next whole note. A length that no note has ends the conversation.
    fn note(&mut self) -> Option<Vec<u8>> {
        let (length, rest) = self.incoming.split_first_chunk::<2>()?;
        let length = u16::from_le_bytes(*length) as usize;
        if length > MAX_NOTE_BYTES {
            self.incoming.clear();
            return Some(Vec::new());
        }
        let note = rest.get(..length)?.to_vec();
        self.incoming.drain(..2 + length);
        Some(note)
    }
}

/// Much less than a socket has room for, however small the notes are.
const UNREAD_BYTES_MAX: usize = 4 << 10;
/// Notes that a peer does not read are dropped from here on.
const OUTGOING_BYTES_MAX: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    fn pair() -> (Sockets, Sockets) {
        let (one, other) = UnixStream::pair().unwrap();
        let near = Sockets::new(vec![None, Some(Stream::Unix(one))]).unwrap();
        (near, Sockets::new(vec![Some(Stream::Unix(other)), None]).unwrap())
    }

    #[test]
    fn notes_arrive_in_order_and_then_the_end() {
        let (mut near, mut far) = pair();
        for size in [0, 1, MAX_NOTE_BYTES, 5] {
            near.post(&vec![size as u8; size]);
        }
        drop(near);
        for size in [0, 1, MAX_NOTE_BYTES, 5] {
            assert_eq!(far.poll(), Some(Event::Note { from: 0, bytes: vec![size as u8; size] }));
        }
        assert_eq!((far.poll(), far.poll()), (Some(Event::Closed { from: 0 }), None));
    }

    #[test]
    fn who_reads_nothing_is_not_taken_for_silent() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let one = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let other = listener.accept().unwrap().0;
        let after = Duration::from_secs(3);
        let near = Sockets::new(vec![None, Some(Stream::from(one))]).unwrap();
        let mut near = near.telling_of_silence(after).unwrap();
        let mut far = Sockets::new(vec![Some(Stream::from(other)), None]).unwrap();
        let asks_for = |near: &Sockets| {
            rustix::net::sockopt::tcp_user_timeout(&near.peers[1].as_ref().unwrap().stream).unwrap()
        };
        assert_eq!(asks_for(&near), 3000);
        (0..UNREAD_BYTES_MAX / 32).for_each(|_| near.post(&[7; 32]));
        assert_eq!(asks_for(&near), 0);
        far.post(&[1]);
        while near.poll().is_none() {}
        assert_eq!(asks_for(&near), 3000);
    }

    #[test]
    fn a_deaf_peer_costs_neither_time_nor_memory() {
        let (mut near, _far) = pair();
        for _ in 0..10_000 {
            near.post(&[7; MAX_NOTE_BYTES]);
        }
        let kept = near.peers[1].as_ref().unwrap().outgoing.len();
        assert!(kept < OUTGOING_BYTES_MAX + 2 * MAX_NOTE_BYTES);
    }
}
