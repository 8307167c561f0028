//! How ranks find each other, and find out early when they cannot.
//!
//! Every rank connects to the *root*, a thread of rank 0, and proves the job's
//! secret. When all are there the root sends everybody the table of ranks;
//! ranks then connect to each other and report back. Only when every rank has
//! reported does anybody return. If anything is wrong (a rank twice, missing,
//! dead, of another world, version or configuration; a wrong secret) the root
//! tells every rank that has come the same story, and every rank listens for
//! that in whatever it does meanwhile.
//!
//! Ranks of one host hand their memory to the first of them, which hands
//! everybody's to all: a socket for each rank, not for each two, and none of
//! them stays open. Ranks of different hosts keep one connection for notes to
//! each other; those for messages are made when they are first used.

pub(crate) mod connect;
pub(crate) mod cpu_mask;
mod env;
mod host;
pub(crate) mod local_exchange;
pub(crate) mod peer_info;
pub(crate) mod unique_id;
#[cfg(feature = "gpu")]
pub(crate) use crate::bootstrap::host::identity as host_identity;
mod root;
#[cfg(test)]
mod tests;

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use crate::bootstrap::peer_info::fuzzing;

pub use crate::bootstrap::unique_id::UniqueId;
pub use crate::error::bootstrap::BootstrapError;

use crate::bootstrap::peer_info::{PeerInfo, RootReply};
pub(crate) use crate::bootstrap::peer_info::{recv_text, send_text};
use crate::config::Config;
use crate::error::bootstrap::BootstrapError as Failure;
use crate::error::{Error, ErrorKind, Result};
use crate::schedule::Rank;
use std::time::{Duration, Instant};
use unisono_transports::secure::handshake::{self, HandshakeConfig, Hello, Purpose};
use unisono_transports::sys::socket::Stream;
use unisono_transports::tcp::connect::acceptor::Backoff;
use unisono_transports::{Error as TransportError, Fabric, sys::rlimit};

/// Who this process is, among whom, and where they meet.
#[derive(Clone, Debug)]
pub struct RankInfo {
    /// This rank.
    pub rank: Rank,
    /// How many there are.
    pub ranks: usize,
    /// Where they meet, and the secret that they share.
    pub id: UniqueId,
}

impl RankInfo {
    /// What it asks of whom it connects to.
    fn handshake_config(&self, config: &Config) -> HandshakeConfig {
        HandshakeConfig { secret: self.id.secret().clone(), encrypt: config.encryption }
    }
}

/// Meets the other ranks and connects to them.
///
/// # Errors
/// [`ErrorKind::Bootstrap`], the same on every rank; [`ErrorKind::InvalidUsage`] for impossible numbers.
pub fn join(identity: &RankInfo, config: &Config) -> Result<Fabric> {
    join_until(identity, config, (config.join_timeout, crate::bootstrap::root::LINGER_TIME))
}

/// As [`join`], among ranks all of which come within `patience`, or not at all.
///
/// # Errors
/// As [`join`].
pub(crate) fn rejoin(identity: &RankInfo, config: &Config, patience: Duration) -> Result<Fabric> {
    join_until(identity, config, (patience, Duration::ZERO))
}

fn join_until(
    identity: &RankInfo,
    config: &Config,
    (patience, linger): (Duration, Duration),
) -> Result<Fabric> {
    let RankInfo { rank, ranks, .. } = *identity;
    if ranks == 0 || rank >= ranks || ranks > RANKS_MAX {
        let text =
            format!("rank {rank} of {ranks}: ranks go from 0 to below their number, at most {RANKS_MAX}");
        return Err(Error::invalid_usage(text));
    }
    let deadline = Instant::now() + patience;
    rlimit::raise_fd_limit(DESCRIPTORS + (2 + config.sockets_per_peer) * ranks);
    let met = std::thread::scope(|scope| {
        let root = match rank {
            0 => Some(crate::bootstrap::root::Root::listen(identity, config, (deadline, linger))?),
            _ => None,
        };
        if let Some(root) = root {
            std::thread::Builder::new().spawn_scoped(scope, move || root.run()).map_err(|error| {
                let what = format!("no thread can be had to collect the ranks: {error}; look at `ulimit -u`");
                Failure::Other { what }.with_rank(rank)
            })?;
        }
        connect_all(identity, config, deadline)
    });
    met.map_err(|failure| Error::new(ErrorKind::Bootstrap(failure)).with_rank(rank, &config.host, None))
}

/// This rank's side of the meeting.
fn connect_all(
    identity: &RankInfo,
    config: &Config,
    deadline: Instant,
) -> std::result::Result<Fabric, Failure> {
    // The root needs a little longer than anybody to tell why it failed.
    let patience = deadline + ROOT_GRACE;
    let begun = Instant::now();
    let mut root = connect_root(identity, config, deadline)?;
    let doors = crate::bootstrap::connect::Listeners::bind(identity.rank, config, root_interface(&root))
        .map_err(|failure| failure.with_rank(identity.rank));
    let doors = doors.inspect_err(|failure| {
        // The others need not wait for this rank; who cannot be told finds out by itself.
        let _ = send_text(&mut root, &RootReply::Failed(failure.clone()).encode(), deadline);
    })?;
    let record = PeerInfo::local(identity, config, &doors);
    send_to_root(&mut root, &record.encode(), deadline)?;
    let RootReply::Table { session, peer_infos: records } = recv_from_root(&mut root, patience)? else {
        return Err(Failure::Other { what: "the root spoke out of turn".to_owned() });
    };
    let all_here = begun.elapsed();
    let mut meeting = crate::bootstrap::connect::PeerConnector::new(
        identity, config, session, records, &mut root, deadline,
    )?;
    let mesh = meeting.connect(doors);
    if let Some(failure) = meeting.heard() {
        return Err(failure);
    }
    let report =
        mesh.as_ref().map_or_else(|failure| RootReply::Failed(failure.clone()), |_| RootReply::Ready);
    let connected = begun.elapsed();
    send_to_root(&mut root, &report.encode(), patience)?;
    match recv_from_root(&mut root, patience + ROOT_GRACE)? {
        RootReply::Ready => {
            let encrypted = config.encryption;
            tracing::info!(?all_here, ?connected, everybody = ?begun.elapsed(), encrypted, "met");
            mesh
        }
        _ => Err(Failure::Other { what: "the root spoke out of turn".to_owned() }),
    }
}

/// Says something to the root. One that has given up says why before it hangs up, so that is looked for first where it is gone.
fn send_to_root(root: &mut Stream, text: &str, deadline: Instant) -> std::result::Result<(), Failure> {
    let Err(error) = send_text(root, text, deadline) else { return Ok(()) };
    let last = recv_text(root, Instant::now() + ROOT_GRACE).ok();
    match last.and_then(|text| RootReply::decode(&text)) {
        Some(RootReply::Failed(failure)) => Err(failure),
        _ => Err(root_lost(error)),
    }
}

/// What the root says, if it is not that there will be no meeting.
fn recv_from_root(root: &mut Stream, deadline: Instant) -> std::result::Result<RootReply, Failure> {
    match RootReply::decode(&recv_text(root, deadline).map_err(root_lost)?) {
        Some(RootReply::Failed(failure)) => Err(failure),
        Some(verdict) => Ok(verdict),
        None => Err(Failure::Other { what: "the root's answer cannot be read".to_owned() }),
    }
}

fn root_lost(error: TransportError) -> Failure {
    match error {
        TransportError::Timeout { .. } => Failure::Other { what: format!("rank 0 is silent: {error}") },
        error => Failure::Died { rank: 0, host: "its host".to_owned(), what: error.to_string() },
    }
}

/// Connects to the root, which may not be there yet, and proves the secret.
fn connect_root(
    identity: &RankInfo,
    config: &Config,
    deadline: Instant,
) -> std::result::Result<Stream, Failure> {
    let claims = Hello {
        purpose: Purpose::Join,
        rank: identity.rank as u32,
        ranks: identity.ranks as u32,
        index: 0,
        session: 0,
    };
    let (address, terms) = (identity.id.address(), identity.handshake_config(config));
    let mut pauses = Backoff::default();
    loop {
        let reached = Stream::connect(address, deadline).and_then(|mut stream| {
            handshake::connect(&mut stream, &terms, &claims, deadline)?;
            Ok(stream)
        });
        let pause = pauses.next_delay();
        match reached {
            Ok(stream) => return Ok(stream),
            Err(ref error) if is_transient(error) && Instant::now() + pause < deadline => {
                std::thread::sleep(pause);
            }
            Err(TransportError::EncryptionMismatch { peer, encrypts, .. }) => {
                return Err(encryption_mismatch((identity.rank, config), (0, peer), encrypts));
            }
            Err(TransportError::AuthFailed { what, .. }) => {
                return Err(Failure::Secret { address: format!("rank 0 at {address}"), what });
            }
            Err(error @ TransportError::VersionMismatch { .. }) => return Err(error.into()),
            Err(TransportError::System { source, .. }) => {
                return Err(Failure::RootUnreachable {
                    address: address.to_string(),
                    what: source.to_string(),
                });
            }
            Err(error) => {
                return Err(Failure::RootUnreachable {
                    address: address.to_string(),
                    what: error.to_string(),
                });
            }
        }
    }
}

/// A door that is not there yet, too crowded, or shut because its process ended, may be open soon.
fn is_transient(error: &TransportError) -> bool {
    match error {
        TransportError::System { source, .. } => !rlimit::is_fd_exhausted(source),
        error => matches!(error, TransportError::ConnectionClosed { .. }),
    }
}

/// Of this rank and another, of which only one encrypts.
fn encryption_mismatch(own: (Rank, &Config), (rank, address): (Rank, String), encrypts: bool) -> Failure {
    let setting = |on| format!("encryption {}", if on { "on" } else { "off" });
    let (own_rank, config) = own;
    Failure::Settings {
        ranks: [own_rank, rank],
        hosts: [config.host.clone(), address],
        settings: [setting(!encrypts), setting(encrypts)],
    }
}

/// The local address over which the root was reached: the one that peers on that network reach, too.
fn root_interface(root: &Stream) -> Option<std::net::IpAddr> {
    root.tcp()?.local_addr().ok().map(|address| address.ip())
}

/// More ranks than this are a mistake.
const RANKS_MAX: usize = 65_536;
/// For what else a program has open.
const DESCRIPTORS: usize = 128;
/// Between a rank's deadline and the root's last word.
const ROOT_GRACE: Duration = Duration::from_millis(500);
