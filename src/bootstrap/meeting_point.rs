//! The two sides of the meeting point: rank 0 listens there, and every rank connects to it.
//!
//! A name may have several addresses, some of which cannot be reached, and its addresses may become
//! known late. So rank 0 listens at every address that its host has, and all other ranks try every
//! address until the deadline.

use crate::bootstrap::{RankInfo, encryption_mismatch};
use crate::config::Config;
use crate::error::bootstrap::BootstrapError as Failure;
use crate::log::warn_user;
use std::io::{Error as SystemError, ErrorKind};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use unisono_transports::Error as TransportError;
use unisono_transports::net::handshake::{self, Hello, Purpose};
use unisono_transports::net::listener::Listener;
use unisono_transports::net::stream::Stream;
use unisono_transports::sys::rlimit;
use unisono_transports::tcp::connect::acceptor::Backoff;

/// Listens at each address of the meeting point that this host has, and at the configured address.
///
/// # Errors
/// [`Failure::Listen`] with the reason for each address.
pub(crate) fn listen(
    identity: &RankInfo,
    config: &Config,
    deadline: Instant,
) -> Result<Vec<Listener>, Failure> {
    let id = &identity.id;
    loop {
        let (listeners, reasons) = listen_once(identity, config, deadline);
        if !listeners.is_empty() {
            warn_of_loopback(identity, &listeners);
            return Ok(listeners);
        }
        let open_files = |error| Failure::open_files_of_listener(identity.rank, error);
        if let Some(failure) = reasons.iter().find_map(open_files) {
            return Err(failure);
        }
        // The addresses of a name may become known later, or may change.
        let may_change =
            id.endpoint().is_name() && reasons.iter().all(|error| error.kind() != ErrorKind::AddrInUse);
        if !may_change || Instant::now() + LOOKUP_PAUSE >= deadline {
            let reasons: Vec<String> = reasons.iter().map(explain).collect();
            return Err(Failure::Listen { address: id.endpoint().to_string(), what: reasons.join("; ") });
        }
        std::thread::sleep(LOOKUP_PAUSE);
    }
}

/// Tries to listen at each address once.
fn listen_once(identity: &RankInfo, config: &Config, deadline: Instant) -> (Vec<Listener>, Vec<SystemError>) {
    let (mut listeners, mut reasons) = (Vec::new(), Vec::new());
    // If rank 0 has a configured address, it does not depend on the name.
    let patience = config.bind_addr.map_or(deadline, |_| deadline.min(Instant::now() + ATTEMPT_TIME));
    let mut addresses = identity.id.look_up(patience).unwrap_or_else(|error| {
        reasons.push(error);
        Vec::new()
    });
    let bound = config.bind_addr.map(|interface| interface.at_port(identity.id.endpoint().port()));
    addresses.extend(bound.filter(|bound| !addresses.contains(bound)));
    for address in addresses {
        match Listener::tcp(address) {
            Ok(listener) => listeners.push(listener),
            Err(error) => {
                tracing::info!(%address, %error, "rank 0 does not listen here");
                reasons.push(match identity.id.endpoint().is_name() {
                    true => SystemError::new(error.kind(), format!("{address}: {error}")),
                    false => error,
                });
            }
        }
    }
    (listeners, reasons)
}

/// Adds to an error its meaning for the address of rank 0.
fn explain(error: &SystemError) -> String {
    let hint = match error.kind() {
        ErrorKind::AddrInUse => "; is another job using the port?",
        ErrorKind::AddrNotAvailable => {
            " (this host has no such address: if others reach it by this one all the same, set UNISONO_BIND_ADDR \
             on rank 0 to its own address)"
        }
        _ => "",
    };
    format!("{error}{hint}")
}

/// Warns that ranks of other hosts, if there are any, will not find rank 0.
fn warn_of_loopback(identity: &RankInfo, listeners: &[Listener]) {
    if let (true, Some(addresses)) = (identity.id.spans_hosts(), only_loopback(listeners)) {
        let endpoint = identity.id.endpoint();
        warn_user(&format!(
            "rank 0 listens at {addresses} only, which is {endpoint} on this host and no other host reaches, but \
             the job has ranks on other hosts: {LOOPBACK_REMEDY}"
        ));
    }
}

/// Returns the addresses of listeners that only this host reaches. `None` if there are others.
pub(crate) fn only_loopback(listeners: &[Listener]) -> Option<String> {
    let addresses: Vec<SocketAddr> = listeners.iter().filter_map(Listener::address).collect();
    let is_local = addresses.iter().all(|address| address.ip().is_loopback());
    let text = || addresses.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(" and ");
    is_local.then(text)
}

/// Returns the address at which rank 0 itself connects: preferably one that others reach as well.
pub(crate) fn own_address(listeners: &[Listener]) -> Option<SocketAddr> {
    let addresses = listeners.iter().filter_map(Listener::address);
    // Rank 0 listens for its peers at the interface of this connection, so others must reach it.
    addresses.min_by_key(|address| address.ip().is_loopback())
}

/// Connects to rank 0, which may not be there yet, and proves the secret. `own_address` is the
/// address at which rank 0 itself connects.
pub(crate) fn connect(
    identity: &RankInfo,
    config: &Config,
    own_address: Option<SocketAddr>,
    deadline: Instant,
) -> Result<Stream, Failure> {
    let (mut pauses, mut patience) = (Backoff::default(), ATTEMPT_TIME);
    loop {
        let addresses =
            own_address.map_or_else(|| identity.id.look_up(deadline), |address| Ok(vec![address]));
        let (what, pause) = match addresses {
            Ok(addresses) => {
                // A single address leaves nothing else to try, so the attempt may last until the
                // deadline.
                let patience = Some(patience).filter(|_| addresses.len() > 1);
                match connect_once(identity, config, &addresses, patience, deadline)? {
                    Ok(stream) => return Ok(stream),
                    Err(what) => (what, pauses.next_delay()),
                }
            }
            Err(error) => (format!("its name has no address: {error}"), LOOKUP_PAUSE),
        };
        if Instant::now() + pause >= deadline {
            return Err(Failure::RootUnreachable { address: identity.id.endpoint().to_string(), what });
        }
        std::thread::sleep(pause);
        patience = (2 * patience).min(ATTEMPT_TIME_MAX);
    }
}

/// Tries each address once, and waits up to `patience`. The inner error is transient.
fn connect_once(
    identity: &RankInfo,
    config: &Config,
    addresses: &[SocketAddr],
    patience: Option<Duration>,
    deadline: Instant,
) -> Result<Result<Stream, String>, Failure> {
    let (rank, ranks) = (identity.rank as u32, identity.ranks as u32);
    let hello = Hello { purpose: Purpose::Join, rank, ranks, index: 0, session: 0 };
    let handshake_config = identity.handshake_config(config);
    let (mut reasons, mut lasting, mut may_pass) = (Vec::new(), None, false);
    for &address in addresses {
        let attempt_deadline = patience.map_or(deadline, |patience| deadline.min(Instant::now() + patience));
        let reached = Stream::connect(address, attempt_deadline).and_then(|mut stream| {
            handshake::connect(&mut stream, &handshake_config, &hello, attempt_deadline)?;
            Ok(stream)
        });
        match reached {
            Ok(stream) => return Ok(Ok(stream)),
            Err(error) => {
                reasons.push(error.to_string());
                match is_transient(&error) {
                    true => may_pass = true,
                    false => lasting = lasting.or(Some(failure(identity, config, address, error))),
                }
            }
        }
    }
    reasons.dedup();
    match lasting {
        // An error at one address says nothing of the others. It counts only if no other address
        // may still answer.
        Some(failure) if !may_pass => Err(failure),
        _ => Ok(Err(reasons.join("; "))),
    }
}

/// Returns the failure for an error that is not transient.
fn failure(identity: &RankInfo, config: &Config, address: SocketAddr, error: TransportError) -> Failure {
    match error {
        TransportError::EncryptionMismatch { peer, encrypts, .. } => {
            encryption_mismatch(identity.rank, config, 0, peer, encrypts)
        }
        TransportError::AuthFailed { what, .. } => {
            let failure = Failure::Secret { address: format!("rank 0 at {address}"), what };
            match identity.id.secret_origin() {
                Some(origin) => failure.with_origin(origin),
                None => failure,
            }
        }
        error @ TransportError::VersionMismatch { .. } => error.into(),
        error => {
            let unreachable =
                || Failure::RootUnreachable { address: address.to_string(), what: error.to_string() };
            Failure::open_files(Some(identity.rank), &error).unwrap_or_else(unreachable)
        }
    }
}

/// Returns true for transient errors: there is no listener yet, the backlog is full, or one of
/// several addresses does not answer.
fn is_transient(error: &TransportError) -> bool {
    match error {
        TransportError::System { source, .. } => !rlimit::is_fd_exhausted(source),
        error => matches!(error, TransportError::ConnectionClosed { .. } | TransportError::Timeout { .. }),
    }
}

/// The remedy if only the host of rank 0 can reach it.
pub(crate) const LOOPBACK_REMEDY: &str =
    "set UNISONO_BIND_ADDR on rank 0 to its address in their network, or let MASTER_ADDR name that address";
/// The first time limit for one of several addresses. It is above a second, after which a lost
/// request is repeated.
const ATTEMPT_TIME: Duration = Duration::from_millis(1500);
const ATTEMPT_TIME_MAX: Duration = Duration::from_secs(30);
/// Pause before a name is looked up again.
const LOOKUP_PAUSE: Duration = Duration::from_millis(100);
