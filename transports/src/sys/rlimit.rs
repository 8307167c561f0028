//! Resource limits of this process.

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit of open descriptors to `count`, as far as the hard limit allows. The soft limit
/// is only ever raised, and only when it is too low. It exists for programs that use `select`.
pub fn raise_fd_limit(count: usize) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.map_or(count as u64, |maximum| maximum.min(count as u64));
    if current.is_some_and(|current| current < wanted) {
        let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
        tracing::info!(from = current, to = wanted, ok = raised.is_ok(), "the limit of open descriptors");
    }
}

/// Returns the largest file that this process may make, or `None` if there is no limit. The limit
/// includes anonymous shared memory.
pub(crate) fn max_file_bytes() -> Option<u64> {
    getrlimit(Resource::Fsize).current
}

/// Returns true if this process, or this host, can have no more descriptors. Waiting does not help
/// then.
pub fn is_fd_exhausted(error: &std::io::Error) -> bool {
    [Errno::MFILE, Errno::NFILE].iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fd_limit_is_raised_and_never_lowered() {
        let before = getrlimit(Resource::Nofile).current;
        raise_fd_limit(8);
        assert_eq!(getrlimit(Resource::Nofile).current, before);
        let maximum = getrlimit(Resource::Nofile).maximum;
        setrlimit(Resource::Nofile, Rlimit { current: before.map(|before| before - 1), maximum }).unwrap();
        raise_fd_limit(before.unwrap_or(8) as usize);
        assert_eq!(getrlimit(Resource::Nofile).current, before);
    }
}
