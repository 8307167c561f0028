//! Hosts under a mesh: tensor parallel groups belong on one.

use super::{GroupKind, Mesh};
use crate::error::{Error, Result};
use crate::random::chain;
use std::fs;
use unisono::Communicator;

/// A host, by a number that no other host is likely to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Host(pub u64);

impl Host {
    /// The host that this process runs on, by its name and boot.
    pub fn here() -> Self {
        let text = ["hostname", "random/boot_id"].map(|name| fs::read(format!("/proc/sys/kernel/{name}")));
        let bytes: Vec<u64> = text.into_iter().flatten().flatten().map(u64::from).collect();
        Self(chain(&bytes))
    }

    /// Says so in the log if a tensor parallel group has ranks on several hosts.
    pub(super) fn warn_of_crossings(world: &Communicator, mesh: &Mesh) -> Result<()> {
        let mut hosts = vec![0; world.ranks()];
        world.all_gather(&[Self::here().0], &mut hosts)?;
        let crossings = mesh.crossings(&hosts.into_iter().map(Self).collect::<Vec<_>>());
        if let (0, Some(first)) = (world.rank(), crossings.first()) {
            let count = crossings.len();
            tracing::warn!(
                count,
                ?first,
                "tensor parallel groups cross hosts: every layer waits for the network"
            );
        }
        Ok(())
    }
}

impl Mesh {
    /// Refuses tensor parallel groups that are larger than a host.
    ///
    /// # Errors
    /// [`Error::Illegal`] names both numbers.
    pub fn fits_hosts_of(&self, local_world: usize) -> Result<()> {
        let tensor = self.degrees().tensor;
        if tensor <= local_world {
            return Ok(());
        }
        let what = format!("tensor = {tensor} ranks do not fit on a host of {local_world}");
        Err(Error::illegal(format!("{what}: a tensor parallel group stays on one host")))
    }

    /// Tensor parallel groups with ranks on several hosts, where rank `r` is on `hosts[r]`.
    pub fn crossings(&self, hosts: &[Host]) -> Vec<Vec<usize>> {
        let crosses = |group: &Vec<usize>| group.iter().any(|&rank| hosts[rank] != hosts[group[0]]);
        self.groups(GroupKind::Tensor).into_iter().filter(crosses).collect()
    }
}
