//! Connects the ranks of a job. If that is impossible, every rank gets the same reason.
//!
//! Every rank connects to the *root*, a thread of rank 0, and proves that it knows the job's
//! secret. When all ranks have joined, the root sends them the table of ranks. The ranks then
//! connect to each other and report to the root. No rank returns before all ranks have reported.
//!
//! The root sends every joined rank the same error if a rank is missing, duplicated or dead, or
//! differs in world size, version, settings or secret. Whenever a rank waits, it also listens to
//! the root.
//!
//! Ranks of one host pass their memory to the first rank of the host, which passes the memory of
//! all ranks to each of them. This takes one socket for each rank, and no socket stays open. If
//! memory cannot be shared, all ranks use TCP. Ranks of different hosts keep one control connection
//! to each other. Connections for messages are made when they are first used.

pub(crate) mod connect;
pub(crate) mod cpu_mask;
pub(crate) mod endpoint;
mod env;
mod host;
pub(crate) mod invitation;
mod launcher;
pub(crate) mod local_exchange;
mod meeting_point;
pub(crate) mod peer_info;
mod place;
mod store;
pub(crate) mod unique_id;
mod user_key;
#[cfg(feature = "gpu")]
pub(crate) use crate::bootstrap::host::identity as host_identity;
mod root;
#[cfg(test)]
mod tests;

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use crate::bootstrap::peer_info::fuzzing;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use crate::bootstrap::store::fuzz as fuzz_store;

pub(crate) use crate::bootstrap::store::exchange_id;
pub use crate::bootstrap::store::{FileStore, Store};
pub use crate::bootstrap::unique_id::UniqueId;
pub use crate::error::bootstrap::BootstrapError;

use crate::bootstrap::peer_info::{PeerInfo, RootReply};
pub(crate) use crate::bootstrap::peer_info::{recv_text, send_text};
use crate::config::{Config, Interface, Transport};
use crate::error::bootstrap::BootstrapError as Failure;
use crate::error::{Error, ErrorKind, Result};
use crate::log::warn_user;
use crate::schedule::Rank;
use std::net::SocketAddr;
use std::sync::Once;
use std::time::{Duration, Instant};
use unisono_transports::net::handshake::HandshakeConfig;
use unisono_transports::net::stream::Stream;
use unisono_transports::{Error as TransportError, Fabric, sys::rlimit};

/// A process's rank, the number of ranks, and the address where they meet.
#[derive(Clone, Debug)]
pub struct RankInfo {
    /// This rank.
    pub rank: Rank,
    /// The number of ranks.
    pub ranks: usize,
    /// The address where the ranks meet, and the secret that they share.
    pub id: UniqueId,
}

impl RankInfo {
    /// The settings of this rank's handshakes.
    fn handshake_config(&self, config: &Config) -> HandshakeConfig {
        HandshakeConfig { secret: self.id.secret().clone(), encrypt: config.encryption }
    }
}

/// Meets the other ranks and connects to them.
///
/// # Errors
/// [`ErrorKind::Bootstrap`] if the ranks cannot connect, with the same reason on all ranks.
/// [`ErrorKind::InvalidUsage`] if the rank or the number of ranks is impossible.
pub fn join(identity: &RankInfo, config: &Config) -> Result<Fabric> {
    join_and_locate(identity, config).map(|(fabric, _)| fabric)
}

/// Works as [`join`], and also returns the id with the address at which the ranks have met.
///
/// # Errors
/// As [`join`].
pub(crate) fn join_and_locate(identity: &RankInfo, config: &Config) -> Result<(Fabric, UniqueId)> {
    join_until(identity, config, config.join_timeout, crate::bootstrap::root::LINGER_TIME)
}

/// Works as [`join`], but with another deadline, and without telling late ranks of a failure.
///
/// # Errors
/// As [`join`].
pub(crate) fn rejoin(identity: &RankInfo, config: &Config, patience: Duration) -> Result<Fabric> {
    join_until(identity, config, patience, Duration::ZERO).map(|(fabric, _)| fabric)
}

fn join_until(
    identity: &RankInfo,
    config: &Config,
    patience: Duration,
    linger: Duration,
) -> Result<(Fabric, UniqueId)> {
    let RankInfo { rank, ranks, .. } = *identity;
    if ranks == 0 || rank >= ranks || ranks > RANKS_MAX {
        let text =
            format!("rank {rank} of {ranks}: ranks go from 0 to below their number, at most {RANKS_MAX}");
        return Err(Error::invalid_usage(text));
    }
    let deadline = Instant::now() + patience;
    rlimit::raise_fd_limit(DESCRIPTORS + (2 + config.sockets_per_peer) * ranks);
    let met = match meet(identity, config, deadline, linger) {
        // All ranks get the same failure, so all of them meet again, over TCP.
        Err(failure @ Failure::SharedMemory { .. }) if config.transport == Transport::Auto => {
            warn_fallback(rank, &failure);
            let tcp = Config { transport: Transport::Tcp, ..config.clone() };
            meet(identity, &tcp, deadline, linger)
        }
        met => met,
    };
    let (fabric, address) =
        met.map_err(|failure| Error::new(ErrorKind::Bootstrap(failure)).with_rank(rank, &config.host, None))?;
    Ok((fabric, identity.id.clone().reached_at(address)))
}

/// Warns that the ranks of this host use TCP among themselves. Only rank 0 warns, and once in a
/// process.
fn warn_fallback(rank: Rank, failure: &Failure) {
    static WARNED: Once = Once::new();
    if rank == 0 {
        WARNED.call_once(|| {
            warn_user(&format!("{failure}; all ranks use TCP instead, which is slower within a host"));
        });
    }
}

/// Carries out one meeting, for which rank 0 starts the root in a separate thread. Also returns the
/// address of the meeting.
fn meet(
    identity: &RankInfo,
    config: &Config,
    deadline: Instant,
    linger: Duration,
) -> std::result::Result<(Fabric, SocketAddr), Failure> {
    let rank = identity.rank;
    std::thread::scope(|scope| {
        let root = match rank {
            0 => Some(crate::bootstrap::root::Root::listen(identity, config, deadline, linger)?),
            _ => None,
        };
        let own_address = root.as_ref().and_then(root::Root::own_address);
        if let Some(root) = root {
            std::thread::Builder::new().spawn_scoped(scope, move || root.run()).map_err(|error| {
                let what =
                    format!("cannot start the thread that collects the ranks: {error}; check `ulimit -u`");
                Failure::Other { what }.with_rank(rank)
            })?;
        }
        connect_all(identity, config, own_address, deadline)
    })
}

/// Joins the root, connects to all ranks and reports to the root. On rank 0, `own_address` is the
/// address of the root.
fn connect_all(
    identity: &RankInfo,
    config: &Config,
    own_address: Option<SocketAddr>,
    deadline: Instant,
) -> std::result::Result<(Fabric, SocketAddr), Failure> {
    // If the root fails, it sends the reason shortly after the ranks' deadline.
    let patience = deadline + ROOT_GRACE;
    let begun = Instant::now();
    let mut root = meeting_point::connect(identity, config, own_address, deadline)?;
    let [local_address, met_at] = ends(&root)?;
    let listeners = connect::Listeners::bind(identity.rank, config, Interface::of(local_address))
        .map_err(|failure| failure.with_rank(identity.rank));
    let listeners = listeners.inspect_err(|failure| {
        // Because of this message, the other ranks need not wait for this one. If the root is gone,
        // this is noticed later.
        let _ = send_text(&mut root, &RootReply::Failed(failure.clone()).encode(), deadline);
    })?;
    let record = PeerInfo::local(identity, config, &listeners);
    send_to_root(&mut root, &record.encode(), deadline)?;
    let RootReply::Table { session, peer_infos: records } = recv_from_root(&mut root, patience)? else {
        return Err(Failure::Other { what: "the root sent an unexpected reply".to_owned() });
    };
    let all_here = begun.elapsed();
    let records = records.into_iter().map(|record| record.seen_from(met_at)).collect();
    let mut connector = connect::PeerConnector::new(identity, config, session, records, &mut root, deadline)?;
    let fabric = connector.connect(listeners);
    // The root that has sent a failure reads no report any more.
    if let Some(failure) = connector.heard() {
        return Err(failure);
    }
    let report =
        fabric.as_ref().map_or_else(|failure| RootReply::Failed(failure.clone()), |_| RootReply::Ready);
    let connected = begun.elapsed();
    send_to_root(&mut root, &report.encode(), patience)?;
    match recv_from_root(&mut root, patience + ROOT_GRACE)? {
        RootReply::Ready => {
            let encrypted = config.encryption;
            tracing::info!(?all_here, ?connected, everybody = ?begun.elapsed(), encrypted, "connected to all ranks");
            fabric.map(|fabric| (fabric, met_at))
        }
        _ => Err(Failure::Other { what: "the root sent an unexpected reply".to_owned() }),
    }
}

/// Sends text to the root. If the root has closed the connection, the reason that it sent before is
/// returned.
fn send_to_root(root: &mut Stream, text: &str, deadline: Instant) -> std::result::Result<(), Failure> {
    let Err(error) = send_text(root, text, deadline) else { return Ok(()) };
    let last = recv_text(root, Instant::now() + ROOT_GRACE).ok();
    match last.and_then(|text| RootReply::decode(&text)) {
        Some(RootReply::Failed(failure)) => Err(failure),
        _ => Err(root_lost(error)),
    }
}

/// Receives the root's reply, and returns its failure as an error.
fn recv_from_root(root: &mut Stream, deadline: Instant) -> std::result::Result<RootReply, Failure> {
    match RootReply::decode(&recv_text(root, deadline).map_err(root_lost)?) {
        Some(RootReply::Failed(failure)) => Err(failure),
        Some(reply) => Ok(reply),
        None => Err(Failure::Other { what: "the root's reply cannot be parsed".to_owned() }),
    }
}

fn root_lost(error: TransportError) -> Failure {
    match error {
        TransportError::Timeout { .. } => Failure::Other { what: format!("rank 0 sent no reply: {error}") },
        error => Failure::Died { rank: 0, host: "its host".to_owned(), what: error.to_string() },
    }
}

/// Returns the failure of two ranks of which only one encrypts.
fn encryption_mismatch(
    own_rank: Rank,
    config: &Config,
    rank: Rank,
    address: String,
    encrypts: bool,
) -> Failure {
    let setting = |is_on| format!("encryption {}", if is_on { "on" } else { "off" });
    Failure::Settings {
        ranks: [own_rank, rank],
        hosts: [config.host.clone(), address],
        settings: [setting(!encrypts), setting(encrypts)],
    }
}

/// Returns the addresses of both ends of the connection to the root. Peers in the same network can
/// also reach this rank at its address.
fn ends(root: &Stream) -> std::result::Result<[SocketAddr; 2], Failure> {
    let ends = root.tcp().map(|stream| Ok([stream.local_addr()?, stream.peer_addr()?]));
    let lost = |error: std::io::Error| Failure::Other { what: format!("rank 0 is gone: {error}") };
    ends.unwrap_or_else(|| Err(std::io::ErrorKind::Unsupported.into())).map_err(lost)
}

/// The largest number of ranks that is accepted.
pub(crate) const RANKS_MAX: usize = 65_536;
/// Number of descriptors for memory that is being mapped and for the rest of the program.
const DESCRIPTORS: usize = 256;
/// Time between a rank's deadline and the root's last reply.
const ROOT_GRACE: Duration = Duration::from_secs(3);
