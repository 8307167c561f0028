//! Notes between processes: on boards within a host, over one authenticated socket to each peer elsewhere.

use crate::lifeline::{Lifeline, Watch};
use crate::shm::Notes;
use crate::socket::Stream;
use crate::{Control, Error, Event, Footprint, MAX_NOTE_BYTES, Result};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::os::fd::OwnedFd;

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
}

/// A socket, and what is half written and half read on it.
#[derive(Debug)]
struct Peer {
    stream: Stream,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
    closed: bool,
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
            Ok(Some(Peer { stream, outgoing: Vec::new(), incoming: Vec::new(), closed: false }))
        };
        Ok(Self { peers: streams.into_iter().map(peer).collect::<Result<_>>()?, turn: 0 })
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
                && let Some(event) = peer.poll(from)
            {
                return Some(event);
            }
        }
        None
    }

    fn footprint(&self) -> Footprint {
        let open = self.peers.iter().flatten().count();
        let buffers = |peer: &Peer| peer.incoming.capacity() + peer.outgoing.capacity();
        let staging = self.peers.iter().flatten().map(buffers).sum();
        Footprint { staging, sockets: open, descriptors: open, ..Footprint::default() }
    }
}

impl Peer {
    fn flush(&mut self) {
        while !self.outgoing.is_empty() {
            match send(&self.stream, &self.outgoing, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(sent) => drop(self.outgoing.drain(..sent)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                // The peer is gone; reading will say so.
                Err(_) => self.outgoing.clear(),
            }
        }
    }

    fn poll(&mut self, from: usize) -> Option<Event> {
        self.flush();
        if let Some(bytes) = self.note() {
            return Some(Event::Note { from, bytes });
        }
        if self.closed {
            return None;
        }
        let mut buffer = [0; 2 * MAX_NOTE_BYTES];
        match recv(&self.stream, &mut buffer[..], RecvFlags::DONTWAIT) {
            Ok((_, count)) if count > 0 => {
                self.incoming.extend(&buffer[..count]);
                self.note().map(|bytes| Event::Note { from, bytes })
            }
            Err(Errno::AGAIN | Errno::INTR) => None,
            _ => {
                self.closed = true;
                Some(Event::Closed { from })
            }
        }
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
    fn a_deaf_peer_costs_neither_time_nor_memory() {
        let (mut near, _far) = pair();
        for _ in 0..10_000 {
            near.post(&[7; MAX_NOTE_BYTES]);
        }
        let kept = near.peers[1].as_ref().unwrap().outgoing.len();
        assert!(kept < OUTGOING_BYTES_MAX + 2 * MAX_NOTE_BYTES);
    }
}
