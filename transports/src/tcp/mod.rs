//! Links over TCP, which have a few sockets between two ranks, and many lanes over these sockets.
//!
//! Lanes are spread over the sockets. A message is a frame, which consists of a header of fixed
//! size and the body.
//!
//! A sender may have as many messages of a lane in flight as the lane has slots at the receiver.
//! The number of short messages can be larger, see `lane`. The receiver returns credit when it
//! consumes messages. If its own next message of that lane comes soon enough, this message carries
//! the credit. So there is always room for arriving messages, and sockets can always be drained. No
//! lane delays another for longer than one frame.
//!
//! Bodies go from the sender's memory into the socket, and from the socket into the receiver's
//! memory. They are staged only if they arrive while the receiver is busy elsewhere, or if they are
//! to be reduced.

pub mod connect;
mod connection;
mod frame;
mod lane;
#[cfg(not(loom))]
pub(crate) mod zeroed_pages;

use crate::net::stream::Stream;
use crate::sync::Instant;
use crate::sys::fork_guard;
use crate::tcp::connection::Connection;
use crate::{Error, Footprint, Geometry, Header, Link, Result, Tag};
use frame::{Frame, HEADER_BYTES};
use lane::Lane;
use std::os::fd::OwnedFd;
use std::time::Duration;
use unisono_reducers::{Source, Store, Target, copy_to};

/// A TCP link to one peer.
pub struct TcpLink {
    peer: usize,
    slot_bytes: usize,
    lanes: Vec<Lane>,
    sockets: Vec<Socket>,
    /// The process that owns these connections.
    owner_pid: u64,
    /// True if the link has waited until the last messages have arrived.
    drained: bool,
}

/// One connection, and the frames that are partly sent or received on it.
struct Socket {
    connection: Connection,
    outgoing: Option<Outgoing>,
    incoming: Option<Incoming>,
    /// True if a lane has read this socket since the last round.
    polled: bool,
    /// Rounds in which no lane read this socket.
    idle_rounds: u32,
}

struct Outgoing {
    lane: usize,
    header: [u8; HEADER_BYTES],
    sent: usize,
}

struct Incoming {
    lane: usize,
    header: Header,
    filled: usize,
    buffer: usize,
    /// True if the body goes directly into the receiver's memory.
    direct: bool,
}

/// The point at which reading stops.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReadGoal {
    /// Stops when nothing is left.
    WouldBlock,
    /// Stops when a body begins that this lane may take itself.
    Header(usize),
    /// Stops when this lane has a message.
    Message(usize),
}

impl TcpLink {
    /// Creates a link to `peer` over authenticated connections, at least one.
    ///
    /// # Errors
    /// Returns [`Error::InvalidUsage`] without connections, or the system's error.
    pub fn new(peer: usize, geometry: &Geometry, streams: Vec<Stream>) -> Result<Self> {
        if streams.is_empty() {
            return Err(Error::InvalidUsage("a TCP link needs a socket".to_owned()));
        }
        let lane = |_| Lane::new(geometry.slots, geometry.slot_bytes);
        let socket = |stream: Stream| {
            stream.tune_local_congestion_control();
            let connection = Connection::new(stream)?;
            Ok(Socket { connection, outgoing: None, incoming: None, polled: false, idle_rounds: 0 })
        };
        Ok(Self {
            peer,
            slot_bytes: geometry.slot_bytes,
            lanes: (0..geometry.lanes).map(lane).collect(),
            sockets: streams.into_iter().map(socket).collect::<Result<_>>()?,
            owner_pid: fork_guard::current_pid(),
            drained: false,
        })
    }

    /// Returns descriptors that become readable when data arrives.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn event_fds(&self) -> Result<Vec<OwnedFd>> {
        self.sockets.iter().map(|socket| socket.connection.duplicate_fd()).collect()
    }

    /// Sends bytes that need not be frames, as a peer that violates the protocol may do.
    pub(crate) fn send_unframed(&mut self, socket: usize, bytes: &[u8]) {
        let socket = socket % self.sockets.len();
        let connection = &mut self.sockets[socket].connection;
        connection.queue(bytes);
        connection.flush();
    }

    /// Returns the socket of a lane. Programs use every second lane, or all of them. Neighbors are
    /// on different sockets either way.
    fn socket_of(&self, lane: usize) -> usize {
        (lane + lane / 2) % self.sockets.len()
    }

    /// Reads frames until nothing is left, or until `goal` is reached.
    fn read_frames(&mut self, socket: usize, goal: ReadGoal) -> Result<()> {
        self.sockets[socket].polled = true;
        loop {
            let Socket { connection, incoming, .. } = &mut self.sockets[socket];
            match incoming {
                None => match connection.read_header() {
                    Some(head) => self.begin_message(socket, Frame::decode(&head))?,
                    None => return Ok(()),
                },
                Some(incoming) => {
                    let lane = &mut self.lanes[incoming.lane];
                    let wanted = goal == ReadGoal::Header(incoming.lane) && lane.front().is_none();
                    // The rest of the body stays in the socket until the receiver names its target,
                    // which saves a copy.
                    if incoming.direct || wanted {
                        return Ok(());
                    }
                    let buffer = lane.buffer_mut(incoming.header.bytes, incoming.buffer);
                    incoming.filled += connection.read_body(Target::from(&mut buffer[incoming.filled..]));
                    if incoming.filled < incoming.header.bytes {
                        return Ok(());
                    }
                    lane.push(incoming.header, incoming.buffer);
                    let wanted = goal == ReadGoal::Message(incoming.lane);
                    self.sockets[socket].incoming = None;
                    if wanted {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Begins a message whose frame has arrived, except for its body.
    fn begin_message(&mut self, socket: usize, frame: Option<Frame>) -> Result<()> {
        let corrupt = |what: String| Err(Error::ProtocolViolation { peer: self.peer, what });
        let Some(Frame { lane, credit, header: head }) = frame else {
            return corrupt("a frame of no known kind".to_owned());
        };
        let Some(state) = self.lanes.get_mut(lane) else {
            return corrupt(format!("a frame for lane {lane}"));
        };
        if !state.add_credit(credit) {
            return corrupt(format!("more credit on lane {lane} than it has"));
        }
        let Some(head) = head else {
            return if credit > 0 {
                Ok(())
            } else {
                corrupt(format!("a frame without credit on lane {lane}"))
            };
        };
        if head.bytes > self.slot_bytes {
            return corrupt(format!("{} bytes on lane {lane}", head.bytes));
        }
        // The buffer is reserved before the body is read, so a peer that sends more than it has
        // credit for is found before its bytes need memory.
        let Some(buffer) = state.slot(head.bytes)? else {
            return corrupt(format!("more messages on lane {lane} than it has credit for"));
        };
        let Socket { connection, incoming, .. } = &mut self.sockets[socket];
        connection.begin_body(head.bytes);
        *incoming = Some(Incoming { lane, header: head, filled: 0, buffer, direct: false });
        Ok(())
    }

    /// Frees the buffer of a consumed message, and returns credit so that the sender may send
    /// another.
    fn release_buffer(&mut self, lane: usize, bytes: usize, buffer: usize) {
        let (socket, state) = (self.socket_of(lane), &mut self.lanes[lane]);
        if state.release(bytes, buffer) {
            let frame = Frame { lane, credit: state.take_pending_credit(), header: None }.encode();
            let Socket { connection, outgoing, .. } = &mut self.sockets[socket];
            connection.queue(&frame);
            // If a message is half written, the credit waits for its end, because frames must not
            // mix.
            if outgoing.is_none() {
                connection.flush();
            }
        }
    }

    /// Checks that a connection is open. An end of the connection is no error at first, so that the
    /// control channel can tell if the peer left or died.
    fn check_open(&self, socket: usize) -> Result<()> {
        let connection = &self.sockets[socket].connection;
        match connection.closed_for() {
            Some(_) if connection.is_tampered() => {
                Err(Error::ProtocolViolation { peer: self.peer, what: TAMPERED.to_owned() })
            }
            Some(time) if time > CLOSED_GRACE => Err(Error::ConnectionLost {
                peer: self.peer,
                what: "it closed its data connection".to_owned(),
            }),
            _ => Ok(()),
        }
    }
}

impl Link for TcpLink {
    fn try_send<'a>(
        &mut self,
        lane: usize,
        tag: &Tag,
        bytes: usize,
        parts: &mut dyn Iterator<Item = Source<'a>>,
    ) -> Result<bool> {
        let index = self.socket_of(lane);
        if self.sockets[index].outgoing.is_none() {
            // Credit comes in frames that nobody else may be reading, so the sender reads them.
            if !self.lanes[lane].has_credit(bytes) {
                self.read_frames(index, ReadGoal::WouldBlock)?;
            }
            if !self.lanes[lane].has_credit(bytes) || !self.sockets[index].connection.flush() {
                self.check_open(index)?;
                return Ok(false);
            }
            let credit = self.lanes[lane].consume(bytes);
            let head = Frame { lane, credit, header: Some(Header { tag: *tag, bytes }) }.encode();
            self.sockets[index].outgoing = Some(Outgoing { lane, header: head, sent: 0 });
        }
        let Socket { connection, outgoing, .. } = &mut self.sockets[index];
        // While a message of another lane is half written, this one must wait, because the bytes of
        // a frame follow each other.
        let Some(frame) = outgoing.as_mut().filter(|frame| frame.lane == lane) else {
            return Ok(false);
        };
        frame.sent += connection.send(&frame.header, parts, frame.sent);
        // The record layer sends only within calls. If the message counted as sent before its last
        // record has left, the caller might make no further call.
        if frame.sent < HEADER_BYTES + bytes || !connection.is_flushed() {
            self.check_open(index)?;
            return Ok(false);
        }
        *outgoing = None;
        connection.flush();
        Ok(true)
    }

    fn header(&mut self, lane: usize) -> Result<Option<Header>> {
        if self.lanes[lane].front().is_none() {
            let socket = self.socket_of(lane);
            self.read_frames(socket, ReadGoal::Header(lane))?;
            if self.lanes[lane].front().is_none() {
                let incoming =
                    self.sockets[socket].incoming.as_ref().filter(|incoming| incoming.lane == lane);
                if incoming.is_none() {
                    self.check_open(socket)?;
                }
                return Ok(incoming.map(|incoming| incoming.header));
            }
        }
        Ok(self.lanes[lane].front().map(|(head, _)| head))
    }

    fn body(&mut self, lane: usize) -> Result<Option<Source<'_>>> {
        if self.lanes[lane].front().is_none() {
            let socket = self.socket_of(lane);
            self.read_frames(socket, ReadGoal::Message(lane))?;
            self.check_open(socket)?;
        }
        let state = &self.lanes[lane];
        Ok(state.front().map(|(head, buffer)| Source::from(state.buffer(head.bytes, buffer))))
    }

    fn release(&mut self, lane: usize) {
        if let Some((head, buffer)) = self.lanes[lane].pop() {
            self.release_buffer(lane, head.bytes, buffer);
        }
    }

    fn recv_into(&mut self, lane: usize, mut target: Target<'_>) -> Result<bool> {
        if self.lanes[lane].front().is_some() {
            let body = self.body(lane)?;
            body.into_iter().for_each(|body| copy_to(Store::Cached, target.slice(0..body.len()), body));
            self.release(lane);
            return Ok(true);
        }
        let index = self.socket_of(lane);
        let Socket { connection, incoming, .. } = &mut self.sockets[index];
        let Some(body) = incoming.as_mut().filter(|incoming| incoming.lane == lane) else {
            return Ok(false);
        };
        if !body.direct {
            // These bytes came before the receiver named its target, so they were staged. The rest
            // goes to the target directly.
            let staged =
                Source::from(&self.lanes[lane].buffer(body.header.bytes, body.buffer)[..body.filled]);
            copy_to(Store::Cached, target.slice(0..body.filled), staged);
            body.direct = true;
        }
        body.filled += connection.read_body(target.slice(body.filled..body.header.bytes));
        if body.filled < body.header.bytes {
            self.check_open(index)?;
            return Ok(false);
        }
        let (bytes, buffer) = (body.header.bytes, body.buffer);
        *incoming = None;
        self.release_buffer(lane, bytes, buffer);
        Ok(true)
    }

    fn progress(&mut self) -> Result<()> {
        for index in 0..self.sockets.len() {
            let socket = &mut self.sockets[index];
            if socket.outgoing.is_none() {
                socket.connection.flush();
            }
            // A lane reads its own socket while it waits. Other sockets matter only to their
            // senders, and these can wait.
            socket.idle_rounds = if socket.polled { 0 } else { socket.idle_rounds + 1 };
            if socket.idle_rounds == IDLE_ROUNDS_MAX {
                socket.idle_rounds = 0;
                self.read_frames(index, ReadGoal::WouldBlock)?;
            }
            self.sockets[index].polled = false;
        }
        Ok(())
    }

    fn drain(&mut self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        self.drained = true;
        self.sockets.iter_mut().all(|socket| socket.connection.drain(deadline))
    }

    fn footprint(&self) -> Footprint {
        let lanes: usize = self.lanes.iter().map(Lane::buffer_bytes).sum();
        let connections: usize = self.sockets.iter().map(|socket| socket.connection.buffer_bytes()).sum();
        let open = self.sockets.len();
        Footprint { staging: lanes + connections, sockets: open, descriptors: open, ..Footprint::default() }
    }
}

impl Drop for TcpLink {
    /// Lets the last messages reach the peer's kernel. Data there survives the end of this process.
    fn drop(&mut self) {
        if !self.drained && self.owner_pid == fork_guard::current_pid() {
            self.drain(DRAIN_TIME_MAX);
        }
    }
}

/// Rounds after which a socket is read that no lane has read.
const IDLE_ROUNDS_MAX: u32 = 4;
/// Time in which the control channel must report why a connection ended. After a network outage,
/// its own packets may be repeated some seconds later.
const CLOSED_GRACE: Duration = Duration::from_secs(5);
const TAMPERED: &str = "what came over its encrypted connection was not what it wrote, or not in that order";
/// Longest time that dropping a link may take.
const DRAIN_TIME_MAX: Duration = Duration::from_millis(500);
