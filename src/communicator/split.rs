//! Communicators made from communicators.

use super::Communicator;
use super::collectives::digest;
use crate::config::Config;
use crate::engine::PLACE_BYTES_MAX;
use crate::error::{Error, ErrorKind, Result};
use crate::rendezvous::{self, Identity, RendezvousError, UniqueId};
use crate::schedule::Rank;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use unisono_transports::auth::Secret;
use unisono_transports::{Error as TransportError, Gathering, Mesh, Venue};

/// Where a communicator's mesh came from, and so how another one is made.
pub(super) enum Origin {
    /// Threads of this process: meshes are handed over through the nursery. And a number that is this group's.
    Threads(Arc<Nursery>, u64),
    /// Processes that met at an address.
    Rendezvous(UniqueId),
    /// Made by the caller, who may have said how ranks meet anew; and a number of those that have met there.
    Foreign(Option<Arc<dyn Venue>>, u64),
}

impl Origin {
    /// A number that the ranks of a communicator share, and those of no other have; zero over a foreign mesh, whose ranks
    /// share nothing that is known here.
    pub(super) fn name(&self) -> u64 {
        match self {
            Origin::Threads(_, group) => u64::from(std::process::id()) << 32 | group,
            Origin::Rendezvous(id) => id.name(),
            Origin::Foreign(_, met) => *met,
        }
    }

    /// What only those know who are of the job, if it has such.
    pub(super) fn secret(&self) -> Option<&Secret> {
        match self {
            Origin::Rendezvous(id) => Some(id.secret()),
            Origin::Threads(..) | Origin::Foreign(..) => None,
        }
    }
}

/// Meshes on their way from the thread that made them to the threads that will use them.
#[derive(Default)]
pub(super) struct Nursery {
    /// By the number of the new group and the rank in it.
    meshes: Mutex<HashMap<(u64, Rank), Mesh>>,
    arrived: Condvar,
}

/// What a rank tells the others when it splits.
type Wish = [i64; 2];

impl Communicator {
    /// Groups the ranks that give the same colour, in the order of their keys, then of their ranks.
    /// Every rank must call it; those that give no colour get no communicator.
    ///
    /// # Errors
    /// If a group's ranks cannot meet, or this communicator was made over a foreign mesh without a venue.
    pub fn split(&self, colour: Option<u32>, key: i32) -> Result<Option<Communicator>> {
        self.split_with(colour, key, self.config())
    }

    /// As [`Communicator::split`], with other settings for the new one; the same on all its ranks.
    fn split_with(&self, colour: Option<u32>, key: i32, config: &Config) -> Result<Option<Communicator>> {
        let wish: Wish = [colour.map_or(-1, i64::from), i64::from(key)];
        let mut wishes = vec![0i64; 2 * self.ranks()];
        self.all_gather(&wish, &mut wishes)?;
        let members = members(&wishes, wish[0]);
        let leader = members.first().copied().filter(|_| colour.is_some());
        let (ticket, _reserved) = self.ticket(leader == Some(self.rank()))?;
        let Some(leader) = leader else {
            return Ok(None);
        };
        let rank = members.iter().position(|&member| member == self.rank());
        let rank =
            rank.ok_or_else(|| Error::new(ErrorKind::Bug("a rank is not in its own group".to_owned())))?;
        self.found(&ticket[leader * TICKET_BYTES..][..TICKET_BYTES], rank, members.len(), config).map(Some)
    }

    /// A second communicator of the same ranks, whose operations do not wait for this one's.
    ///
    /// # Errors
    /// As [`Communicator::split`].
    pub fn duplicate(&self) -> Result<Communicator> {
        let same = self.split(Some(0), self.rank() as i32)?;
        same.ok_or_else(|| Error::new(ErrorKind::Bug("a duplicate has every rank".to_owned())))
    }

    /// As [`Communicator::duplicate`], with other settings; the same on all ranks.
    #[cfg(feature = "gpu")]
    pub(crate) fn duplicate_with(&self, config: &Config) -> Result<Communicator> {
        let same = self.split_with(Some(0), self.rank() as i32, config)?;
        same.ok_or_else(|| Error::new(ErrorKind::Bug("a duplicate has every rank".to_owned())))
    }

    /// Tells all ranks where each leader's group will meet; the leader holds the place until it is there.
    fn ticket(&self, leads: bool) -> Result<(Vec<u8>, Option<UniqueId>)> {
        if matches!(self.shared.origin, Origin::Foreign(None, _)) {
            let what = "a communicator over a foreign mesh without a venue cannot be split";
            return Err(self.place(Error::new(ErrorKind::Unavailable(what.to_owned()))));
        }
        let mut own = [0u8; TICKET_BYTES];
        // The others wait for a ticket: who has no place says so by an empty one, and fails after that.
        let reserved = if leads { self.reserve(&mut own) } else { Ok(None) };
        let mut all = vec![0u8; TICKET_BYTES * self.ranks()];
        self.all_gather(&own, &mut all)?;
        Ok((all, reserved.map_err(|error| self.place(error))?))
    }

    /// Writes where this rank's group will meet into its ticket; what keeps that place.
    fn reserve(&self, ticket: &mut [u8; TICKET_BYTES]) -> Result<Option<UniqueId>> {
        match &self.shared.origin {
            Origin::Threads(..) => ticket[..8].copy_from_slice(&next_group().to_le_bytes()),
            Origin::Rendezvous(parent) => {
                let id = UniqueId::sibling(parent, self.shared.config.bind)?;
                write(ticket, &id.to_string());
                return Ok(Some(id));
            }
            Origin::Foreign(venue, _) => {
                venue.iter().try_for_each(|venue| place_at(&**venue).map(|place| write(ticket, &place)))?;
            }
        }
        Ok(None)
    }

    /// Meets the other members of a new group.
    fn found(&self, ticket: &[u8], rank: Rank, ranks: usize, config: &Config) -> Result<Communicator> {
        match &self.shared.origin {
            Origin::Threads(nursery, _) => {
                let group = u64::from_le_bytes(ticket[..8].try_into().unwrap_or_default());
                if rank == 0 {
                    nursery.fill(group, unisono_transports::threads::mesh(ranks, config.geometry())?);
                }
                let mesh = nursery.take(group, (rank, ranks), config.join_timeout)?;
                Ok(self.sibling(mesh, config, Origin::Threads(Arc::clone(nursery), group)))
            }
            Origin::Rendezvous(_) => {
                let id = read(ticket)?.parse::<UniqueId>().map_err(|_| unreadable())?;
                let mesh = rendezvous::join(&Identity { rank, ranks, id: id.clone() }, config)?;
                Ok(self.sibling(mesh, config, Origin::Rendezvous(id)))
            }
            Origin::Foreign(Some(venue), _) => {
                let (place, label) = (read(ticket)?, b"split");
                let gathering = Gathering { place, label, rank, ranks };
                let mesh = venue.meet(gathering, config.join_timeout).map_err(not_met)?;
                let origin = Origin::Foreign(Some(Arc::clone(venue)), name_of(place, label));
                Ok(self.sibling(mesh, config, origin))
            }
            Origin::Foreign(None, _) => {
                Err(Error::new(ErrorKind::Bug("a foreign mesh was split".to_owned())))
            }
        }
    }
}

impl Communicator {
    /// Another one of this rank.
    pub(super) fn sibling(&self, mesh: Mesh, config: &Config, origin: Origin) -> Self {
        Self::related(&self.shared.siblings, (0, self.shared.doors.clone()), mesh, config, origin)
    }
}

/// Writes a place into a ticket, after its length.
fn write(ticket: &mut [u8; TICKET_BYTES], place: &str) {
    let length = place.len().min(TICKET_BYTES - 1);
    ticket[0] = length as u8;
    ticket[1..=length].copy_from_slice(&place.as_bytes()[..length]);
}

/// The place in a ticket.
fn read(ticket: &[u8]) -> Result<&str> {
    if ticket.first() == Some(&0) {
        let what = "the first rank of the group has no place where it could meet: its error says why";
        return Err(Error::new(ErrorKind::Unavailable(what.to_owned())));
    }
    let place = ticket.split_first().and_then(|(&length, rest)| rest.get(..length as usize));
    let place = place.and_then(|place| std::str::from_utf8(place).ok());
    place.ok_or_else(unreadable)
}

fn unreadable() -> Error {
    Error::new(ErrorKind::Corrupt { peer: 0, what: "an address that cannot be read".to_owned() })
}

/// Where this rank can hold a meeting, as a foreign venue says.
pub(super) fn place_at(venue: &dyn Venue) -> Result<String> {
    let place = venue.place()?;
    match place.len() {
        1..=PLACE_BYTES_MAX => Ok(place),
        length => {
            let what =
                format!("a venue's place must have 1 to {PLACE_BYTES_MAX} bytes, and this has {length}");
            Err(Error::new(ErrorKind::Unavailable(what)))
        }
    }
}

/// A number of those that have met at a foreign venue.
pub(super) fn name_of(place: &str, label: &[u8]) -> u64 {
    let words: Vec<usize> = place.bytes().chain([0]).chain(label.iter().copied()).map(usize::from).collect();
    digest(&words)
}

/// Says of ranks that did not meet at a foreign venue what is said of all that do not meet.
pub(super) fn not_met(error: TransportError) -> Error {
    match error {
        TransportError::Timeout { what } => {
            Error::new(ErrorKind::Rendezvous(RendezvousError::Other { what }))
        }
        error => error.into(),
    }
}

impl Nursery {
    pub(super) fn fill(&self, group: u64, meshes: Vec<Mesh>) {
        let mut waiting = self.meshes.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        waiting.extend(meshes.into_iter().map(|mesh| ((group, mesh.rank), mesh)));
        self.arrived.notify_all();
    }

    /// Drops what nobody has taken of a group.
    pub(super) fn clear(&self, group: u64) {
        let mut waiting = self.meshes.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        waiting.retain(|&(other, _), _| other != group);
    }

    pub(super) fn take(&self, group: u64, (rank, ranks): (Rank, usize), patience: Duration) -> Result<Mesh> {
        let deadline = Instant::now() + patience;
        let mut waiting = self.meshes.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        loop {
            if let Some(mesh) = waiting.remove(&(group, rank)) {
                return Ok(mesh);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let missing = RendezvousError::Missing { missing: vec![0], ranks, strangers: Vec::new() };
                return Err(Error::new(ErrorKind::Rendezvous(missing)));
            }
            waiting =
                self.arrived.wait_timeout(waiting, left).unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
    }
}

/// The ranks that wished for `colour`, by key and rank.
fn members(wishes: &[i64], colour: i64) -> Vec<Rank> {
    let wish = |rank: Rank| (wishes[2 * rank], wishes[2 * rank + 1]);
    let mut members: Vec<Rank> = (0..wishes.len() / 2).filter(|&rank| wish(rank).0 == colour).collect();
    members.sort_by_key(|&rank| (wish(rank).1, rank));
    members
}

/// A number that no other group of this process has.
pub(super) fn next_group() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Room for a group number or a unique id in text form, with its length.
const TICKET_BYTES: usize = 192;
