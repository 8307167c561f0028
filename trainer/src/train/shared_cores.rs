//! Shares of processor cores, if ranks have more threads than their host has cores.

use unisono::Communicator;
use unisono_nn::error::Result;
use unisono_nn::random::hash_text;
use unisono_parallel::mesh::HostId;

/// Returns the share of its measured rate that this rank reaches while all ranks compute: 1 if each
/// of its threads has a core. All ranks must call this.
///
/// # Errors
/// Returns the error of a failed collective.
pub(super) fn share(world: &Communicator, threads: usize) -> Result<f64> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let allowed = status.lines().find(|line| line.starts_with("Cpus_allowed_list:")).unwrap_or_default();
    let mut numbers = vec![0; 2 * world.size()];
    world.all_gather(&[HostId::current().0, hash_text(allowed)], &mut numbers)?;
    let places: Vec<_> = numbers.chunks_exact(2).collect();
    let ranks = places.iter().filter(|&place| *place == places[world.rank()]).count();
    Ok(share_of(cores, ranks, threads))
}

/// Returns the share of `ranks` ranks with `threads` threads each on the same `cores` cores. A
/// rank's rate is measured with all its threads, so it has no more than all cores already.
fn share_of(cores: usize, ranks: usize, threads: usize) -> f64 {
    (cores as f64 / (ranks * threads.min(cores)) as f64).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::share_of;

    #[test]
    fn more_ranks_than_cores_share_them() {
        assert_eq!(share_of(8, 4, 2), 1.0);
        assert_eq!(share_of(8, 2, 1), 1.0);
        assert_eq!(share_of(2, 8, 1), 0.25);
        assert_eq!(share_of(2, 1, 4), 1.0, "the rate of four threads on two cores was measured so");
        assert_eq!(share_of(2, 2, 4), 0.5);
    }
}
