//! How ranks find each other, and find out early when they cannot.
//!
//! Every rank connects to the *root*, a thread of rank 0, and proves the job's
//! secret. When all are there the root sends everybody the table of ranks;
//! ranks then connect to each other in pairs, by shared memory within a host and
//! TCP between hosts, and report back. Only when every rank has reported does
//! anybody return. If anything is wrong (a rank twice, missing, of another
//! world, version or configuration; a wrong secret) the root tells every rank
//! that has come the same story.

mod env;
mod host;
mod id;
mod pairs;
mod porch;
mod record;
mod root;

pub use id::UniqueId;

use crate::config::Config;
use crate::error::{Error, ErrorKind, Result};
use crate::schedule::Rank;
use record::{Record, Verdict, recv_text, send_text};
use std::time::{Duration, Instant};
use unisono_transports::auth::{self, Claims, Purpose};
use unisono_transports::socket::Stream;
use unisono_transports::{Error as TransportError, Mesh};

/// Who this process is, among whom, and where they meet.
#[derive(Clone, Debug)]
pub struct Identity {
    /// This rank.
    pub rank: Rank,
    /// How many there are.
    pub ranks: usize,
    /// Where they meet, and the secret that they share.
    pub id: UniqueId,
}

/// Meets the other ranks and connects to them.
///
/// # Errors
/// [`ErrorKind::Rendezvous`], the same on every rank; [`ErrorKind::Misuse`] for impossible numbers.
pub fn join(identity: &Identity, config: &Config) -> Result<Mesh> {
    let Identity { rank, ranks, .. } = *identity;
    if ranks == 0 || rank >= ranks || ranks > RANKS_MAX {
        let text =
            format!("rank {rank} of {ranks}: ranks go from 0 to below their number, at most {RANKS_MAX}");
        return Err(Error::misuse(text));
    }
    let deadline = Instant::now() + config.join_timeout;
    std::thread::scope(|scope| {
        let root = match rank {
            0 => Some(root::Root::listen(identity, config, deadline)?),
            _ => None,
        };
        root.map(|root| scope.spawn(move || root.run()));
        meet(identity, config, deadline)
    })
    .map_err(|error| error.at(rank, &config.host, None))
}

/// This rank's side of the meeting.
fn meet(identity: &Identity, config: &Config, deadline: Instant) -> Result<Mesh> {
    // The root needs a little longer than anybody to tell why it failed.
    let patience = deadline + ROOT_GRACE;
    let mut root = reach_root(identity, deadline)?;
    let doors = pairs::Doors::open(config, root_interface(&root))?;
    let record = Record::own(identity, config, &doors);
    let failed = |error: TransportError| failure(format!("the root at {}: {error}", identity.id.address()));
    send_text(&mut root, &record.encode(), deadline).map_err(failed)?;
    let table = match Verdict::decode(&recv_text(&mut root, patience).map_err(failed)?) {
        Some(Verdict::Table { session, records }) => Ok((session, records)),
        Some(Verdict::Failed(story)) => Err(failure(story)),
        _ => Err(failure("the root's answer cannot be read".to_owned())),
    };
    let (session, records) = table?;
    let mesh = pairs::connect(identity, config, doors, session, &records, deadline);
    let report = mesh.as_ref().map_or_else(|error| Verdict::Failed(error.to_string()), |_| Verdict::Ready);
    send_text(&mut root, &report.encode(), patience).map_err(failed)?;
    match Verdict::decode(&recv_text(&mut root, patience + ROOT_GRACE).map_err(failed)?) {
        Some(Verdict::Ready) => mesh,
        Some(Verdict::Failed(story)) => Err(failure(story)),
        _ => Err(failure("the root's answer cannot be read".to_owned())),
    }
}

/// Connects to the root, which may not be there yet, and proves the secret.
fn reach_root(identity: &Identity, deadline: Instant) -> Result<Stream> {
    let claims = Claims {
        purpose: Purpose::Join,
        rank: identity.rank as u32,
        ranks: identity.ranks as u32,
        index: 0,
        session: 0,
    };
    loop {
        let address = identity.id.address();
        let reached = Stream::dial(address, deadline).and_then(|mut stream| {
            auth::connect(&mut stream, identity.id.secret(), &claims, deadline)?;
            Ok(stream)
        });
        match reached {
            Ok(stream) => return Ok(stream),
            Err(TransportError::System { .. }) if Instant::now() + RETRY_AFTER < deadline => {
                std::thread::sleep(RETRY_AFTER);
            }
            Err(TransportError::System { source, .. }) => {
                let text = format!("rank 0 was not to be reached at {address} in time ({source})");
                return Err(failure(text));
            }
            Err(error) => return Err(failure(error.to_string())),
        }
    }
}

/// The local address over which the root was reached: the one that peers on that network reach, too.
fn root_interface(root: &Stream) -> Option<std::net::IpAddr> {
    match root {
        Stream::Tcp(stream) => stream.local_addr().ok().map(|address| address.ip()),
        Stream::Unix(_) => None,
    }
}

fn failure(story: String) -> Error {
    Error::new(ErrorKind::Rendezvous(story))
}

/// More ranks than this are a mistake.
const RANKS_MAX: usize = 65_536;
const RETRY_AFTER: Duration = Duration::from_millis(20);
/// Between a rank's deadline and the root's last word.
const ROOT_GRACE: Duration = Duration::from_millis(500);
