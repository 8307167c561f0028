//! Binding of ranks to cores, in the way of MPI launchers.

use rustix::thread::{CpuSet, sched_setaffinity};
use std::hash::{DefaultHasher, Hash, Hasher};
use unisono::{Communicator, Result};
use unisono_transports::sys::affinity::available_cpus;

/// Values of `--bind`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Bind {
    /// Bind the ranks to the cores of their host in order. If there are more ranks than cores,
    /// neighboring ranks share a core.
    #[default]
    Core,
    /// Do not bind the ranks.
    None,
}

impl Bind {
    /// Binds all ranks. All of them must call this function.
    pub(crate) fn apply(self, comm: &Communicator) -> Result<()> {
        if self == Bind::Core {
            let (index, threads) = local_rank_and_size(comm)?;
            bind_thread(index, threads);
        }
        Ok(())
    }
}

/// Binds the calling thread, number `index` of `threads`. If the system refuses this, the thread
/// stays unbound.
pub(crate) fn bind_thread(index: usize, threads: usize) {
    let cores = available_cpus();
    if cores.is_empty() {
        return;
    }
    let mut core_set = CpuSet::new();
    core_set.set(cores[core_of(index, threads, cores.len())]);
    if let Err(error) = sched_setaffinity(None, &core_set) {
        tracing::warn!("thread {index} cannot be bound to a core: {error}");
    }
}

/// Returns the core of a rank. If there are more ranks than cores, neighboring ranks share a core.
///
/// A distribution modulo the cores would put all inner ranks of a binomial tree, which are even, on
/// one core of two.
fn core_of(index: usize, threads: usize, cores: usize) -> usize {
    if threads <= cores { index } else { index * cores / threads }
}

/// Returns this rank's index among the ranks of its host with the same cores, and their number.
///
/// The call is collective.
fn local_rank_and_size(comm: &Communicator) -> Result<(usize, usize)> {
    let mut hasher = host_hasher();
    // Ranks of one host that may use different cores do not compete for them, so they are counted
    // apart.
    available_cpus().hash(&mut hasher);
    let this_host = hasher.finish();
    let mut hosts = vec![0; comm.size()];
    comm.all_gather(&[this_host], &mut hosts)?;
    let count_local = |ranks: &[u64]| ranks.iter().filter(|&&host| host == this_host).count();
    Ok((count_local(&hosts[..comm.rank()]), count_local(&hosts)))
}

/// Returns a hasher that has hashed the boot identifier of the host. Ranks with the same boot
/// identifier share a host.
pub(crate) fn host_hasher() -> DefaultHasher {
    let mut hasher = DefaultHasher::new();
    std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default().hash(&mut hasher);
    hasher
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn core_of_distributes_ranks_evenly_in_order() {
        for (threads, cores) in [(1, 1), (2, 2), (2, 64), (3, 2), (8, 2), (64, 3), (5, 1)] {
            let placed: Vec<_> = (0..threads).map(|index| core_of(index, threads, cores)).collect();
            assert!(placed.is_sorted() && placed[threads - 1] == threads.min(cores) - 1, "{placed:?}");
            let loads = (0..cores).map(|core| placed.iter().filter(|&&chosen| chosen == core).count());
            assert!(loads.clone().max().unwrap() <= threads.div_ceil(cores), "{placed:?}");
        }
    }
}
