//! Going on without the ranks that are gone.

use super::Communicator;
use super::split::{Nursery, Origin, name_of, next_group, not_met, place_at};
use crate::config::Config;
use crate::engine::{Assembly, Company, bits};
use crate::error::{Error, ErrorKind, Result};
use crate::rendezvous::{self, Identity, UniqueId};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;
use unisono_transports::{Gathering, Mesh, Venue};

impl Communicator {
    /// A communicator of the ranks that are left, in their old order, after an error or before one.
    ///
    /// Every rank that is left calls it. Those that died, or dropped their communicator, are left out at
    /// once; those that only do not call it are waited for as long as [`Config::timeout`] says, and then left
    /// behind, if the others are more than half: when they come they get [`ErrorKind::LeftBehind`]. Ranks
    /// that die meanwhile are left out as well. All ranks that get a communicator get the same one, but for
    /// one thing: a rank that died in the last moment may still be a part of it, and its first operation
    /// then says so; a rank that was cut off in that moment may have one by itself in which nothing succeeds.
    ///
    /// The old communicator is over: operations under way return [`ErrorKind::Aborted`], and only dropping
    /// it makes sense. The new one has links, memory and a secret of its own, so that nothing late can reach it.
    ///
    /// ```
    /// # use unisono::{Communicator, Sum};
    /// let mut ranks = Communicator::threads(3)?;
    /// drop(ranks.remove(1));
    /// std::thread::scope(|scope| {
    ///     for comm in ranks {
    ///         scope.spawn(move || {
    ///             let mut sum = [1.0f32];
    ///             assert!(comm.all_reduce(&mut sum, Sum).is_err());
    ///             let comm = comm.shrink().unwrap();
    ///             sum = [1.0];
    ///             comm.all_reduce(&mut sum, Sum).unwrap();
    ///             assert_eq!((sum, comm.ranks(), comm.epoch()), ([2.0], 2, 1));
    ///         });
    ///     }
    /// });
    /// # Ok::<(), unisono::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::LeftBehind`]; [`ErrorKind::Timeout`] if too many say nothing; what kept the ranks from
    /// meeting; [`ErrorKind::Unavailable`] over a foreign mesh without a venue.
    pub fn shrink(&self) -> Result<Communicator> {
        let shared = &self.shared;
        let epoch = shared.epoch + 1;
        let ((mesh, door), origin) = match &shared.origin {
            Origin::Threads(nursery, _) => {
                let mut assembly = Threads { nursery, config: &shared.config, group: None, met: 0 };
                let left = self.with(|engine| engine.shrink(&mut assembly))?;
                (left, Origin::Threads(Arc::clone(nursery), assembly.met))
            }
            Origin::Rendezvous(parent) => {
                let mut assembly = Again { parent, config: &shared.config, epoch, own: None, met: None };
                let left = self.with(|engine| engine.shrink(&mut assembly))?;
                (left, Origin::Rendezvous(assembly.met.unwrap_or_else(|| parent.clone())))
            }
            Origin::Foreign(Some(venue), _) => {
                let mut assembly = Elsewhere { venue: &**venue, epoch, met: 0 };
                let left = self.with(|engine| engine.shrink(&mut assembly))?;
                (left, Origin::Foreign(Some(Arc::clone(venue)), assembly.met))
            }
            Origin::Foreign(None, _) => {
                let what = "a communicator over a foreign mesh without a venue cannot be shrunk";
                return Err(self.place(Error::new(ErrorKind::Unavailable(what.to_owned()))));
            }
        };
        tracing::info!(rank = mesh.rank, ranks = mesh.ranks, epoch, "shrunk");
        let doors = shared.doors.iter().cloned().chain(door).collect();
        Ok(Communicator::related(&shared.siblings, (epoch, doors), mesh, &shared.config, origin))
    }

    /// How often what it comes from was shrunk since its ranks met.
    pub fn epoch(&self) -> u64 {
        self.shared.epoch
    }
}

/// Threads hand meshes over.
struct Threads<'a> {
    nursery: &'a Nursery,
    config: &'a Config,
    /// Those that this rank has made.
    group: Option<u64>,
    /// Those that were met last.
    met: u64,
}

impl Assembly for Threads<'_> {
    fn place(&mut self) -> Result<String> {
        let group = next_group();
        if let Some(failed) = self.group.replace(group) {
            self.nursery.clear(failed);
        }
        Ok(group.to_string())
    }

    fn meet(&mut self, company: &Company, patience: Duration) -> Result<Mesh> {
        let Company { rank, ranks, .. } = *company;
        let group = company.place.parse().map_err(|_| unreadable())?;
        self.met = group;
        if rank == 0 {
            self.nursery.fill(group, unisono_transports::threads::mesh(ranks, self.config.geometry())?);
        }
        self.nursery.take(group, (rank, ranks), patience)
    }
}

/// Processes meet again, under a secret that only those have who mean the same company.
struct Again<'a> {
    parent: &'a UniqueId,
    config: &'a Config,
    epoch: u64,
    /// The place that this rank has said, whose port it keeps.
    own: Option<UniqueId>,
    /// Of the meeting held last.
    met: Option<UniqueId>,
}

impl Assembly for Again<'_> {
    fn place(&mut self) -> Result<String> {
        let interface = self.config.bind.map_or_else(|| route_to(self.parent.address()), Ok)?;
        Ok(self.own.insert(UniqueId::new(interface)?).address().to_string())
    }

    fn meet(&mut self, company: &Company, patience: Duration) -> Result<Mesh> {
        let address: SocketAddr = company.place.parse().map_err(|_| unreadable())?;
        let id = self.parent.next(address, &label(self.epoch, company));
        let identity = Identity { rank: company.rank, ranks: company.ranks, id: id.clone() };
        let mesh = rendezvous::join_again(&identity, self.config, patience)?;
        self.met = Some(id);
        Ok(mesh)
    }
}

/// Ranks of a foreign mesh meet as its maker lets them.
struct Elsewhere<'a> {
    venue: &'a dyn Venue,
    epoch: u64,
    /// Those that were met last.
    met: u64,
}

impl Assembly for Elsewhere<'_> {
    fn place(&mut self) -> Result<String> {
        place_at(self.venue)
    }

    fn meet(&mut self, company: &Company, patience: Duration) -> Result<Mesh> {
        let Company { rank, ranks, .. } = *company;
        let label = label(self.epoch, company);
        self.met = name_of(&company.place, &label);
        let gathering = Gathering { place: &company.place, label: &label, rank, ranks };
        self.venue.meet(gathering, patience).map_err(not_met)
    }
}

/// What those have in common who mean the same company.
fn label(epoch: u64, company: &Company) -> Vec<u8> {
    let mut label = [epoch.to_le_bytes(), u64::from(company.attempt).to_le_bytes()].concat();
    label.extend(bits(&company.gone));
    label
}

/// The address of this host that others know it by: the one that packets to where all met once would carry.
fn route_to(address: SocketAddr) -> Result<IpAddr> {
    let any: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // A datagram socket sends nothing for being connected.
    let socket = UdpSocket::bind((any, 0));
    let own = socket.and_then(|socket| socket.connect(address).and_then(|()| socket.local_addr()));
    let failed = |error| Error::new(ErrorKind::System(format!("no way to {address}: {error}")));
    own.map(|own| own.ip()).map_err(failed)
}

fn unreadable() -> Error {
    let what = "a place to meet that cannot be read".to_owned();
    Error::new(ErrorKind::Corrupt { peer: 0, what })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rendezvous::RendezvousError;

    #[test]
    fn whoever_means_another_company_or_none_is_refused() {
        let parent = UniqueId::new(Ipv4Addr::LOCALHOST.into()).unwrap();
        let config = Config { join_timeout: Duration::from_secs(5), ..Config::default() };
        let identity = |rank, label: &[u8]| Identity {
            rank,
            ranks: 2,
            id: if label.is_empty() { parent.clone() } else { parent.next(parent.address(), label) },
        };
        std::thread::scope(|scope| {
            let first =
                scope.spawn(|| rendezvous::join_again(&identity(0, b"these"), &config, config.join_timeout));
            for late in [&b""[..], b"those"] {
                let refused = rendezvous::join(&identity(1, late), &config).err().expect("it is refused");
                let kind = refused.kind();
                assert!(matches!(kind, ErrorKind::Rendezvous(RendezvousError::Secret { .. })), "{refused}");
            }
            rendezvous::join(&identity(1, b"these"), &config).expect("it is expected");
            first.join().expect("no panic").expect("the strangers harm nobody");
        });
    }

    #[test]
    fn a_host_is_known_by_the_address_of_its_way_to_the_others() {
        for address in ["127.0.0.1:9", "[::1]:9"] {
            let address: SocketAddr = address.parse().unwrap();
            assert_eq!(route_to(address).unwrap(), address.ip());
        }
    }
}
