//! Ranks of one process as if on several hosts, with slow links between them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use unisono::{Communicator, Config};
use unisono_nn::testing::slow_link;
use unisono_plan::cost::Link;
use unisono_transports::{Error, Fabric, Geometry, Reconnect, RegroupRequest, Result, threads};

/// Creates `ranks` ranks, `per_host` on each host. Messages between hosts travel over a link of
/// this speed in each direction between two ranks. Collectives have the messages of plans: rings
/// with one per step.
pub(crate) fn communicators(ranks: usize, per_host: usize, link: Link) -> unisono::Result<Vec<Communicator>> {
    let ring = unisono::parse_algorithms("ring").expect("an algorithm of the library");
    let config = Config::default().with_fifo_slot_bytes(1 << 20).with_channels(1).with_algorithms(ring);
    let network = Arc::new(Network {
        link,
        geometry: config.geometry(),
        groups: Mutex::default(),
        met: Condvar::new(),
    });
    let hosts: Vec<usize> = (0..ranks).map(|rank| rank / per_host).collect();
    let fabrics = network.fabrics(&hosts)?;
    let communicator = |(fabric, host)| {
        let reconnect = Arc::new(Rank { network: Arc::clone(&network), host });
        Communicator::builder().config(&config).reconnect(reconnect).from_fabric(fabric)
    };
    fabrics.into_iter().zip(hosts).map(communicator).collect()
}

/// Connections between all ranks.
struct Network {
    link: Link,
    geometry: Geometry,
    /// New communicators, by endpoint and identifier.
    groups: Mutex<HashMap<(String, Vec<u8>), Group>>,
    /// Notified when a group is complete.
    met: Condvar,
}

/// Communicator whose ranks are connecting.
struct Group {
    /// Host of each rank that has come.
    hosts: Vec<Option<usize>>,
    /// Fabrics that ranks have not taken yet, once all have come.
    fabrics: Vec<Option<Fabric>>,
}

impl Network {
    /// Returns the fabrics of ranks on these hosts. Ranks of a single host share memory.
    fn fabrics(&self, hosts: &[usize]) -> Result<Vec<Fabric>> {
        let mut fabrics = threads::fabrics(hosts.len(), self.geometry)?;
        if hosts.iter().all(|&host| host == hosts[0]) {
            return Ok(fabrics);
        }
        for fabric in &mut fabrics {
            fabric.window = None;
            let rank_host = hosts[fabric.rank];
            for (link, &host) in fabric.links.iter_mut().zip(hosts) {
                if host != rank_host {
                    *link = link.take().map(|link| {
                        slow_link::slow_link(link, self.geometry.lanes, self.link.alpha, 1.0 / self.link.beta)
                    });
                }
            }
        }
        Ok(fabrics)
    }
}

/// Rank of the network, with its host.
struct Rank {
    network: Arc<Network>,
    host: usize,
}

impl Reconnect for Rank {
    fn endpoint(&self) -> Result<String> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Ok(NEXT.fetch_add(1, Ordering::Relaxed).to_string())
    }

    fn connect(&self, request: RegroupRequest<'_>, timeout: Duration) -> Result<Fabric> {
        let RegroupRequest { endpoint, group_id, rank, ranks } = request;
        let key = (endpoint.to_owned(), group_id.to_vec());
        let mut groups = self.network.groups.lock().unwrap();
        let group =
            groups.entry(key.clone()).or_insert_with(|| Group { hosts: vec![None; ranks], fabrics: vec![] });
        group.hosts[rank] = Some(self.host);
        if let Some(hosts) = group.hosts.iter().copied().collect::<Option<Vec<_>>>() {
            group.fabrics = self.network.fabrics(&hosts)?.into_iter().map(Some).collect();
            self.network.met.notify_all();
        }
        let is_incomplete = |groups: &mut HashMap<_, Group>| groups[&key].fabrics.is_empty();
        let (mut groups, waited) =
            self.network.met.wait_timeout_while(groups, timeout, is_incomplete).unwrap();
        match waited.timed_out() {
            true => Err(Error::Timeout { what: format!("{ranks} ranks at {endpoint}") }),
            false => Ok(groups
                .get_mut(&key)
                .and_then(|group| group.fabrics[rank].take())
                .expect("one fabric for each rank")),
        }
    }
}
