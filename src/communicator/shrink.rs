//! Shrinking a communicator to the ranks that are left.

use super::Communicator;
use super::split::{FabricExchange, Origin, bootstrap_error, group_id_of, listen_endpoint, next_group_id};
use crate::bootstrap;
use crate::bootstrap::{RankInfo, UniqueId};
use crate::config::Config;
use crate::engine::{Membership, Regroup, Survivors, pack_bits};
use crate::error::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use unisono_transports::{Fabric, Reconnect, RegroupRequest};

impl Communicator {
    /// Makes a communicator of the ranks that are left, in their old order, after an error or
    /// before one.
    ///
    /// Every rank that is left calls it. Ranks that died or dropped their communicator are left out
    /// at once. The call waits up to [`Config::timeout`] for ranks that do not call it. Then they
    /// are excluded, if the others are more than half: they get [`ErrorKind::Excluded`] when they
    /// call it. Ranks that die meanwhile are left out as well.
    ///
    /// All ranks that get a communicator get the same one, except after a failure in the last
    /// moment. A rank that died in that moment may still be a member, and the first operation then
    /// reports it. A rank that was cut off in that moment may get a communicator of its own in
    /// which nothing succeeds.
    ///
    /// The new communicator has the settings of the old one, and the
    /// [algorithms](Communicator::set_algorithm) that were set, if the ranks that are left agree on
    /// them. A failure between two calls of `set_algorithm` may leave them with different ones;
    /// then the library chooses again and warns.
    ///
    /// [`Communicator::shrink_and_agree`] lets the ranks agree on a step as well.
    ///
    /// The old communicator is ended: running operations return [`ErrorKind::Aborted`], and it
    /// should be dropped. The new one has links, memory and a secret of its own, which late
    /// messages cannot reach.
    ///
    /// ```
    /// # use unisono::{Communicator, Sum};
    /// let mut ranks = Communicator::local(3)?;
    /// drop(ranks.remove(1));
    /// std::thread::scope(|scope| {
    ///     for comm in ranks {
    ///         scope.spawn(move || {
    ///             let mut sum = [1.0f32];
    ///             assert!(comm.all_reduce(&mut sum, Sum).is_err());
    ///             let comm = comm.shrink().unwrap();
    ///             sum = [1.0];
    ///             comm.all_reduce(&mut sum, Sum).unwrap();
    ///             assert_eq!((sum, comm.size(), comm.epoch()), ([2.0], 2, 1));
    ///         });
    ///     }
    /// });
    /// # Ok::<(), unisono::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Excluded`]; [`ErrorKind::Timeout`] if too many ranks do not respond; the cause
    /// if the ranks cannot connect; [`ErrorKind::Unsupported`] over a custom fabric without
    /// [`CommunicatorBuilder::reconnect`](crate::CommunicatorBuilder::reconnect).
    pub fn shrink(&self) -> Result<Communicator> {
        // A rank without a value changes no smallest one.
        self.shrink_and_agree(u64::MAX).map(|(left, _)| left)
    }

    /// Shrinks as [`Communicator::shrink`] does, and returns the smallest `value` of the ranks that
    /// are left as well.
    ///
    /// The value is a step, or the number of a checkpoint: some ranks may have completed an
    /// operation in which others failed, and all must go on from the same state. The values travel
    /// with the agreement on the members, so no failure comes between the two. Ranks that get the
    /// same communicator get the same value: that of a rank which dies in this call counts on all
    /// of them or on none.
    ///
    /// Every rank that is left calls it. One that calls [`Communicator::shrink`] instead gives no
    /// value. Without a failure, `comm.all_reduce_value(step, Min)` does the same.
    ///
    /// # Errors
    /// As [`Communicator::shrink`].
    ///
    /// ```
    /// # use unisono::{Communicator, Sum};
    /// let mut ranks = Communicator::local(3)?;
    /// drop(ranks.remove(1));
    /// std::thread::scope(|scope| {
    ///     for comm in ranks {
    ///         scope.spawn(move || {
    ///             // Rank 0 has taken a step in which rank 2 failed.
    ///             let step = if comm.rank() == 0 { 41 } else { 40 };
    ///             assert!(comm.all_reduce(&mut [1.0f32], Sum).is_err());
    ///             let (comm, step) = comm.shrink_and_agree(step).unwrap();
    ///             assert_eq!((comm.size(), step), (2, 40));
    ///         });
    ///     }
    /// });
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn shrink_and_agree(&self, value: u64) -> Result<(Communicator, u64)> {
        let shared = &self.shared;
        let epoch = shared.epoch + 1;
        let (survivors, origin) = match &shared.origin {
            Origin::Threads(exchange, _) => {
                let mut assembly =
                    ThreadRegroup { exchange, config: &shared.config, own_group: None, last_group: 0 };
                let survivors = self.with_engine(|engine| engine.shrink(value, &mut assembly))?;
                (survivors, Origin::Threads(Arc::clone(exchange), assembly.last_group))
            }
            Origin::Bootstrap(parent) => {
                let mut assembly =
                    SocketRegroup { parent, config: &shared.config, epoch, own_id: None, last_id: None };
                let survivors = self.with_engine(|engine| engine.shrink(value, &mut assembly))?;
                (survivors, Origin::Bootstrap(assembly.last_id.unwrap_or_else(|| parent.clone())))
            }
            Origin::Custom(Some(reconnect), _) => {
                let mut assembly = CustomRegroup { reconnect: &**reconnect, epoch, last_group: 0 };
                let survivors = self.with_engine(|engine| engine.shrink(value, &mut assembly))?;
                (survivors, Origin::Custom(Some(Arc::clone(reconnect)), assembly.last_group))
            }
            Origin::Custom(None, _) => {
                let what = "a communicator over a custom fabric without a `Reconnect` cannot be shrunk";
                return Err(self.attach_rank(Error::new(ErrorKind::Unsupported(what.to_owned()))));
            }
        };
        let Survivors { fabric, listener, value } = survivors;
        tracing::info!(rank = fabric.rank, ranks = fabric.ranks, epoch, "shrunk");
        let doors = shared.listener_guards.iter().cloned().chain(listener).collect();
        let left =
            Communicator::with_registry(&shared.registry, (epoch, doors), fabric, &shared.config, origin);
        Ok((self.bequeath_algorithms(left)?, value))
    }

    /// Returns how often the communicator's ancestors were shrunk since their ranks connected.
    ///
    /// ```
    /// # let comm = unisono::Communicator::local(1)?.remove(0);
    /// assert_eq!(comm.epoch(), 0);
    /// # Ok::<(), unisono::Error>(())
    /// ```
    pub fn epoch(&self) -> u64 {
        self.shared.epoch
    }
}

/// Reconnects threads, which hand fabrics over.
struct ThreadRegroup<'a> {
    exchange: &'a FabricExchange,
    config: &'a Config,
    /// The group of fabrics that this rank has made.
    own_group: Option<u64>,
    /// The group that connected last.
    last_group: u64,
}

impl Regroup for ThreadRegroup<'_> {
    fn endpoint(&mut self) -> Result<String> {
        let group = next_group_id();
        if let Some(failed) = self.own_group.replace(group) {
            self.exchange.discard(failed);
        }
        Ok(group.to_string())
    }

    fn connect(&mut self, membership: &Membership, patience: Duration) -> Result<Fabric> {
        let Membership { rank, ranks, .. } = *membership;
        let group = membership.endpoint.parse().map_err(|_| unreadable_endpoint())?;
        self.last_group = group;
        if rank == 0 {
            self.exchange.put(group, unisono_transports::threads::fabrics(ranks, self.config.geometry())?);
        }
        self.exchange.take(group, (rank, ranks), patience)
    }
}

/// Reconnects processes, under a secret that only ranks with the same member list have.
struct SocketRegroup<'a> {
    parent: &'a UniqueId,
    config: &'a Config,
    epoch: u64,
    /// The endpoint that this rank announced, whose port it keeps reserved.
    own_id: Option<UniqueId>,
    /// The id of the group that connected last.
    last_id: Option<UniqueId>,
}

impl Regroup for SocketRegroup<'_> {
    fn endpoint(&mut self) -> Result<String> {
        let own_id = UniqueId::new_near(self.parent, self.config.bind_addr)?;
        Ok(self.own_id.insert(own_id).address().to_string())
    }

    fn connect(&mut self, membership: &Membership, patience: Duration) -> Result<Fabric> {
        let address: SocketAddr = membership.endpoint.parse().map_err(|_| unreadable_endpoint())?;
        let id = self.parent.derive(address, &group_label(self.epoch, membership));
        let identity = RankInfo { rank: membership.rank, ranks: membership.ranks, id: id.clone() };
        let mesh = bootstrap::rejoin(&identity, self.config, patience)?;
        self.last_id = Some(id);
        Ok(mesh)
    }
}

/// Reconnects the ranks of a custom fabric, through the caller's `Reconnect`.
struct CustomRegroup<'a> {
    reconnect: &'a dyn Reconnect,
    epoch: u64,
    /// The group that connected last.
    last_group: u64,
}

impl Regroup for CustomRegroup<'_> {
    fn endpoint(&mut self) -> Result<String> {
        listen_endpoint(self.reconnect)
    }

    fn connect(&mut self, membership: &Membership, patience: Duration) -> Result<Fabric> {
        let Membership { rank, ranks, .. } = *membership;
        let label = group_label(self.epoch, membership);
        self.last_group = group_id_of(&membership.endpoint, &label);
        let request = RegroupRequest { endpoint: &membership.endpoint, group_id: &label, rank, ranks };
        self.reconnect.connect(request, patience).map_err(bootstrap_error)
    }
}

/// Returns a label that is equal on ranks with the same member list.
fn group_label(epoch: u64, membership: &Membership) -> Vec<u8> {
    let mut label = [epoch.to_le_bytes(), u64::from(membership.attempt).to_le_bytes()].concat();
    label.extend(pack_bits(&membership.failed));
    label
}

fn unreadable_endpoint() -> Error {
    let what = "a place to meet that cannot be read".to_owned();
    Error::new(ErrorKind::ProtocolViolation { peer: 0, what })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::BootstrapError;
    use std::net::Ipv4Addr;

    #[test]
    fn rejoin_with_another_label_is_rejected() {
        let parent = UniqueId::new(Ipv4Addr::LOCALHOST.into()).unwrap();
        let config = Config { join_timeout: Duration::from_secs(5), ..Config::default() };
        let identity = |rank, label: &[u8]| RankInfo {
            rank,
            ranks: 2,
            id: if label.is_empty() { parent.clone() } else { parent.derive(parent.address(), label) },
        };
        std::thread::scope(|scope| {
            let first =
                scope.spawn(|| bootstrap::rejoin(&identity(0, b"these"), &config, config.join_timeout));
            for late in [&b""[..], b"those"] {
                let refused = bootstrap::join(&identity(1, late), &config).err().expect("it is refused");
                let kind = refused.kind();
                assert!(matches!(kind, ErrorKind::Bootstrap(BootstrapError::Secret { .. })), "{refused}");
            }
            bootstrap::join(&identity(1, b"these"), &config).expect("it is expected");
            first.join().expect("no panic").expect("rejected connections harm no rank");
        });
    }
}
