//! Location of a rank: its host, and the NUMA domain of its processor cores.

use std::fs;
use std::ops::RangeInclusive;
use std::path::Path;
use unisono::Communicator;
use unisono_nn::error::Result;
use unisono_nn::random::hash_numbers;

/// Identity of a host: a number that is almost certainly unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub u64);

impl HostId {
    /// Returns the identity of this host, from its name and boot.
    pub fn current() -> Self {
        let text = ["hostname", "random/boot_id"].map(|name| fs::read(format!("/proc/sys/kernel/{name}")));
        let bytes: Vec<u64> = text.into_iter().flatten().flatten().map(u64::from).collect();
        Self(hash_numbers(&bytes))
    }
}

#[cfg(test)]
thread_local! {
    /// Location that a test gives to its thread; `None` for the real one.
    pub(super) static LOCATION_OF_TEST: std::cell::Cell<Option<Location>> =
        const { std::cell::Cell::new(None) };
}

/// Host and NUMA domain of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Location {
    /// Host.
    pub host: HostId,
    /// NUMA domain within the host. `None` if the rank may run in several, or there is one.
    pub numa_domain: Option<u32>,
}

impl Location {
    /// Returns the location of the calling thread.
    pub fn current() -> Self {
        #[cfg(test)]
        if let Some(location) = LOCATION_OF_TEST.get() {
            return location;
        }
        let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
        let numa_domain = numa_domain(Path::new("/sys/devices/system/node"), &status);
        Self { host: HostId::current(), numa_domain }
    }

    /// Returns the locations of all ranks of `world`. All ranks must call this.
    pub(super) fn gather(world: &Communicator) -> Result<Vec<Self>> {
        let current = Self::current();
        // The message has numbers only, of which 0 stands for no domain.
        let domain = current.numa_domain.map_or(0, |domain| u64::from(domain) + 1);
        let mut numbers = vec![0; 2 * world.size()];
        world.all_gather(&[current.host.0, domain], &mut numbers)?;
        let location = |pair: &[u64]| Self {
            host: HostId(pair[0]),
            numa_domain: pair[1].checked_sub(1).map(|domain| domain as u32),
        };
        Ok(numbers.chunks_exact(2).map(location).collect())
    }
}

/// Returns the only domain in `nodes`, a folder as `/sys/devices/system/node`, with cores on which
/// a thread with this `/proc` status may run. `None` if there are several, or one in all.
fn numa_domain(nodes: &Path, status: &str) -> Option<u32> {
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let entries = fs::read_dir(nodes).ok()?.flatten();
    let domains = entries.filter_map(|entry| {
        let number = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
        Some((number, fs::read_to_string(entry.path().join("cpulist")).ok()?))
    });
    let domains: Vec<(u32, String)> = domains.collect();
    let shares = |list: &str| {
        core_ranges(list).any(|range| {
            core_ranges(allowed).any(|allowed_range| {
                range.start().max(allowed_range.start()) <= range.end().min(allowed_range.end())
            })
        })
    };
    let mut matching = domains.iter().filter(|(_, list)| shares(list)).map(|&(number, _)| number);
    let first = matching.next().filter(|_| domains.len() > 1);
    first.filter(|_| matching.next().is_none())
}

/// Returns the ranges in a list of cores, such as `0-3,8`.
fn core_ranges(list: &str) -> impl Iterator<Item = RangeInclusive<usize>> {
    list.trim().split(',').filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    })
}

/// Reads text as lists of cores.
pub fn fuzz(text: &str) {
    let _ = text.lines().map(|line| core_ranges(line).count()).max();
    let _ = numa_domain(Path::new("/sys/devices/system/node"), text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numa_domain_follows_the_affinity_of_a_thread() {
        let folder = tempfile::tempdir().unwrap();
        for (name, cores) in [("node0", "0-3,8-11\n"), ("node1", "4-7,12-15\n"), ("power", "")] {
            fs::create_dir(folder.path().join(name)).unwrap();
            fs::write(folder.path().join(name).join("cpulist"), cores).unwrap();
        }
        let domain_of =
            |cores: &str| numa_domain(folder.path(), &format!("Name:\ta\nCpus_allowed_list:\t{cores}\n"));
        assert_eq!([domain_of("0-1"), domain_of("9"), domain_of("5,12-13")], [Some(0), Some(0), Some(1)]);
        assert_eq!([domain_of("0-15"), domain_of("3,4"), domain_of("16")], [None; 3]);
        assert_eq!(numa_domain(folder.path(), "Name:\ta\n"), None);
        fs::remove_dir_all(folder.path().join("node1")).unwrap();
        assert_eq!(domain_of("0-1"), None, "one domain in all");
        assert_eq!(numa_domain(&folder.path().join("absent"), "Cpus_allowed_list:\t0\n"), None);
        assert_eq!(Location::current(), Location::current());
    }
}
