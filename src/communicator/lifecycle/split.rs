//! Splitting and duplicating communicators.

use crate::bootstrap;
use crate::bootstrap::invitation::Invitation;
use crate::bootstrap::{BootstrapError, RankInfo, UniqueId};
use crate::communicator::Communicator;
use crate::communicator::calls::counts::digest_words;
use crate::config::Config;
use crate::engine::ENDPOINT_BYTES_MAX;
use crate::error::{Error, ErrorKind, Result};
use crate::schedule::Rank;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use unisono_transports::net::handshake::Secret;
use unisono_transports::{Error as TransportError, Fabric, Reconnect, RegroupRequest};

/// The way in which a communicator was made. Related communicators are made in the same way.
pub(in crate::communicator) enum Origin {
    /// Threads of this process, which pass fabrics to each other through the exchange. The number
    /// identifies the group.
    Threads(Arc<FabricExchange>, u64),
    /// Processes that connected at an address.
    Bootstrap(UniqueId),
    /// A fabric of the caller, with its way to reconnect, if any, and the number of the group.
    Custom(Option<Arc<dyn Reconnect>>, u64),
}

impl Origin {
    /// Returns the number that identifies the group. It is zero over a custom fabric.
    pub(in crate::communicator) fn group_id(&self) -> u64 {
        match self {
            Origin::Threads(_, group) => u64::from(std::process::id()) << 32 | group,
            Origin::Bootstrap(id) => id.group_id(),
            Origin::Custom(_, met) => *met,
        }
    }

    /// Returns the secret of the job, if it has one.
    pub(in crate::communicator) fn secret(&self) -> Option<&Secret> {
        match self {
            Origin::Bootstrap(id) => Some(id.secret()),
            Origin::Threads(..) | Origin::Custom(..) => None,
        }
    }
}

/// Holds fabrics from the time when one thread has made them until the other threads take them.
#[derive(Default)]
pub(in crate::communicator) struct FabricExchange {
    /// Fabrics by the number of the group and the rank in it.
    fabrics: Mutex<HashMap<(u64, Rank), Fabric>>,
    arrived: Condvar,
}

/// The color and key of a rank that splits.
type SplitKey = [i64; 2];

impl Communicator {
    /// Makes a communicator of the ranks that give the same color, ordered by key and then by rank.
    ///
    /// Every rank must call it. A rank that gives no color gets no communicator. New communicators
    /// inherit the settings and algorithms of this one. [`Communicator::child`] makes communicators
    /// with other settings.
    ///
    /// # Errors
    /// Fails if the ranks of a group cannot connect. [`ErrorKind::Unsupported`] over a custom
    /// fabric without [`CommunicatorBuilder::reconnect`](crate::CommunicatorBuilder::reconnect).
    ///
    /// ```
    /// # let ranks = unisono::Communicator::local(4)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let color = comm.rank() as u32 % 2;
    /// let half = comm.split(Some(color), 0).unwrap().unwrap();
    /// assert_eq!((half.size(), half.rank()), (2, comm.rank() / 2));
    /// # }); });
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Communicator>> {
        let made = self.split_with(color, key, self.config())?;
        made.map(|group| self.bequeath_algorithms(group)).transpose()
    }

    /// Splits as [`Communicator::split`] does, with settings for the new communicator, which must
    /// be the same on all its ranks.
    pub(in crate::communicator) fn split_with(
        &self,
        color: Option<u32>,
        key: i32,
        config: &Config,
    ) -> Result<Option<Communicator>> {
        let split_key: SplitKey = [color.map_or(-1, i64::from), i64::from(key)];
        let mut split_keys = vec![0i64; 2 * self.size()];
        self.all_gather_for_split(&split_key, &mut split_keys)?;
        let members = group_members(&split_keys, split_key[0]);
        let leader = members.first().copied().filter(|_| color.is_some());
        let (tickets, _reserved) = self.exchange_tickets(leader == Some(self.rank()), &members)?;
        let Some(leader) = leader else {
            return Ok(None);
        };
        let ticket = &tickets[leader * TICKET_BYTES..][..TICKET_BYTES];
        self.connect_group(ticket, &members, config).map(Some)
    }

    /// Makes a second communicator of the same ranks. Its operations do not wait for operations of
    /// this one.
    ///
    /// Every rank must call it.
    ///
    /// # Errors
    /// As [`Communicator::split`].
    ///
    /// ```
    /// # let comm = unisono::Communicator::local(1)?.remove(0);
    /// let second = comm.duplicate()?;
    /// assert_eq!(second.size(), comm.size());
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn duplicate(&self) -> Result<Communicator> {
        self.child().duplicate()
    }

    /// Exchanges the tickets of all groups. The leader of a group keeps its endpoint reserved.
    fn exchange_tickets(&self, leads: bool, members: &[Rank]) -> Result<(Vec<u8>, Option<UniqueId>)> {
        self.check_can_reconnect()?;
        let mut ticket = [0u8; TICKET_BYTES];
        // The other members wait for a ticket. So a leader that has none sends an empty ticket
        // before it fails.
        let reserved = if leads { self.reserve_endpoint(&mut ticket, members) } else { Ok(None) };
        let mut tickets = vec![0u8; TICKET_BYTES * self.size()];
        self.all_gather_for_split(&ticket, &mut tickets)?;
        Ok((tickets, reserved.map_err(|error| self.attach_rank(error))?))
    }

    /// Fails over a custom fabric if its ranks cannot connect again.
    pub(in crate::communicator) fn check_can_reconnect(&self) -> Result<()> {
        if matches!(self.shared.origin, Origin::Custom(None, _)) {
            let what = "a communicator over a custom fabric without a `Reconnect` cannot be split";
            return Err(self.attach_rank(Error::new(ErrorKind::Unsupported(what.to_owned()))));
        }
        Ok(())
    }

    /// Reserves an endpoint for this rank's group and writes it into `ticket`. Ranks outside the
    /// group may read the ticket, because the members derive the secret of the group from it and
    /// from their own secret.
    pub(in crate::communicator) fn reserve_endpoint(
        &self,
        ticket: &mut [u8; TICKET_BYTES],
        members: &[Rank],
    ) -> Result<Option<UniqueId>> {
        match &self.shared.origin {
            Origin::Threads(..) => ticket[..8].copy_from_slice(&next_group_id().to_le_bytes()),
            Origin::Bootstrap(parent) => {
                let place = UniqueId::new_near(parent, self.shared.config.bind_addr)?;
                let (invitation, id) = Invitation::new(place, parent.secret(), &group_label(members))?;
                write_endpoint(ticket, &invitation.to_string());
                return Ok(Some(id));
            }
            Origin::Custom(reconnect, _) => {
                reconnect.iter().try_for_each(|reconnect| {
                    listen_endpoint(&**reconnect).map(|endpoint| write_endpoint(ticket, &endpoint))
                })?;
            }
        }
        Ok(None)
    }

    /// Connects to the other members of a new group.
    pub(in crate::communicator) fn connect_group(
        &self,
        ticket: &[u8],
        members: &[Rank],
        config: &Config,
    ) -> Result<Communicator> {
        let rank = members.iter().position(|&member| member == self.rank());
        let rank =
            rank.ok_or_else(|| Error::new(ErrorKind::Bug("a rank is not in its own group".to_owned())))?;
        let ranks = members.len();
        match &self.shared.origin {
            Origin::Threads(exchange, _) => {
                let group = u64::from_le_bytes(ticket[..8].try_into().unwrap_or_default());
                if rank == 0 {
                    exchange.put(group, unisono_transports::threads::fabrics(ranks, config.geometry())?);
                }
                let mesh = exchange.take(group, (rank, ranks), config.join_timeout)?;
                Ok(self.with_same_parent(mesh, config, Origin::Threads(Arc::clone(exchange), group)))
            }
            Origin::Bootstrap(parent) => {
                let invitation = read_endpoint(ticket)?.parse::<Invitation>();
                let invitation = invitation.map_err(|_| unreadable_endpoint())?;
                let id = invitation.accept(parent.secret(), &group_label(members)).seen_by(parent);
                let mesh = bootstrap::join(&RankInfo { rank, ranks, id: id.clone() }, config)?;
                Ok(self.with_same_parent(mesh, config, Origin::Bootstrap(id)))
            }
            Origin::Custom(Some(reconnect), _) => {
                let (endpoint, label) = (read_endpoint(ticket)?, b"split");
                let request = RegroupRequest { endpoint, group_id: label, rank, ranks };
                let mesh = reconnect.connect(request, config.join_timeout).map_err(bootstrap_error)?;
                let origin = Origin::Custom(Some(Arc::clone(reconnect)), group_id_of(endpoint, label));
                Ok(self.with_same_parent(mesh, config, origin))
            }
            Origin::Custom(None, _) => {
                Err(Error::new(ErrorKind::Bug("a custom fabric was split".to_owned())))
            }
        }
    }
}

impl Communicator {
    /// Makes another communicator of this rank.
    pub(in crate::communicator) fn with_same_parent(
        &self,
        mesh: Fabric,
        config: &Config,
        origin: Origin,
    ) -> Self {
        Self::with_registry(
            &self.shared.registry,
            // A rank that was excluded may still ask a listener of the parents whether this rank
            // lives: docs/decisions/0016-failure-detection-without-a-heartbeat-thread.md.
            (0, self.shared.listener_guards.clone()),
            mesh,
            config,
            origin,
        )
    }
}

/// Writes an endpoint after its length.
fn write_endpoint(ticket: &mut [u8; TICKET_BYTES], endpoint: &str) {
    let length = endpoint.len().min(TICKET_BYTES - 1);
    ticket[0] = length as u8;
    ticket[1..=length].copy_from_slice(&endpoint.as_bytes()[..length]);
}

/// Reads an endpoint.
fn read_endpoint(ticket: &[u8]) -> Result<&str> {
    if ticket.first() == Some(&0) {
        let what = "the first rank of the group has no endpoint: its own error says why";
        return Err(Error::new(ErrorKind::Unsupported(what.to_owned())));
    }
    let endpoint = ticket.split_first().and_then(|(&length, tail)| tail.get(..length as usize));
    let endpoint = endpoint.and_then(|endpoint| std::str::from_utf8(endpoint).ok());
    endpoint.ok_or_else(unreadable_endpoint)
}

fn unreadable_endpoint() -> Error {
    Error::new(ErrorKind::ProtocolViolation { peer: 0, what: "an address that cannot be read".to_owned() })
}

/// Parses bytes as the data that a rank gets from others to make a group: their colors and keys,
/// and the ticket of the first member.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(bytes: &[u8]) {
    let keys: Vec<i64> = bytes.as_chunks().0.iter().map(|word| i64::from_le_bytes(*word)).collect();
    let keys = &keys[..keys.len() / 2 * 2];
    for (rank, split_key) in keys.chunks(2).enumerate().take(8) {
        let members = group_members(keys, split_key[0]);
        assert!(members.contains(&rank) && members.iter().all(|&member| member < keys.len() / 2));
    }
    let mut ticket = [0; TICKET_BYTES];
    let length = bytes.len().min(TICKET_BYTES);
    ticket[..length].copy_from_slice(&bytes[..length]);
    for ticket in [bytes, &ticket[..]] {
        let Ok(endpoint) = read_endpoint(ticket) else { continue };
        if endpoint.len() < TICKET_BYTES {
            let mut rewritten = [0; TICKET_BYTES];
            write_endpoint(&mut rewritten, endpoint);
            assert_eq!(read_endpoint(&rewritten).ok(), Some(endpoint));
        }
        // The members of a group and the survivors of a shrink read a ticket in this way. Miri
        // cannot run cryptography.
        if let Ok(invitation) = endpoint.parse::<Invitation>()
            && !cfg!(miri)
        {
            let id = invitation.accept(&Secret::from_public("fuzzing"), &group_label(&[0, 1]));
            assert!(id.to_string().parse::<UniqueId>().is_ok());
        }
        let _ = (endpoint.parse::<std::net::SocketAddr>(), endpoint.parse::<u64>());
    }
}

/// Returns an endpoint for a regroup, from the caller's `Reconnect`.
pub(in crate::communicator) fn listen_endpoint(reconnect: &dyn Reconnect) -> Result<String> {
    let endpoint = reconnect.endpoint()?;
    match endpoint.len() {
        1..=ENDPOINT_BYTES_MAX => Ok(endpoint),
        length => {
            let what =
                format!("an endpoint must have 1 to {ENDPOINT_BYTES_MAX} bytes, and this has {length}");
            Err(Error::new(ErrorKind::Unsupported(what)))
        }
    }
}

/// Returns the number of a group that connected at an endpoint of the caller.
pub(in crate::communicator) fn group_id_of(endpoint: &str, label: &[u8]) -> u64 {
    let words: Vec<usize> =
        endpoint.bytes().chain([0]).chain(label.iter().copied()).map(usize::from).collect();
    digest_words(&words)
}

/// Converts a timeout of the caller's `Reconnect` into a bootstrap error.
pub(in crate::communicator) fn bootstrap_error(error: TransportError) -> Error {
    match error {
        TransportError::Timeout { what } => Error::new(ErrorKind::Bootstrap(BootstrapError::Other { what })),
        error => error.into(),
    }
}

impl FabricExchange {
    pub(in crate::communicator) fn put(&self, group: u64, meshes: Vec<Fabric>) {
        let mut waiting = self.fabrics.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        waiting.extend(meshes.into_iter().map(|mesh| ((group, mesh.rank), mesh)));
        self.arrived.notify_all();
    }

    /// Drops the fabrics of a group that no rank has taken.
    pub(in crate::communicator) fn discard(&self, group: u64) {
        let mut waiting = self.fabrics.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        waiting.retain(|&(other, _), _| other != group);
    }

    pub(in crate::communicator) fn take(
        &self,
        group: u64,
        (rank, ranks): (Rank, usize),
        patience: Duration,
    ) -> Result<Fabric> {
        let deadline = Instant::now() + patience;
        let mut waiting = self.fabrics.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        loop {
            if let Some(mesh) = waiting.remove(&(group, rank)) {
                return Ok(mesh);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let missing = BootstrapError::RanksMissing {
                    missing: vec![0],
                    ranks,
                    rejected: Vec::new(),
                    only_loopback: None,
                };
                return Err(Error::new(ErrorKind::Bootstrap(missing)));
            }
            waiting =
                self.arrived.wait_timeout(waiting, left).unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
    }
}

/// Returns the ranks that gave `color`, by key and rank.
fn group_members(split_keys: &[i64], color: i64) -> Vec<Rank> {
    let split_key = |rank: Rank| (split_keys[2 * rank], split_keys[2 * rank + 1]);
    let mut members: Vec<Rank> =
        (0..split_keys.len() / 2).filter(|&rank| split_key(rank).0 == color).collect();
    members.sort_by_key(|&rank| (split_key(rank).1, rank));
    members
}

/// Returns a number that no other group of this process has.
pub(in crate::communicator) fn next_group_id() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Returns a label that is equal on all members of a group: the list of members, as ranks of the
/// parent.
fn group_label(members: &[Rank]) -> Vec<u8> {
    members.iter().flat_map(|&member| (member as u64).to_le_bytes()).collect()
}

/// Size of a ticket in bytes. It holds a group number or an invitation as text, after its length.
pub(in crate::communicator) const TICKET_BYTES: usize = 192;
