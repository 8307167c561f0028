//! Control groups of the kernel: equal shares for the ranks and their load, and quotas.
//!
//! Every session has its own share of a core if `sched_autogroup_enabled` is 1. Some launchers give
//! each rank a session, others none, and a yield never leaves its session. In one control group all
//! processes are equal, as in a container.

use std::fmt::{Display, Formatter};
use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};

/// Why a control group cannot be used.
#[derive(Debug)]
pub(crate) enum GroupError {
    /// No hierarchy of control groups limits processors.
    NoController,
    /// Processes of the own group keep it from having limited subgroups.
    NotDelegated { group: PathBuf, error: Error },
    /// A file of the control group is not writable.
    NotWritable { path: PathBuf, error: Error },
}

impl Display for GroupError {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoController => f.write_str(
                "there is no control group of version 2 or 1 with the controller `cpu`: /proc/self/cgroup names none \
                 that is mounted; mount /sys/fs/cgroup into the container, or measure on the host",
            ),
            Self::NotDelegated { group, error } => write!(
                f,
                "cannot turn on the controller `cpu` below {}: {error}; start the comparison in a \
                 group of its own whose subgroups it may manage: systemd-run --scope -p Delegate=yes COMMAND",
                group.display()
            ),
            Self::NotWritable { path, error } => write!(
                f,
                "cannot write {}: {error}; run as root, or where the control groups are writable",
                path.display()
            ),
        }
    }
}

/// Membership of this process, and of all that it starts meanwhile, in a control group.
///
/// The end of the value brings this process back. Afterward the group remains only if somebody else
/// uses it.
pub(crate) struct Membership {
    group: PathBuf,
    base: PathBuf,
}

impl Drop for Membership {
    fn drop(&mut self) {
        if let Err(error) = write(&self.base.join(PROCESSES), &std::process::id().to_string()) {
            eprintln!("compare: still in {}: {error}", self.group.display());
        }
        // A group that still holds ranks on their way out remains, without effect on others.
        let _ = std::fs::remove_dir(&self.group);
    }
}

/// The control group of this process, below which it makes others.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ControlGroup {
    path: PathBuf,
    version: Version,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Version {
    One,
    Two,
}

impl Version {
    /// Files of a group with their values: so many microseconds in each period.
    fn limits(self, micros: u64) -> Vec<(&'static str, String)> {
        match self {
            Self::One => vec![
                ("cpu.cfs_period_us", PERIOD_MICROS.to_string()),
                ("cpu.cfs_quota_us", micros.to_string()),
            ],
            Self::Two => vec![("cpu.max", format!("{micros} {PERIOD_MICROS}"))],
        }
    }
}

impl ControlGroup {
    /// Finds the group in which this process is now.
    pub(crate) fn here() -> Result<Self, GroupError> {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        Self::find(&read("/proc/self/cgroup"), &read("/proc/self/mounts"))
    }

    /// Moves this process into a group without a limit, in which all processes have equal shares.
    pub(crate) fn enter_shared(&self) -> Result<Membership, GroupError> {
        self.enter("unisono-compare", &[])
    }

    /// Moves this process into a group that gets `percent` of the time of so many cores.
    pub(crate) fn enter_quota(&self, percent: u8, cores: usize) -> Result<Membership, GroupError> {
        let micros = u64::from(percent) * cores as u64 * PERIOD_MICROS / 100;
        // The name says all that the group holds, so two comparisons may share it.
        let name = format!("unisono-compare-{percent}-percent-of-{cores}");
        self.enter(&name, &self.version.limits(micros))
    }

    fn enter(&self, name: &str, files: &[(&'static str, String)]) -> Result<Membership, GroupError> {
        if self.version == Version::Two {
            write(&self.path.join("cgroup.subtree_control"), "+cpu").map_err(|refused| match refused {
                GroupError::NotWritable { error, .. } if error.kind() == ErrorKind::ResourceBusy => {
                    GroupError::NotDelegated { group: self.path.clone(), error }
                }
                other => other,
            })?;
        }
        let group = self.path.join(name);
        match std::fs::create_dir(&group) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(GroupError::NotWritable { path: group, error });
            }
            _ => {}
        }
        let membership = Membership { group, base: self.path.clone() };
        for (name, value) in files {
            write(&membership.group.join(name), value)?;
        }
        write(&membership.group.join(PROCESSES), &std::process::id().to_string())?;
        Ok(membership)
    }

    /// Finds the group by the texts of `/proc/self/cgroup` and `/proc/self/mounts`.
    fn find(groups: &str, mounts: &str) -> Result<Self, GroupError> {
        let two = place(groups, mounts, Version::Two);
        let two = two.filter(|path| {
            let controllers = std::fs::read_to_string(path.join("cgroup.controllers"));
            controllers.is_ok_and(|names| names.split_whitespace().any(|name| name == CONTROLLER))
        });
        let found = two.map(|path| Self { path, version: Version::Two });
        let version_one = || Some(Self { path: place(groups, mounts, Version::One)?, version: Version::One });
        found.or_else(version_one).ok_or(GroupError::NoController)
    }
}

/// Returns the folder of this process's group in the hierarchy of one version.
fn place(groups: &str, mounts: &str, version: Version) -> Option<PathBuf> {
    let group = groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let is_it = match version {
            Version::One => controllers.split(',').any(|name| name == CONTROLLER),
            Version::Two => controllers.is_empty(),
        };
        is_it.then_some(path)
    })?;
    let mount = mounts.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        let [_, folder, kind, options, ..] = fields[..] else { return None };
        let is_it = match version {
            Version::One => kind == "cgroup" && options.split(',').any(|name| name == CONTROLLER),
            Version::Two => kind == "cgroup2",
        };
        is_it.then_some(folder)
    })?;
    Some(Path::new(mount).join(group.trim_start_matches('/')))
}

fn write(path: &Path, value: &str) -> Result<(), GroupError> {
    std::fs::write(path, value).map_err(|error| GroupError::NotWritable { path: path.to_owned(), error })
}

const CONTROLLER: &str = "cpu";
const PROCESSES: &str = "cgroup.procs";
/// The period that the kernel and container runtimes take if they are not told.
const PERIOD_MICROS: u64 = 100_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_in_both_versions() {
        let mounts = "cgroup /c/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\ncgroup2 /c/unified cgroup2 rw 0 0\n";
        let groups = "2:cpu,cpuacct:/a/b\n1:cpuset:/\n0::/u\n";
        assert_eq!(place(groups, mounts, Version::One), Some("/c/cpu,cpuacct/a/b".into()));
        assert_eq!(place(groups, mounts, Version::Two), Some("/c/unified/u".into()));
        // Version 2 has no controller there, so version 1 counts.
        let group = ControlGroup { path: "/c/cpu,cpuacct/a/b".into(), version: Version::One };
        assert_eq!(ControlGroup::find(groups, mounts).ok(), Some(group));
    }

    #[test]
    fn missing_controller_is_refused_with_advice() {
        let refused = ControlGroup::find("1:cpuset:/\n", "cgroup /c/cpuset cgroup rw,cpuset 0 0\n");
        let text = refused.expect_err("no controller").to_string();
        assert!(text.contains("controller `cpu`") && text.contains("/sys/fs/cgroup"), "{text}");
        let group = PathBuf::from("/c/x");
        let error = Error::from(ErrorKind::ResourceBusy);
        let text = GroupError::NotDelegated { group, error }.to_string();
        assert!(text.contains("/c/x") && text.contains("Delegate=yes"), "{text}");
    }

    #[test]
    fn unwritable_group_names_the_file() {
        let text = write(Path::new("/nonexistent/cpu.max"), "1").expect_err("no folder").to_string();
        assert!(text.contains("/nonexistent/cpu.max") && text.contains("root"), "{text}");
    }

    #[test]
    fn limits_follow_the_version() {
        assert_eq!(Version::Two.limits(50_000), [("cpu.max", "50000 100000".to_owned())]);
        let [period, quota] = &Version::One.limits(50_000)[..] else { panic!("two files") };
        assert_eq!((period.1.as_str(), quota.1.as_str()), ("100000", "50000"));
    }

    #[test]
    fn groups_are_entered_and_left() {
        let groups = || std::fs::read_to_string("/proc/self/cgroup").expect("Linux");
        let (original, here) = (groups(), ControlGroup::here());
        let entered = here.and_then(|group| Ok((group.enter_shared()?, group.enter_quota(90, 2)?)));
        match entered {
            Err(refused) => println!("SKIPPED: {refused}"),
            Ok((shared, quota)) => {
                // The second is beside the first, not in it.
                assert!(groups().contains("/unisono-compare-90-percent-of-2\n"), "{}", groups());
                drop(quota);
                drop(shared);
                assert_eq!(groups(), original);
            }
        }
    }
}
