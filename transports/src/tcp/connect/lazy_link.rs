//! A link over TCP that connects when it is first used.
//!
//! Most ranks of a large job exchange data with only a few peers. An unused link costs only the
//! descriptor of the control connection.

pub(crate) use crate::tcp::connect::probe::{Liveness, LivenessProbe};

use crate::net::handshake::{HandshakeConfig, Hello, Purpose};
use crate::net::stream::Stream;
use crate::sync::Instant;
use crate::tcp::TcpLink;
use crate::tcp::connect::acceptor::{Acceptor, is_transient};
use crate::tcp::connect::dialer::{DialOutcome, Dialer, is_connection_refused};
use crate::wait::Watcher;
use crate::{Error, Footprint, Geometry, Header, Link, Result, Tag};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use unisono_reducers::{Source, Target};

/// State that all lazy links of a rank share.
#[derive(Debug)]
pub struct DialContext {
    /// This rank.
    pub rank: usize,
    /// Number of ranks.
    pub ranks: usize,
    /// Identifier that the bootstrap gave to the communicator.
    pub session: u64,
    /// Secret and encryption of the job.
    pub terms: HandshakeConfig,
    /// Number of data connections between two ranks.
    pub sockets: usize,
    /// Sizes on which all ranks agree.
    pub geometry: Geometry,
    /// Time within which the acceptor of a peer must accept this rank.
    pub timeout: Duration,
    /// Acceptor of this rank.
    pub acceptor: Acceptor,
    /// Wakes this rank from its sleep.
    pub watcher: Option<Watcher>,
}

/// A link to one peer, connected when either rank first sends to the other.
pub struct LazyLink {
    context: Arc<DialContext>,
    peer: usize,
    address: SocketAddr,
    link: Option<TcpLink>,
    /// Dialer of the connections, while this rank dials.
    dialer: Option<Dialer>,
    /// Time at which the peer was first found gone.
    refused_at: Option<Instant>,
}

impl DialContext {
    pub(crate) fn hello(&self, purpose: Purpose, index: usize) -> Hello {
        let (rank, ranks) = (self.rank as u32, self.ranks as u32);
        Hello { purpose, rank, ranks, index: index as u32, session: self.session }
    }
}

impl LazyLink {
    /// Creates the link to `peer`, whose acceptor is at `address`.
    pub fn new(context: Arc<DialContext>, peer: usize, address: SocketAddr) -> Self {
        Self { context, peer, address, link: None, dialer: None, refused_at: None }
    }

    /// Returns the link, if it is connected.
    fn poll_link(&mut self) -> Result<Option<&mut TcpLink>> {
        if self.link.is_none()
            && let Some(streams) = self.context.acceptor.take_streams(self.peer)
        {
            self.attach(streams)?;
        }
        Ok(self.link.as_mut())
    }

    /// Returns the link, if it was connected before.
    pub(crate) fn connected(&mut self) -> Option<&mut TcpLink> {
        self.link.as_mut()
    }

    fn attach(&mut self, streams: Vec<Stream>) -> Result<()> {
        tracing::debug!(peer = self.peer, "data connections established");
        // If the dial of this rank has not ended, the peer has dialed, too, and its connections are
        // used.
        self.dialer = None;
        self.link = Some(TcpLink::new(self.peer, &self.context.geometry, streams)?);
        Ok(())
    }

    /// Continues to connect, if this rank must dial.
    fn connect(&mut self) -> Result<()> {
        if let Some(refused_at) = self.refused_at {
            return self.check_grace(refused_at);
        }
        if self.dialer.is_none() && !self.context.acceptor.try_claim_dial(self.peer) {
            return Ok(());
        }
        let dial = self.dialer.get_or_insert_with(|| Dialer::for_data(&self.context, self.address));
        let dialed = dial.advance(&self.context);
        if matches!(dialed, Ok(DialOutcome::Pending)) {
            return Ok(());
        }
        // The end is reported after an error as well, so that the acceptor admits the peer when the
        // peer dials.
        self.dialer = None;
        self.context.acceptor.dial_finished(self.peer, matches!(dialed, Ok(DialOutcome::Connected(_))));
        match dialed {
            Ok(DialOutcome::Connected(streams)) => self.attach(streams),
            Ok(DialOutcome::Pending | DialOutcome::Rejected) => Ok(()),
            Err(error) => self.on_dial_error(error),
        }
    }

    /// Handles the error of a dial. A peer that does not listen has left or died. The control
    /// channel gets some time to report which.
    fn on_dial_error(&mut self, error: Error) -> Result<()> {
        match error {
            Error::AuthFailed { .. } => {}
            ref refused if is_connection_refused(refused) => {}
            ref closed if is_transient(closed) => {}
            Error::Timeout { .. } | Error::VersionMismatch { .. } | Error::EncryptionMismatch { .. } => {
                let what = format!("it did not accept a connection: {error}");
                return Err(Error::ConnectionLost { peer: self.peer, what });
            }
            Error::System { what, source } => {
                let what = format!("to send to rank {}: {what}", self.peer);
                return Err(Error::System { what, source });
            }
            error => return Err(error),
        }
        tracing::debug!(peer = self.peer, %error, "the peer refuses connections");
        self.refused_at = Some(Instant::now());
        Ok(())
    }

    fn check_grace(&self, refused_at: Instant) -> Result<()> {
        match refused_at.elapsed() > REFUSED_GRACE {
            true => Err(Error::ConnectionLost {
                peer: self.peer,
                what: "it accepts no more connections".to_owned(),
            }),
            false => Ok(()),
        }
    }
}

impl Link for LazyLink {
    fn try_send<'a>(
        &mut self,
        lane: usize,
        tag: &Tag,
        bytes: usize,
        parts: &mut dyn Iterator<Item = Source<'a>>,
    ) -> Result<bool> {
        if self.poll_link()?.is_none() {
            self.connect()?;
        }
        self.link.as_mut().map_or(Ok(false), |link| link.try_send(lane, tag, bytes, parts))
    }

    fn header(&mut self, lane: usize) -> Result<Option<Header>> {
        self.poll_link()?.map_or(Ok(None), |link| link.header(lane))
    }

    fn body(&mut self, lane: usize) -> Result<Option<Source<'_>>> {
        self.poll_link()?.map_or(Ok(None), |link| link.body(lane))
    }

    fn release(&mut self, lane: usize) {
        if let Some(link) = &mut self.link {
            link.release(lane);
        }
    }

    fn recv_into(&mut self, lane: usize, target: Target<'_>) -> Result<bool> {
        self.poll_link()?.map_or(Ok(false), |link| link.recv_into(lane, target))
    }

    fn progress(&mut self) -> Result<()> {
        self.poll_link()?.map_or(Ok(()), |link| link.progress())
    }

    fn drain(&mut self, limit: Duration) -> bool {
        self.link.as_mut().is_none_or(|link| link.drain(limit))
    }

    fn footprint(&self) -> Footprint {
        self.link.as_ref().map_or_else(Footprint::default, Link::footprint)
    }
}

/// Time within which the control channel may report why a peer refuses connections.
const REFUSED_GRACE: Duration = Duration::from_millis(500);
