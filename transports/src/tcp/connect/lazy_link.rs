//! A link over TCP that connects when it is first used.
//!
//! Most ranks of a large job exchange messages with a few others only; what
//! is not used costs a descriptor for notes, and nothing else.

pub(crate) use crate::tcp::connect::probe::{Liveness, LivenessProbe};

use crate::secure::handshake::{HandshakeConfig, Hello, Purpose};
use crate::sync::Instant;
use crate::sys::socket::Stream;
use crate::tcp::TcpLink;
use crate::tcp::connect::acceptor::{Acceptor, is_transient};
use crate::tcp::connect::dialer::{DialOutcome, Dialer, is_connection_refused};
use crate::wait::Watcher;
use crate::{Error, Footprint, Geometry, Header, Link, Result, Tag};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use unisono_cuda::{Source, Target};

/// What all lazy links of a rank have in common.
#[derive(Debug)]
pub struct DialContext {
    /// This rank.
    pub rank: usize,
    /// The number of ranks.
    pub ranks: usize,
    /// Of the meeting.
    pub session: u64,
    /// Of the job.
    pub terms: HandshakeConfig,
    /// Connections for messages between two ranks.
    pub sockets: usize,
    /// The sizes agreed on.
    pub geometry: Geometry,
    /// How long a peer's acceptor may take to let this rank in.
    pub timeout: Duration,
    /// Who lets the others in here.
    pub acceptor: Acceptor,
    /// Ends this rank's sleeps.
    pub watcher: Option<Watcher>,
}

/// A link to one peer, made when this rank first sends to it or it to this rank.
pub struct LazyLink {
    context: Arc<DialContext>,
    peer: usize,
    address: SocketAddr,
    link: Option<TcpLink>,
    /// On the way to one.
    dialer: Option<Dialer>,
    /// When the peer was first found gone.
    refused_at: Option<Instant>,
}

impl DialContext {
    pub(crate) fn hello(&self, purpose: Purpose, index: usize) -> Hello {
        let (rank, ranks) = (self.rank as u32, self.ranks as u32);
        Hello { purpose, rank, ranks, index: index as u32, session: self.session }
    }
}

impl LazyLink {
    /// To `peer`, whose acceptor is at `address`.
    pub fn new(common: Arc<DialContext>, peer: usize, address: SocketAddr) -> Self {
        Self { context: common, peer, address, link: None, dialer: None, refused_at: None }
    }

    /// The link, if there is one yet.
    fn poll_link(&mut self) -> Result<Option<&mut TcpLink>> {
        if self.link.is_none()
            && let Some(streams) = self.context.acceptor.take_streams(self.peer)
        {
            self.attach(streams)?;
        }
        Ok(self.link.as_mut())
    }

    fn attach(&mut self, streams: Vec<Stream>) -> Result<()> {
        tracing::debug!(peer = self.peer, "connected for messages");
        // Its peer dials itself, if it is not this that has ended so.
        self.dialer = None;
        self.link = Some(TcpLink::new(self.peer, &self.context.geometry, streams)?);
        Ok(())
    }

    /// Goes on making the link, if it is this rank that has to.
    fn connect(&mut self) -> Result<()> {
        if let Some(since) = self.refused_at {
            return self.check_grace(since);
        }
        if self.dialer.is_none() && !self.context.acceptor.try_claim_dial(self.peer) {
            return Ok(());
        }
        let dial = self.dialer.get_or_insert_with(|| Dialer::for_data(&self.context, self.address));
        let dialed = dial.advance(&self.context);
        if matches!(dialed, Ok(DialOutcome::Pending)) {
            return Ok(());
        }
        self.dialer = None;
        self.context.acceptor.dial_finished(self.peer, matches!(dialed, Ok(DialOutcome::Connected(_))));
        match dialed {
            Ok(DialOutcome::Connected(streams)) => self.attach(streams),
            Ok(DialOutcome::Pending | DialOutcome::Rejected) => Ok(()),
            Err(error) => self.on_dial_error(error),
        }
    }

    /// A peer whose door is shut has left, or died: for a while, the control path may say which.
    fn on_dial_error(&mut self, error: Error) -> Result<()> {
        match error {
            Error::AuthFailed { .. } => {}
            ref refusal if is_connection_refused(refusal) => {}
            ref sent_away if is_transient(sent_away) => {}
            Error::Timeout { .. } | Error::VersionMismatch { .. } | Error::EncryptionMismatch { .. } => {
                let what = format!("it did not let this rank in: {error}");
                return Err(Error::ConnectionLost { peer: self.peer, what });
            }
            Error::System { what, source } => {
                let what = format!("to send to rank {}: {what}", self.peer);
                return Err(Error::System { what, source });
            }
            error => return Err(error),
        }
        tracing::debug!(peer = self.peer, %error, "the door is shut");
        self.refused_at = Some(Instant::now());
        Ok(())
    }

    fn check_grace(&self, since: Instant) -> Result<()> {
        match since.elapsed() > REFUSED_GRACE {
            true => Err(Error::ConnectionLost {
                peer: self.peer,
                what: "it takes no more connections".to_owned(),
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

    fn footprint(&self) -> Footprint {
        self.link.as_ref().map_or_else(Footprint::default, Link::footprint)
    }
}

/// How long the control path may take to say why a door is shut.
const REFUSED_GRACE: Duration = Duration::from_millis(500);
