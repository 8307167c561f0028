//! Connecting to a peer in steps that never wait: meanwhile, the rank hears who is gone, and of an abort.

use super::Dialling;
use crate::auth::{Introduction, Purpose};
use crate::doorman::{Pauses, is_crowded, is_welcome};
use crate::socket::Stream;
use crate::sync::Instant;
use crate::{Error, Result};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

#[cfg(all(test, shuttle))]
use crate::model::call;

/// Connections to one peer, as far as they have got.
pub(super) struct Dial {
    purpose: Purpose,
    /// How many.
    wanted: usize,
    address: SocketAddr,
    patience: Duration,
    begun: Instant,
    /// Not tried again before, and how long after the next failure.
    resumes: Instant,
    pauses: Pauses,
    /// Why it was tried again.
    refusal: Option<Error>,
    /// Those that the peer's doorman has let in.
    streams: Vec<Stream>,
    stage: Stage,
}

/// How far the next one is.
#[derive(Default)]
enum Stage {
    #[default]
    Apart,
    Calling(Stream),
    Introducing(Stream, Box<Introduction>),
    /// Both sides have proved themselves.
    Knocking(Stream),
}

/// How dialling stands, or has ended.
pub(super) enum Dialled {
    NotYet,
    /// The peer dials itself.
    Busy,
    Connected(Vec<Stream>),
}

/// What a step was good for.
enum Step {
    Done,
    Waits,
    SentAway,
}

impl Dial {
    /// For messages, to the doorman at `address`, for as long as `patience`.
    pub(super) fn new(common: &Dialling, address: SocketAddr) -> Self {
        Self::to(address, common.patience, (Purpose::Data, common.sockets))
    }

    /// To hear whether anybody is there at all.
    pub(super) fn knocking(address: SocketAddr, patience: Duration) -> Self {
        Self::to(address, patience, (Purpose::Knock, 1))
    }

    fn to(address: SocketAddr, patience: Duration, (purpose, wanted): (Purpose, usize)) -> Self {
        let begun = Instant::now();
        let (streams, stage, refusal) = (Vec::new(), Stage::Apart, None);
        Self {
            purpose,
            wanted,
            address,
            patience,
            begun,
            resumes: begun,
            pauses: Pauses::default(),
            refusal,
            streams,
            stage,
        }
    }

    /// Goes on as far as possible. Where strangers crowd the door, it is tried again; who knocks does so
    /// until the address refuses the connection, or its owner answers.
    ///
    /// # Errors
    /// [`Error::Timeout`] with the last reason why it was tried again; that of the connection or the handshake.
    pub(super) fn advance(&mut self, common: &Dialling) -> Result<Dialled> {
        let now = Instant::now();
        if now >= self.begun + self.patience {
            return Err(self.late());
        }
        if now < self.resumes {
            return Ok(Dialled::NotYet);
        }
        while self.streams.len() < self.wanted {
            let was_heard = matches!(self.stage, Stage::Knocking(_));
            match self.step(common) {
                Ok(Step::Done) => {}
                Ok(Step::Waits) => return Ok(Dialled::NotYet),
                Ok(Step::SentAway) => return Ok(Dialled::Busy),
                Err(error) if self.may_pass(was_heard, &error) => {
                    tracing::debug!(address = %self.address, %error, "dialling again");
                    (self.resumes, self.refusal) = (now + self.pauses.take(), Some(error));
                    return Ok(Dialled::NotYet);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Dialled::Connected(std::mem::take(&mut self.streams)))
    }

    /// One step of the next connection; one that fails is apart again.
    fn step(&mut self, common: &Dialling) -> Result<Step> {
        let (stage, step) = match std::mem::take(&mut self.stage) {
            Stage::Apart => {
                let stream = call(self.address)?;
                common.watcher.iter().for_each(|watcher| watcher.add(&stream));
                (Stage::Calling(stream), Step::Done)
            }
            Stage::Calling(stream) if !stream.is_connected(self.address)? => {
                (Stage::Calling(stream), Step::Waits)
            }
            Stage::Calling(mut stream) => {
                let claims = common.claims(self.purpose, self.streams.len());
                let introduction = Introduction::begin(&mut stream, &common.terms, &claims)?;
                (Stage::Introducing(stream, Box::new(introduction)), Step::Done)
            }
            Stage::Introducing(mut stream, mut introduction) => {
                match introduction.advance(&mut stream, &common.terms)? {
                    true => (Stage::Knocking(stream), Step::Done),
                    false => (Stage::Introducing(stream, introduction), Step::Waits),
                }
            }
            Stage::Knocking(mut stream) => match is_welcome(&mut stream)? {
                Some(true) => {
                    self.streams.push(stream);
                    (Stage::Apart, Step::Done)
                }
                Some(false) => (Stage::Apart, Step::SentAway),
                None => (Stage::Knocking(stream), Step::Waits),
            },
        };
        self.stage = stage;
        Ok(step)
    }

    /// Time in which nobody looked what had come does not count.
    pub(super) fn forgive(&mut self, time: Duration) {
        self.begun += time;
    }

    /// Whether another attempt may end otherwise. A door that is just being shut, with the process behind it, closes what
    /// it had let in, and refuses the next.
    fn may_pass(&self, was_heard: bool, error: &Error) -> bool {
        match self.purpose {
            Purpose::Knock => {
                !is_refusal(error) && matches!(error, Error::System { .. } | Error::Closed { .. })
            }
            _ => !was_heard && is_crowded(error),
        }
    }

    fn late(&mut self) -> Error {
        let refusal = self.refusal.take().map_or_else(String::new, |error| format!(", at last {error}"));
        Error::Timeout { what: format!("no way in at {} for {:?}{refusal}", self.address, self.patience) }
    }
}

/// Begins to connect to a door.
#[cfg(not(all(test, shuttle)))]
fn call(address: SocketAddr) -> Result<Stream> {
    Stream::begin(address)
}

/// Whether nobody listens where a connection was to be made.
pub(super) fn is_refusal(error: &Error) -> bool {
    matches!(error, Error::System { source, .. } if source.kind() == ErrorKind::ConnectionRefused)
}
