//! Cores: those that a thread may use, those next to a part of memory, and those that are free.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::path::Path;

/// Returns the cores that the calling thread may use.
pub fn available_cpus() -> Vec<usize> {
    let allowed = sched_getaffinity(None).ok();
    allowed.map_or(Vec::new(), |allowed| (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).collect())
}

/// Returns true if the threads of this host that want to run, the caller included, are no more than
/// its cores. Returns false if the system does not tell.
pub fn has_free_cores() -> bool {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    // The whole host counts and not only the cores of this process, because threads of the kernel
    // share cores with all processes.
    // SAFETY: this call reads a number of the system and touches no memory.
    let cores = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    runnable_threads(&load).is_some_and(|threads| i64::from(threads) <= cores)
}

/// Returns the number of threads that run or want to, from the text of `/proc/loadavg`:
/// `0.20 0.18 0.12 1/80 11206`.
pub(crate) fn runnable_threads(text: &str) -> Option<u32> {
    let (runnable, _) = text.split_whitespace().nth(3)?.split_once('/')?;
    runnable.parse().ok()
}

/// Keeps the calling thread on those of its cores that are next to this NUMA node. The thread stays
/// unpinned if it has no such core, or if pinning is not permitted.
pub fn pin_near(node: usize) {
    let file = format!("/sys/devices/system/node/node{node}/cpulist");
    let there = std::fs::read_to_string(Path::new(&file)).unwrap_or_default();
    let (allowed, mut cores, mut any) = (available_cpus(), CpuSet::new(), false);
    for core in parse_cpu_list(&there).filter(|core| allowed.contains(core)) {
        cores.set(core);
        any = true;
    }
    if any {
        let _ = sched_setaffinity(None, &cores);
    }
}

/// Returns the numbers of a list as Linux writes it: `0-3,8,10-11`.
pub(crate) fn parse_cpu_list(text: &str) -> impl Iterator<Item = usize> {
    text.trim().split(',').flat_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse().unwrap_or(1usize), last.parse().unwrap_or(0usize));
        first..CpuSet::MAX_CPU.min(last.saturating_add(1))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_list_is_parsed() {
        assert_eq!(parse_cpu_list("0-3,8,10-11\n").collect::<Vec<_>>(), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(parse_cpu_list("").count() + parse_cpu_list("x-y").count(), 0);
        assert_eq!(parse_cpu_list("0-99999999999").count(), CpuSet::MAX_CPU, "as many as there can be");
    }

    #[test]
    fn runnable_threads_are_parsed() {
        assert_eq!(runnable_threads("0.20 0.18 0.12 8/80 11206\n"), Some(8));
        for damaged in ["", "0.20 0.18 0.12", "0.20 0.18 0.12 8 11206", "1 2 3 -1/80", "1 2 3 99999999999/80"]
        {
            assert_eq!(runnable_threads(damaged), None, "{damaged}");
        }
    }

    #[test]
    fn pinning_keeps_thread_on_allowed_cpus() {
        std::thread::spawn(|| {
            let mut set = CpuSet::new();
            set.set(available_cpus()[0]);
            sched_setaffinity(None, &set).unwrap();
            let allowed = available_cpus();
            // Cores of a node, and of a node that does not exist.
            for node in [0, 99_999] {
                pin_near(node);
                assert_eq!(available_cpus(), allowed);
            }
        })
        .join()
        .unwrap();
    }
}
