//! Memory that this host, or the control group of this process, has left.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the bytes that processes can still allocate on this host, as far as its kernel says: the
/// smallest of the host's available memory and the rest of each limit of a control group.
pub(crate) fn available_memory() -> Option<usize> {
    available_below(Path::new("/"))
}

/// Returns the memory of this host in bytes.
pub(crate) fn host_memory() -> Option<usize> {
    meminfo(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:")
}

/// Returns the bytes of addresses that this process can still map, if they are limited (`ulimit
/// -v`).
pub(crate) fn available_addresses() -> Option<usize> {
    addresses_below(Path::new("/"))
}

fn addresses_below(root: &Path) -> Option<usize> {
    let read = |name: &str| fs::read_to_string(root.join("proc/self").join(name)).ok();
    let limit = address_limit(&read("limits")?)?;
    Some(limit.saturating_sub(meminfo(&read("status")?, "VmSize:")?))
}

/// Returns the limit of addresses in `/proc/self/limits`, if there is one.
fn address_limit(limits: &str) -> Option<usize> {
    let limit = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    limit.split_whitespace().next()?.parse().ok()
}

fn available_below(root: &Path) -> Option<usize> {
    let host = meminfo(&fs::read_to_string(root.join("proc/meminfo")).ok()?, "MemAvailable:");
    host.into_iter().chain(group_limits(root)).min()
}

/// Returns a number of bytes in `/proc/meminfo`, or in the status of a process.
fn meminfo(text: &str, name: &str) -> Option<usize> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().trim_end_matches(" kB").parse::<usize>().ok()?.checked_mul(1 << 10)
}

/// Returns what is left of each memory limit of this process's control groups.
fn group_limits(root: &Path) -> Vec<usize> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    limits_of(&groups, root)
}

/// Returns what is left of each memory limit of these control groups.
fn limits_of(groups: &str, root: &Path) -> Vec<usize> {
    let mut limits = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let version = match controllers {
            "" => VERSION_2,
            _ if controllers.split(',').any(|controller| controller == "memory") => VERSION_1,
            _ => continue,
        };
        let mount = root.join(version.mount);
        let group_folder: PathBuf = mount.join(path.trim_start_matches('/'));
        // A container sees the path of its group on the host, but its own limits at the mount.
        let folders = group_folder.ancestors().take_while(|folder| folder.starts_with(&mount));
        limits.extend(folders.filter_map(|folder| version.left(folder)));
    }
    limits
}

/// Names of files in one version of control groups.
struct GroupFiles {
    mount: &'static str,
    limit: &'static str,
    usage: &'static str,
    /// Name of the page cache that the kernel can drop, in `memory.stat`.
    cache: &'static str,
}

const VERSION_1: GroupFiles = GroupFiles {
    mount: "sys/fs/cgroup/memory",
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    cache: "total_inactive_file ",
};
const VERSION_2: GroupFiles = GroupFiles {
    mount: "sys/fs/cgroup",
    limit: "memory.max",
    usage: "memory.current",
    cache: "inactive_file ",
};

impl GroupFiles {
    /// Returns what is left of the limit of the group `folder`, if it has one.
    fn left(&self, folder: &Path) -> Option<usize> {
        let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
        let number = |name: &str| read(name)?.trim().parse::<usize>().ok();
        let (limit, usage) = (number(self.limit)?, number(self.usage)?);
        let stat = read("memory.stat").unwrap_or_default();
        // Pages of files count as used, and the kernel drops them when memory is short.
        let cache = stat.lines().find_map(|line| line.strip_prefix(self.cache)?.trim().parse().ok());
        Some(limit.saturating_sub(usage.saturating_sub(cache.unwrap_or(0))))
    }
}

/// Reads text as that of the kernel about memory, on a host whose control groups have no limits.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(text: &str) {
    let _ = (meminfo(text, "MemAvailable:"), address_limit(text));
    assert!(limits_of(text, Path::new("/nowhere")).is_empty());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the available memory of a host with these files.
    fn available(files: &[(&str, &str)]) -> Option<usize> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        available_below(root.path())
    }

    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal:  9000 kB\nMemAvailable:    4000 kB\n");

    #[test]
    fn smallest_limit_of_host_and_control_groups_counts() {
        assert_eq!(available(&[]), None);
        assert_eq!(available(&[MEMINFO]), Some(4000 << 10));
        let group = ("proc/self/cgroup", "0::/a/b\n");
        let unlimited =
            [("sys/fs/cgroup/a/b/memory.max", "max\n"), ("sys/fs/cgroup/a/b/memory.current", "5\n")];
        assert_eq!(available(&[&[MEMINFO, group], &unlimited[..]].concat()), Some(4000 << 10));
        let parent_limits =
            [("sys/fs/cgroup/a/memory.max", "9000\n"), ("sys/fs/cgroup/a/memory.current", "5000\n")];
        let cache = ("sys/fs/cgroup/a/memory.stat", "anon 7\ninactive_file 1000\n");
        assert_eq!(
            available(&[&[MEMINFO, group], &unlimited[..], &parent_limits, &[cache]].concat()),
            Some(5000)
        );
    }

    #[test]
    fn limited_addresses_count() {
        let left_of = |limits: &str| {
            let root = tempfile::tempdir().unwrap();
            let folder = root.path().join("proc/self");
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("limits"), limits).unwrap();
            fs::write(folder.join("status"), "Name:\tx\nVmSize:\t    3 kB\n").unwrap();
            addresses_below(root.path())
        };
        let head = "Limit                     Soft Limit           Hard Limit           Units     \n";
        assert_eq!(
            left_of(&format!("{head}Max address space         unlimited   unlimited   bytes\n")),
            None
        );
        assert_eq!(
            left_of(&format!("{head}Max address space         8192        9000        bytes\n")),
            Some(5120)
        );
        assert_eq!(left_of(head), None);
    }

    #[test]
    fn limits_of_first_version_and_of_a_container_count() {
        let group = ("proc/self/cgroup", "3:cpu:/x\n7:memory:/docker/1\n");
        let limit = [
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "3000\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "1000\n"),
        ];
        assert_eq!(available(&[&[MEMINFO, group], &limit[..]].concat()), Some(2000));
    }
}
