//! The client side of connections, in steps that never wait. So the rank can notice aborts and
//! exits between the steps.

use crate::net::handshake::{ClientHandshake, Purpose};
use crate::net::stream::Stream;
use crate::sync::Instant;
use crate::tcp::connect::acceptor::{Backoff, is_accepted, is_transient};
use crate::tcp::connect::lazy_link::DialContext;
use crate::{Error, Result};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

#[cfg(all(test, shuttle))]
use crate::net::model_sockets::start_connect;

/// State of the connections to one peer.
pub(crate) struct Dialer {
    purpose: Purpose,
    /// Number of connections to make.
    connections: usize,
    address: SocketAddr,
    timeout: Duration,
    started: Instant,
    /// Time of the next attempt.
    retry_at: Instant,
    backoff: Backoff,
    /// Error of the last attempt.
    last_error: Option<Error>,
    /// Connections that the acceptor of the peer has accepted.
    streams: Vec<Stream>,
    state: ConnState,
}

/// State of the next connection.
#[derive(Default)]
enum ConnState {
    #[default]
    Idle,
    Connecting(Stream),
    Handshaking(Stream, Box<ClientHandshake>),
    /// Both sides are authenticated.
    AwaitAccept(Stream),
}

/// Result of a call of [`Dialer::advance`].
pub(crate) enum DialOutcome {
    Pending,
    /// The peer is dialing itself.
    Rejected,
    Connected(Vec<Stream>),
}

/// Result of one step.
enum StepOutcome {
    Advanced,
    Pending,
    Rejected,
}

impl Dialer {
    /// Creates a dialer of data connections to the acceptor at `address`.
    pub(crate) fn for_data(context: &DialContext, address: SocketAddr) -> Self {
        Self::new(address, context.timeout, (Purpose::Data, context.sockets))
    }

    /// Creates a dialer that checks whether the rank at `address` is alive.
    pub(crate) fn for_probe(address: SocketAddr, timeout: Duration) -> Self {
        Self::new(address, timeout, (Purpose::Probe, 1))
    }

    fn new(address: SocketAddr, timeout: Duration, (purpose, connections): (Purpose, usize)) -> Self {
        let started = Instant::now();
        Self {
            purpose,
            connections,
            address,
            timeout,
            started,
            retry_at: started,
            backoff: Backoff::default(),
            last_error: None,
            streams: Vec::new(),
            state: ConnState::Idle,
        }
    }

    /// Continues as far as possible without waiting.
    ///
    /// A connection that a busy acceptor has evicted is tried again. A probe is tried again until
    /// the address refuses the connection or its owner answers.
    ///
    /// # Errors
    /// [`Error::Timeout`] with the error of the last attempt, or the error of the connection or the
    /// handshake.
    pub(crate) fn advance(&mut self, context: &DialContext) -> Result<DialOutcome> {
        let now = Instant::now();
        if now >= self.started + self.timeout {
            return Err(self.timeout_error());
        }
        if now < self.retry_at {
            return Ok(DialOutcome::Pending);
        }
        while self.streams.len() < self.connections {
            // The step takes the state, so this is read before it. An error after both sides are
            // authenticated is final, unless this is a probe.
            let authenticated = matches!(self.state, ConnState::AwaitAccept(_));
            match self.step(context) {
                Ok(StepOutcome::Advanced) => {}
                Ok(StepOutcome::Pending) => return Ok(DialOutcome::Pending),
                Ok(StepOutcome::Rejected) => return Ok(DialOutcome::Rejected),
                Err(error) if self.is_retryable(authenticated, &error) => {
                    tracing::debug!(address = %self.address, %error, "dialing again");
                    (self.retry_at, self.last_error) = (now + self.backoff.next_delay(), Some(error));
                    return Ok(DialOutcome::Pending);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(DialOutcome::Connected(std::mem::take(&mut self.streams)))
    }

    /// Performs one step of the next connection. If a step fails, the connection starts again.
    fn step(&mut self, context: &DialContext) -> Result<StepOutcome> {
        let (state, outcome) = match std::mem::take(&mut self.state) {
            ConnState::Idle => {
                let stream = start_connect(self.address)?;
                // If this rank sleeps, the answer of the peer wakes it.
                context.watcher.iter().for_each(|watcher| watcher.add(&stream));
                (ConnState::Connecting(stream), StepOutcome::Advanced)
            }
            ConnState::Connecting(stream) if !stream.is_connected(self.address)? => {
                (ConnState::Connecting(stream), StepOutcome::Pending)
            }
            ConnState::Connecting(mut stream) => {
                let hello = context.hello(self.purpose, self.streams.len());
                let handshake = ClientHandshake::start(&mut stream, &context.terms, &hello)?;
                (ConnState::Handshaking(stream, Box::new(handshake)), StepOutcome::Advanced)
            }
            ConnState::Handshaking(mut stream, mut handshake) => {
                match handshake.advance(&mut stream, &context.terms)? {
                    true => (ConnState::AwaitAccept(stream), StepOutcome::Advanced),
                    false => (ConnState::Handshaking(stream, handshake), StepOutcome::Pending),
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
        self.state = state;
        Ok(outcome)
    }

    /// Extends the deadline by a time in which nobody called [`Dialer::advance`].
    pub(crate) fn extend_deadline(&mut self, time: Duration) {
        self.started += time;
    }

    /// Returns true if another attempt may succeed. An acceptor that ends closes its connections,
    /// and its host refuses the next one.
    fn is_retryable(&self, authenticated: bool, error: &Error) -> bool {
        match self.purpose {
            Purpose::Probe => {
                !is_connection_refused(error)
                    && matches!(error, Error::System { .. } | Error::ConnectionClosed { .. })
            }
            _ => !authenticated && is_transient(error),
        }
    }

    fn timeout_error(&mut self) -> Error {
        let refusal =
            self.last_error.take().map_or_else(String::new, |error| format!("; last error: {error}"));
        Error::Timeout {
            what: format!("could not connect to {} in {:?}{refusal}", self.address, self.timeout),
        }
    }
}

/// Starts to connect to a listener.
#[cfg(not(all(test, shuttle)))]
fn start_connect(address: SocketAddr) -> Result<Stream> {
    Stream::start_connect(address)
}

/// Returns true if nobody listens at the address.
pub(crate) fn is_connection_refused(error: &Error) -> bool {
    matches!(error, Error::System { source, .. } if source.kind() == ErrorKind::ConnectionRefused)
}
