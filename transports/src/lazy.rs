//! A link over TCP that connects when it is first used.
//!
//! Most ranks of a large job exchange messages with a few others only; what
//! is not used costs a descriptor for notes, and nothing else.

mod dial;
mod knock;

pub(crate) use knock::{Fate, Knock};

use crate::auth::{Claims, Purpose, Terms};
use crate::doorman::{Doorman, is_crowded};
use crate::pace::Watcher;
use crate::socket::Stream;
use crate::sync::Instant;
use crate::tcp::TcpLink;
use crate::{Error, Footprint, Geometry, Head, Link, Result, Tag};
use dial::{Dial, Dialled, is_refusal};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use unisono_cuda::{Source, Target};

/// What all lazy links of a rank have in common.
#[derive(Debug)]
pub struct Dialling {
    /// This rank.
    pub rank: usize,
    /// The number of ranks.
    pub ranks: usize,
    /// Of the meeting.
    pub session: u64,
    /// Of the job.
    pub terms: Terms,
    /// Connections for messages between two ranks.
    pub sockets: usize,
    /// The sizes agreed on.
    pub geometry: Geometry,
    /// How long a peer's doorman may take to let this rank in.
    pub patience: Duration,
    /// Who lets the others in here.
    pub doorman: Doorman,
    /// Ends this rank's sleeps.
    pub watcher: Option<Watcher>,
}

/// A link to one peer, made when this rank first sends to it or it to this rank.
pub struct LazyLink {
    common: Arc<Dialling>,
    peer: usize,
    address: SocketAddr,
    link: Option<TcpLink>,
    /// On the way to one.
    dial: Option<Dial>,
    /// When the peer was first found gone.
    gone: Option<Instant>,
}

impl Dialling {
    fn claims(&self, purpose: Purpose, index: usize) -> Claims {
        let (rank, ranks) = (self.rank as u32, self.ranks as u32);
        Claims { purpose, rank, ranks, index: index as u32, session: self.session }
    }
}

impl LazyLink {
    /// To `peer`, whose doorman is at `address`.
    pub fn new(common: Arc<Dialling>, peer: usize, address: SocketAddr) -> Self {
        Self { common, peer, address, link: None, dial: None, gone: None }
    }

    /// The link, if there is one yet.
    fn made(&mut self) -> Result<Option<&mut TcpLink>> {
        if self.link.is_none()
            && let Some(streams) = self.common.doorman.take(self.peer)
        {
            self.make(streams)?;
        }
        Ok(self.link.as_mut())
    }

    fn make(&mut self, streams: Vec<Stream>) -> Result<()> {
        tracing::debug!(peer = self.peer, "connected for messages");
        // Its peer dials itself, if it is not this that has ended so.
        self.dial = None;
        self.link = Some(TcpLink::new(self.peer, &self.common.geometry, streams)?);
        Ok(())
    }

    /// Goes on making the link, if it is this rank that has to.
    fn connect(&mut self) -> Result<()> {
        if let Some(since) = self.gone {
            return self.give_up(since);
        }
        if self.dial.is_none() && !self.common.doorman.may_dial(self.peer) {
            return Ok(());
        }
        let dial = self.dial.get_or_insert_with(|| Dial::new(&self.common, self.address));
        let dialled = dial.advance(&self.common);
        if matches!(dialled, Ok(Dialled::NotYet)) {
            return Ok(());
        }
        self.dial = None;
        self.common.doorman.dialled(self.peer, matches!(dialled, Ok(Dialled::Connected(_))));
        match dialled {
            Ok(Dialled::Connected(streams)) => self.make(streams),
            Ok(Dialled::NotYet | Dialled::Busy) => Ok(()),
            Err(error) => self.failed(error),
        }
    }

    /// A peer whose door is shut has left, or died: for a while, the control path may say which.
    fn failed(&mut self, error: Error) -> Result<()> {
        match error {
            Error::Refused { .. } => {}
            ref refusal if is_refusal(refusal) => {}
            ref sent_away if is_crowded(sent_away) => {}
            Error::Timeout { .. } | Error::Version { .. } | Error::Encryption { .. } => {
                let what = format!("it did not let this rank in: {error}");
                return Err(Error::Lost { peer: self.peer, what });
            }
            Error::System { what, source } => {
                let what = format!("to send to rank {}: {what}", self.peer);
                return Err(Error::System { what, source });
            }
            error => return Err(error),
        }
        tracing::debug!(peer = self.peer, %error, "the door is shut");
        self.gone = Some(Instant::now());
        Ok(())
    }

    fn give_up(&self, since: Instant) -> Result<()> {
        match since.elapsed() > GONE_GRACE {
            true => Err(Error::Lost { peer: self.peer, what: "it takes no more connections".to_owned() }),
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
        if self.made()?.is_none() {
            self.connect()?;
        }
        self.link.as_mut().map_or(Ok(false), |link| link.try_send(lane, tag, bytes, parts))
    }

    fn head(&mut self, lane: usize) -> Result<Option<Head>> {
        self.made()?.map_or(Ok(None), |link| link.head(lane))
    }

    fn body(&mut self, lane: usize) -> Result<Option<Source<'_>>> {
        self.made()?.map_or(Ok(None), |link| link.body(lane))
    }

    fn release(&mut self, lane: usize) {
        if let Some(link) = &mut self.link {
            link.release(lane);
        }
    }

    fn take(&mut self, lane: usize, target: Target<'_>) -> Result<bool> {
        self.made()?.map_or(Ok(false), |link| link.take(lane, target))
    }

    fn progress(&mut self) -> Result<()> {
        self.made()?.map_or(Ok(()), |link| link.progress())
    }

    fn footprint(&self) -> Footprint {
        self.link.as_ref().map_or_else(Footprint::default, Link::footprint)
    }
}

/// How long the control path may take to say why a door is shut.
const GONE_GRACE: Duration = Duration::from_millis(500);
