//! Limits the time of the cores for the measured ranks, by a control group of the kernel.

use std::fmt::{Display, Formatter};
use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};

/// Why there is no quota.
#[derive(Debug)]
pub(crate) enum QuotaError {
    /// No hierarchy of control groups limits processors.
    NoController,
    /// Processes of the own group keep it from having limited subgroups.
    NotDelegated { group: PathBuf, error: Error },
    /// A file of the control group is not writable.
    NotWritable { path: PathBuf, error: Error },
}

impl Display for QuotaError {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoController => f.write_str(
                "--cpu-quota needs control groups with the controller `cpu`, of version 2 or 1: /proc/self/cgroup \
                 names none that is mounted; mount /sys/fs/cgroup into the container, or measure on the host",
            ),
            Self::NotDelegated { group, error } => write!(
                f,
                "--cpu-quota cannot turn on the controller `cpu` below {}: {error}; start the comparison in a \
                 group of its own whose subgroups it may manage: systemd-run --scope -p Delegate=yes COMMAND",
                group.display()
            ),
            Self::NotWritable { path, error } => write!(
                f,
                "--cpu-quota cannot write {}: {error}; run as root, or where the control groups are writable",
                path.display()
            ),
        }
    }
}

/// Membership of this process, and of all that it starts meanwhile, in a group with a quota.
///
/// The end of the value brings this process back. Afterward the group remains only if somebody else
/// uses it.
pub(crate) struct Quota {
    group: PathBuf,
    before: PathBuf,
}

impl Quota {
    /// Moves this process into a group that gets `percent` of the time of so many cores.
    pub(crate) fn enter(percent: u8, cores: usize) -> Result<Self, QuotaError> {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let own = Group::find(&read("/proc/self/cgroup"), &read("/proc/self/mounts"))?;
        if own.version == Version::Two {
            write(&own.path.join("cgroup.subtree_control"), "+cpu").map_err(|refused| match refused {
                QuotaError::NotWritable { error, .. } if error.kind() == ErrorKind::ResourceBusy => {
                    QuotaError::NotDelegated { group: own.path.clone(), error }
                }
                other => other,
            })?;
        }
        // The name says all that the group holds, so two comparisons may share it.
        let group = own.path.join(format!("unisono-compare-{percent}-percent-of-{cores}"));
        match std::fs::create_dir(&group) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(QuotaError::NotWritable { path: group, error });
            }
            _ => {}
        }
        let quota = Self { group, before: own.path };
        let micros = u64::from(percent) * cores as u64 * PERIOD_MICROS / 100;
        for (name, value) in own.version.limits(micros) {
            write(&quota.group.join(name), &value)?;
        }
        write(&quota.group.join(PROCESSES), &std::process::id().to_string())?;
        Ok(quota)
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        if let Err(error) = write(&self.before.join(PROCESSES), &std::process::id().to_string()) {
            eprintln!("compare: still limited: {error}");
        }
        // A group that still holds ranks on their way out remains, without effect on others.
        let _ = std::fs::remove_dir(&self.group);
    }
}

/// Control group of this process that limits processors.
#[derive(Debug, PartialEq)]
struct Group {
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

impl Group {
    /// Finds the group by the texts of `/proc/self/cgroup` and `/proc/self/mounts`.
    fn find(groups: &str, mounts: &str) -> Result<Self, QuotaError> {
        let two = place(groups, mounts, Version::Two);
        let two = two.filter(|path| {
            let controllers = std::fs::read_to_string(path.join("cgroup.controllers"));
            controllers.is_ok_and(|names| names.split_whitespace().any(|name| name == CONTROLLER))
        });
        let found = two.map(|path| Self { path, version: Version::Two });
        let one = || Some(Self { path: place(groups, mounts, Version::One)?, version: Version::One });
        found.or_else(one).ok_or(QuotaError::NoController)
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

fn write(path: &Path, value: &str) -> Result<(), QuotaError> {
    std::fs::write(path, value).map_err(|error| QuotaError::NotWritable { path: path.to_owned(), error })
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
        let one = Group { path: "/c/cpu,cpuacct/a/b".into(), version: Version::One };
        assert_eq!(Group::find(groups, mounts).ok(), Some(one));
    }

    #[test]
    fn missing_controller_is_refused_with_advice() {
        let refused = Group::find("1:cpuset:/\n", "cgroup /c/cpuset cgroup rw,cpuset 0 0\n");
        let text = refused.expect_err("no controller").to_string();
        assert!(text.contains("controller `cpu`") && text.contains("/sys/fs/cgroup"), "{text}");
        let group = PathBuf::from("/c/x");
        let error = Error::from(ErrorKind::ResourceBusy);
        let text = QuotaError::NotDelegated { group, error }.to_string();
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
    fn quota_is_entered_and_left() {
        let groups = || std::fs::read_to_string("/proc/self/cgroup").expect("Linux");
        let before = groups();
        match Quota::enter(90, 2) {
            Err(refused) => println!("SKIPPED: {refused}"),
            Ok(quota) => {
                assert!(groups().contains("unisono-compare-90-percent-of-2"), "{}", groups());
                drop(quota);
                assert_eq!(groups(), before);
            }
        }
    }
}
