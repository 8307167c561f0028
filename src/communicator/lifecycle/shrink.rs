//! Shrinking a communicator to the ranks that are left.

use crate::bootstrap;
use crate::bootstrap::{RankInfo, UniqueId};
use crate::communicator::Communicator;
use crate::communicator::lifecycle::split::{
    FabricExchange, Origin, bootstrap_error, group_id_of, listen_endpoint, next_group_id,
};
use crate::config::Config;
use crate::engine::{Membership, Regroup, Survivors, pack_bits};
use crate::error::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use unisono_transports::{Fabric, Reconnect, RegroupRequest};

impl Communicator {
    /// Makes a communicator of the ranks that are left, in their old order. It can be called after
    /// an error or without one.
    ///
    /// Every rank that is left must call this method. Ranks that died or dropped their communicator
    /// are left out at once. The call waits up to [`Config::timeout`] for ranks that do not call
    /// it. After that time these ranks are excluded, if the others are more than half. An excluded
    /// rank gets [`ErrorKind::Excluded`] when it calls this method. Ranks that die during the call
    /// are left out as well.
    ///
    /// All ranks that get a communicator get the same one, unless a rank fails at the very end of
    /// the call. A rank that died at the end may still be a member, and the first operation then
    /// reports it. A rank that was cut off at the end may get a different communicator, in which
    /// nothing succeeds.
    ///
    /// The new communicator has the settings of the old one, and the
    /// [algorithms](Communicator::set_algorithm) that were set, if the ranks that are left agree on
    /// them. A failure between two calls of `set_algorithm` may leave the ranks with different
    /// algorithms. In this case the library chooses again and warns.
    ///
    /// [`Communicator::shrink_and_agree`] lets the ranks agree on a step as well.
    ///
    /// This call ends the old communicator: its running operations return [`ErrorKind::Aborted`],
    /// and it should be dropped. The new communicator has its own links, memory and secret, so late
    /// messages of the old one cannot reach it.
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
    /// [`ErrorKind::Excluded`] if the other ranks have excluded this rank. [`ErrorKind::Timeout`]
    /// if too many ranks do not respond. If the ranks cannot connect, the cause is returned.
    /// [`ErrorKind::Unsupported`] over a custom fabric without
    /// [`CommunicatorBuilder::reconnect`](crate::CommunicatorBuilder::reconnect).
    pub fn shrink(&self) -> Result<Communicator> {
        // The largest value does not change the minimum over other ranks.
        self.shrink_and_agree(u64::MAX).map(|(left, _)| left)
    }

    /// Shrinks as [`Communicator::shrink`] does, and also returns the smallest `value` of the ranks
    /// that are left.
    ///
    /// The value may be a training step or the number of a checkpoint. Ranks need to agree on it
    /// because some may have completed an operation in which others failed, and all must go on from
    /// the same state. The values are part of the agreement on the members, so no failure can come
    /// between the two. Ranks that get the same communicator get the same value. If a rank dies in
    /// this call, its value is taken into account either by all of them or by none.
    ///
    /// Every rank that is left must call this method or [`Communicator::shrink`], which gives no
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

    /// Returns the number of shrinks between the bootstrap and this communicator.
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

/// Reconnects threads. One thread makes the fabrics and hands them to the other threads.
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
        // The attempt before has failed, so nobody takes the fabrics that it left.
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
