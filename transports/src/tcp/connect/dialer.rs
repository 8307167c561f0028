//! Connecting to a peer in steps that never wait: meanwhile, the rank hears who is gone, and of an abort.

use crate::secure::handshake::{ClientHandshake, Purpose};
use crate::sync::Instant;
use crate::sys::socket::Stream;
use crate::tcp::connect::acceptor::{Backoff, is_accepted, is_transient};
use crate::tcp::connect::lazy_link::DialContext;
use crate::{Error, Result};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

#[cfg(all(test, shuttle))]
use crate::testing::shuttle::start_connect;

/// Connections to one peer, as far as they have got.
pub(crate) struct Dialer {
    purpose: Purpose,
    /// How many.
    connections: usize,
    address: SocketAddr,
    timeout: Duration,
    started: Instant,
    /// Not tried again before, and how long after the next failure.
    retry_at: Instant,
    backoff: Backoff,
    /// Why it was tried again.
    last_error: Option<Error>,
    /// Those that the peer's acceptor has let in.
    streams: Vec<Stream>,
    state: ConnState,
}

/// How far the next one is.
#[derive(Default)]
enum ConnState {
    #[default]
    Idle,
    Connecting(Stream),
    Handshaking(Stream, Box<ClientHandshake>),
    /// Both sides have proved themselves.
    AwaitAccept(Stream),
}

/// How dialing stands, or has ended.
pub(crate) enum DialOutcome {
    Pending,
    /// The peer dials itself.
    Rejected,
    Connected(Vec<Stream>),
}

/// What a step was good for.
enum StepOutcome {
    Advanced,
    Pending,
    Rejected,
}

impl Dialer {
    /// For messages, to the acceptor at `address`, for as long as `patience`.
    pub(crate) fn for_data(common: &DialContext, address: SocketAddr) -> Self {
        Self::new(address, common.timeout, (Purpose::Data, common.sockets))
    }

    /// To hear whether anybody is there at all.
    pub(crate) fn for_probe(address: SocketAddr, patience: Duration) -> Self {
        Self::new(address, patience, (Purpose::Probe, 1))
    }

    fn new(address: SocketAddr, patience: Duration, (purpose, wanted): (Purpose, usize)) -> Self {
        let begun = Instant::now();
        let (streams, stage, refusal) = (Vec::new(), ConnState::Idle, None);
        Self {
            purpose,
            connections: wanted,
            address,
            timeout: patience,
            started: begun,
            retry_at: begun,
            backoff: Backoff::default(),
            last_error: refusal,
            streams,
            state: stage,
        }
    }

    /// Goes on as far as possible. Where strangers crowd the door, it is tried again; who knocks does so
    /// until the address refuses the connection, or its owner answers.
    ///
    /// # Errors
    /// [`Error::Timeout`] with the last reason why it was tried again; that of the connection or the handshake.
    pub(crate) fn advance(&mut self, common: &DialContext) -> Result<DialOutcome> {
        let now = Instant::now();
        if now >= self.started + self.timeout {
            return Err(self.timeout_error());
        }
        if now < self.retry_at {
            return Ok(DialOutcome::Pending);
        }
        while self.streams.len() < self.connections {
            let was_heard = matches!(self.state, ConnState::AwaitAccept(_));
            match self.step(common) {
                Ok(StepOutcome::Advanced) => {}
                Ok(StepOutcome::Pending) => return Ok(DialOutcome::Pending),
                Ok(StepOutcome::Rejected) => return Ok(DialOutcome::Rejected),
                Err(error) if self.is_retryable(was_heard, &error) => {
                    tracing::debug!(address = %self.address, %error, "dialing again");
                    (self.retry_at, self.last_error) = (now + self.backoff.next_delay(), Some(error));
                    return Ok(DialOutcome::Pending);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(DialOutcome::Connected(std::mem::take(&mut self.streams)))
    }

    /// One step of the next connection; one that fails is apart again.
    fn step(&mut self, common: &DialContext) -> Result<StepOutcome> {
        let (stage, step) = match std::mem::take(&mut self.state) {
            ConnState::Idle => {
                let stream = start_connect(self.address)?;
                common.watcher.iter().for_each(|watcher| watcher.add(&stream));
                (ConnState::Connecting(stream), StepOutcome::Advanced)
            }
            ConnState::Connecting(stream) if !stream.is_connected(self.address)? => {
                (ConnState::Connecting(stream), StepOutcome::Pending)
            }
            ConnState::Connecting(mut stream) => {
                let claims = common.hello(self.purpose, self.streams.len());
                let introduction = ClientHandshake::start(&mut stream, &common.terms, &claims)?;
                (ConnState::Handshaking(stream, Box::new(introduction)), StepOutcome::Advanced)
            }
            ConnState::Handshaking(mut stream, mut introduction) => {
                match introduction.advance(&mut stream, &common.terms)? {
                    true => (ConnState::AwaitAccept(stream), StepOutcome::Advanced),
                    false => (ConnState::Handshaking(stream, introduction), StepOutcome::Pending),
                }
            }
            ConnState::AwaitAccept(mut stream) => match is_accepted(&mut stream)? {
                Some(true) => {
                    self.streams.push(stream);
                    (ConnState::Idle, StepOutcome::Advanced)
                }
                Some(false) => (ConnState::Idle, StepOutcome::Rejected),
                None => (ConnState::AwaitAccept(stream), StepOutcome::Pending),
            },
        };
        self.state = stage;
        Ok(step)
    }

    /// Time in which nobody looked what had come does not count.
    pub(crate) fn extend_deadline(&mut self, time: Duration) {
        self.started += time;
    }

    /// Whether another attempt may end otherwise. A door that is just being shut, with the process behind it, closes what
    /// it had let in, and refuses the next.
    fn is_retryable(&self, was_heard: bool, error: &Error) -> bool {
        match self.purpose {
            Purpose::Probe => {
                !is_connection_refused(error)
                    && matches!(error, Error::System { .. } | Error::ConnectionClosed { .. })
            }
            _ => !was_heard && is_transient(error),
        }
    }

    fn timeout_error(&mut self) -> Error {
        let refusal = self.last_error.take().map_or_else(String::new, |error| format!(", at last {error}"));
        Error::Timeout { what: format!("no way in at {} for {:?}{refusal}", self.address, self.timeout) }
    }
}

/// Begins to connect to a door.
#[cfg(not(all(test, shuttle)))]
fn start_connect(address: SocketAddr) -> Result<Stream> {
    Stream::start_connect(address)
}

/// Whether nobody listens where a connection was to be made.
pub(crate) fn is_connection_refused(error: &Error) -> bool {
    matches!(error, Error::System { source, .. } if source.kind() == ErrorKind::ConnectionRefused)
}
