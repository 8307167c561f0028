//! Placement of a mesh on hosts. Tensor parallel groups should stay within a host.

use super::{GroupKind, Mesh};
use crate::error::{Error, Result};
use crate::random::hash_numbers;
use std::fs;
use unisono::Communicator;

/// Identity of a host: a number that is almost certainly unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HostId(pub u64);

impl HostId {
    /// Returns the identity of this host, from its name and boot.
    pub fn current() -> Self {
        let text = ["hostname", "random/boot_id"].map(|name| fs::read(format!("/proc/sys/kernel/{name}")));
        let bytes: Vec<u64> = text.into_iter().flatten().flatten().map(u64::from).collect();
        Self(hash_numbers(&bytes))
    }

    /// Logs a warning if a tensor parallel group spans several hosts.
    pub(super) fn warn_cross_host_groups(world: &Communicator, mesh: &Mesh) -> Result<()> {
        let mut hosts = vec![0; world.size()];
        world.all_gather(&[Self::current().0], &mut hosts)?;
        let crossings = mesh.cross_host_groups(&hosts.into_iter().map(Self).collect::<Vec<_>>());
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
    /// Rejects tensor parallel groups that are larger than a host.
    ///
    /// # Errors
    /// [`Error::Invalid`] names both numbers.
    pub fn check_fits_hosts(&self, local_world: usize) -> Result<()> {
        let tensor = self.degrees().tensor;
        if tensor <= local_world {
            return Ok(());
        }
        let what = format!("tensor = {tensor} ranks do not fit on a host of {local_world}");
        Err(Error::invalid(format!("{what}: a tensor parallel group stays on one host")))
    }

    /// Returns the tensor parallel groups that span several hosts, with rank `r` on `hosts[r]`.
    pub fn cross_host_groups(&self, hosts: &[HostId]) -> Vec<Vec<usize>> {
        let crosses = |group: &Vec<usize>| group.iter().any(|&rank| hosts[rank] != hosts[group[0]]);
        self.groups(GroupKind::Tensor).into_iter().filter(crosses).collect()
    }
}
