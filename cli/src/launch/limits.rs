//! Refuses a job that has more ranks than the system lets this process start.

use rustix::process::{Resource, getrlimit};

/// One limit, as the number of ranks that it allows, and its name.
type Limit = (usize, &'static str);

/// Fails if the system does not allow `ranks` ranks. This is checked before any rank is started.
///
/// # Errors
/// Names the limit that is too low.
pub(super) fn check(ranks: usize) -> Result<(), String> {
    match lowest(&limits()).filter(|(most, _)| *most < ranks) {
        Some((most, name)) => Err(format!(
            "{ranks} ranks cannot be started: {name} allows about {most} here; nothing was started"
        )),
        None => Ok(()),
    }
}

fn lowest(limits: &[Limit]) -> Option<Limit> {
    limits.iter().copied().min_by_key(|(most, _)| *most)
}

/// Returns the limits of the system. A limit that cannot be read is left out.
fn limits() -> Vec<Limit> {
    let files = [
        ("/proc/sys/kernel/pid_max", "kernel.pid_max"),
        ("/proc/sys/kernel/threads-max", "kernel.threads-max"),
        ("/sys/fs/cgroup/pids.max", "pids.max of the cgroup"),
    ];
    let from_file = |(path, name): (&str, &'static str)| {
        let text = std::fs::read_to_string(path).ok()?;
        Some((text.trim().parse::<usize>().ok()? / TASKS_PER_RANK, name))
    };
    let from_limit = |(resource, per_rank, name): (Resource, usize, &'static str)| {
        let limit = getrlimit(resource).maximum?;
        Some((usize::try_from(limit).ok()?.saturating_sub(SPARE) / per_rank, name))
    };
    let mut found: Vec<Limit> = files.into_iter().filter_map(from_file).collect();
    let of_process = [
        (Resource::Nproc, TASKS_PER_RANK, "`ulimit -u` (processes)"),
        (Resource::Nofile, FDS_PER_RANK, "`ulimit -n` (open files)"),
    ];
    found.extend(of_process.into_iter().filter_map(from_limit));
    found
}

/// Number of tasks for each rank: its process, the thread that waits for its end, and the two
/// threads that pass on its output.
const TASKS_PER_RANK: usize = 4;
/// Pipes of a rank's output.
const FDS_PER_RANK: usize = 2;
/// Descriptors and tasks of this process itself.
const SPARE: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lowest_limit_is_named() {
        let limits = [(100, "one"), (7, "other"), (9, "third")];
        assert_eq!(lowest(&limits), Some((7, "other")));
        assert_eq!(lowest(&[]), None);
    }

    #[test]
    fn job_beyond_all_limits_is_refused() {
        assert_eq!(check(2), Ok(()));
        let why = check(usize::MAX).unwrap_err();
        assert!(why.contains("nothing was started") && why.contains("allows about"), "{why}");
    }
}
