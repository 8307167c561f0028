//! Detects the end of ranks of one host, through a pipe to which nothing is ever written.
//!
//! A rank holds the only writing end of its pipe for as long as it lives, and passes the reading
//! end to all other ranks. However the rank ends, the kernel closes its descriptors, and the
//! reading ends report it. This takes one pipe for each rank, instead of a socket for each pair of
//! ranks. Forked children close their copies of the writing end.

use crate::sys::close_on_fork::CloseOnFork;
use crate::sys::descriptors::off_stdio;
use crate::{Error, Result};
use rustix::event::{Timespec, epoll};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Writing end of a rank's own pipe. The rank counts as alive while it is held.
#[derive(Debug)]
pub struct LivenessPipe {
    _close_on_fork: CloseOnFork,
    _write_end: OwnedFd,
}

/// Reading ends of the pipes of the other ranks.
#[derive(Debug)]
pub struct LivenessMonitor {
    epoll: OwnedFd,
    /// Reading ends by peer, watched as long as they are open.
    pipes: Vec<Option<OwnedFd>>,
}

/// Creates a pipe, and the reading end to pass to the other ranks. The reading end may be
/// duplicated.
///
/// # Errors
/// Returns the system's error.
pub fn liveness_pipe() -> Result<(LivenessPipe, OwnedFd)> {
    let ends = pipe_with(PipeFlags::CLOEXEC).map_err(Into::into);
    let ends = ends.and_then(|(end, held)| Ok((off_stdio(end)?, off_stdio(held)?)));
    let (end, held) = ends.map_err(|source| failed("make", source))?;
    // The kernel limits the pipe pages of a user, and this pipe needs none.
    let _ = fcntl_setpipe_size(&held, 1);
    Ok((LivenessPipe { _close_on_fork: CloseOnFork::new(held.as_fd()), _write_end: held }, end))
}

impl LivenessMonitor {
    /// Creates a monitor over the reading ends of the peers. There is none for this rank and for
    /// ranks on other hosts.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn new(lines: Vec<Option<OwnedFd>>) -> Result<Self> {
        let failed = |source| failed("watch", source);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(Into::into);
        let epoll = epoll.and_then(off_stdio).map_err(failed)?;
        for (peer, line) in lines.iter().enumerate() {
            if let Some(line) = line {
                epoll::add(&epoll, line, epoll::EventData::new_u64(peer as u64), epoll::EventFlags::IN)
                    .map_err(|errno| failed(errno.into()))?;
            }
        }
        Ok(Self { epoll, pipes: lines })
    }

    /// Returns the number of descriptors that the monitor has open.
    pub(crate) fn descriptors(&self) -> usize {
        1 + self.pipes.iter().flatten().count()
    }

    /// Returns a descriptor that is readable once a peer has ended.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Returns a peer that has ended. Each peer is returned once.
    pub fn next_exited(&mut self) -> Option<usize> {
        let mut events = [const { MaybeUninit::uninit() }; 1];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let (events, _) = epoll::wait(&self.epoll, &mut events, Some(&now)).ok()?;
        let peer = events.first()?.data.u64() as usize;
        // A pipe without a writer stays readable, so it would be reported again and hide other
        // ends.
        if let Some(line) = self.pipes.get_mut(peer).and_then(Option::take) {
            let _ = epoll::delete(&self.epoll, &line);
        }
        Some(peer)
    }
}

fn failed(what: &str, source: std::io::Error) -> Error {
    Error::System { what: format!("cannot {what} a pipe to learn of the ends of ranks"), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_is_reported_to_each_rank_once() {
        let ((first, end), (second, other)) = (liveness_pipe().unwrap(), liveness_pipe().unwrap());
        let ends = |end: &OwnedFd| Some(end.try_clone().unwrap());
        let mut watches = [0; 2].map(|_| LivenessMonitor::new(vec![None, ends(&end), ends(&other)]).unwrap());
        for watch in &mut watches {
            assert_eq!(watch.next_exited(), None);
        }
        // A process that another test forks has copies of all ends until its handler has run.
        let next = |watch: &mut LivenessMonitor| {
            std::iter::repeat_with(|| watch.next_exited()).find_map(|exited| {
                std::thread::yield_now();
                exited
            })
        };
        drop(first);
        for watch in &mut watches {
            assert_eq!((next(watch), watch.next_exited()), (Some(1), None));
        }
        drop(second);
        assert_eq!(watches.each_mut().map(next), [Some(2); 2]);
    }

    #[test]
    fn forked_child_does_not_hide_exit() {
        let (held, end) = liveness_pipe().unwrap();
        let mut watch = LivenessMonitor::new(vec![Some(end)]).unwrap();
        // SAFETY: the child only waits for a signal.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: a system call without memory.
            unsafe { libc::pause() };
        }
        // The child runs its handler before `fork` returns there, perhaps later than here.
        std::thread::sleep(std::time::Duration::from_millis(200));
        assert_eq!(watch.next_exited(), None);
        drop(held);
        let exited = watch.next_exited();
        // SAFETY: the process is this test's child, and no memory is passed.
        let ended =
            unsafe { libc::kill(child, libc::SIGKILL) + libc::waitpid(child, std::ptr::null_mut(), 0) };
        assert_eq!((exited, ended), (Some(0), child));
    }

    #[test]
    fn process_exit_is_reported() {
        let (held, end) = liveness_pipe().unwrap();
        let mut watch = LivenessMonitor::new(vec![Some(end)]).unwrap();
        // The child has the only writing end, as its standard input.
        let mut child = std::process::Command::new("sleep").arg("60").stdin(held._write_end).spawn().unwrap();
        assert_eq!(watch.next_exited(), None);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(watch.next_exited(), Some(0));
    }
}
