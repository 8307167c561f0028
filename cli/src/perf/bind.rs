//! Ranks on cores of their own, as MPI launchers place them.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// What `--bind` can be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Bind {
    /// Rank i on the i-th core at hand, round and round.
    #[default]
    Core,
    /// Wherever the system puts them.
    None,
}

impl Bind {
    /// Binds the calling thread, which is `rank`. Where that is not permitted, it stays where it is.
    pub(crate) fn apply(self, rank: usize) {
        let Ok(allowed) = sched_getaffinity(None) else {
            return;
        };
        let cores: Vec<_> = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).collect();
        if self == Bind::None || cores.is_empty() {
            return;
        }
        let mut own = CpuSet::new();
        own.set(cores[rank % cores.len()]);
        if let Err(error) = sched_setaffinity(None, &own) {
            tracing::warn!("rank {rank} cannot be bound to a core: {error}");
        }
    }
}
