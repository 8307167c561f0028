//! Resource limits of this process.

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit so that `more` descriptors can be opened, as far as the hard limit allows.
/// Returns how many more can then be opened. The soft limit is raised only if it is too low, and is
/// never lowered. It exists for programs that use `select`.
pub fn raise_fd_limit(more: usize) -> usize {
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.unwrap_or(u64::MAX).min((open + more) as u64);
    if current.is_some_and(|current| current < wanted) {
        let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
        tracing::info!(from = current, to = wanted, ok = raised.is_ok(), "the limit of open descriptors");
    }
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(limit).unwrap_or(usize::MAX).saturating_sub(open)
}

/// Returns the largest file that this process may make, or `None` if there is no limit. The limit
/// includes anonymous shared memory.
pub(crate) fn max_file_bytes() -> Option<u64> {
    getrlimit(Resource::Fsize).current
}

/// Returns true if this process, or this host, can open no more descriptors. Waiting does not help
/// in this case.
pub fn is_fd_exhausted(error: &std::io::Error) -> bool {
    [Errno::MFILE, Errno::NFILE].iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fd_limit_is_raised_and_never_lowered() {
        let limit = getrlimit(Resource::Nofile).current.expect("a limit");
        assert!(raise_fd_limit(8) <= limit as usize, "those that are open count");
        assert_eq!(getrlimit(Resource::Nofile).current, Some(limit));
        let maximum = getrlimit(Resource::Nofile).maximum;
        setrlimit(Resource::Nofile, Rlimit { current: Some(limit - 1), maximum }).unwrap();
        raise_fd_limit(limit as usize);
        let raised = getrlimit(Resource::Nofile).current;
        assert!(raised >= Some(limit) && (maximum.is_none() || raised <= maximum), "{raised:?}");
    }
}
