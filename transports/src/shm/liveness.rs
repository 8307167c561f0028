//! How ranks of one host learn of each other's ends: a pipe that nothing is ever written to.
//!
//! A rank holds the only writing end of its pipe for as long as it is there, and
//! hands the reading end to everybody. However it ends, the kernel closes what
//! it held, and the reading ends say so. One pipe for each rank, instead of a
//! socket for each two.

use crate::{Error, Result};
use rustix::event::{Timespec, epoll};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A rank's own end: while it is held, the rank is there.
#[derive(Debug)]
pub struct LivenessPipe {
    _write_end: OwnedFd,
}

/// The ends of the others.
#[derive(Debug)]
pub struct LivenessMonitor {
    epoll: OwnedFd,
    /// By peer; they are watched as long as they are open.
    pipes: Vec<Option<OwnedFd>>,
}

/// A new one, and the end to hand to the others, which may be duplicated.
///
/// # Errors
/// The system's.
pub fn liveness_pipe() -> Result<(LivenessPipe, OwnedFd)> {
    let (end, held) = pipe_with(PipeFlags::CLOEXEC).map_err(|errno| failed("make", errno))?;
    // The kernel allows a user so many pages of pipes; this one needs none.
    let _ = fcntl_setpipe_size(&held, 1);
    Ok((LivenessPipe { _write_end: held }, end))
}

impl LivenessMonitor {
    /// Over the ends of each peer; none of oneself and of ranks elsewhere.
    ///
    /// # Errors
    /// The system's.
    pub fn new(lines: Vec<Option<OwnedFd>>) -> Result<Self> {
        let failed = |errno| failed("watch", errno);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        for (peer, line) in lines.iter().enumerate() {
            if let Some(line) = line {
                epoll::add(&epoll, line, epoll::EventData::new_u64(peer as u64), epoll::EventFlags::IN)
                    .map_err(failed)?;
            }
        }
        Ok(Self { epoll, pipes: lines })
    }

    /// Descriptors that it has open.
    pub(crate) fn descriptors(&self) -> usize {
        1 + self.pipes.iter().flatten().count()
    }

    /// Can be read once there is an end to be told.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// A peer that has ended; each is told once.
    pub fn next_exited(&mut self) -> Option<usize> {
        let mut events = [const { MaybeUninit::uninit() }; 1];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let (events, _) = epoll::wait(&self.epoll, &mut events, Some(&now)).ok()?;
        let peer = events.first()?.data.u64() as usize;
        if let Some(line) = self.pipes.get_mut(peer).and_then(Option::take) {
            let _ = epoll::delete(&self.epoll, &line);
        }
        Some(peer)
    }
}

fn failed(what: &str, errno: rustix::io::Errno) -> Error {
    Error::System {
        what: format!("cannot {what} a pipe to learn of the ends of ranks"),
        source: errno.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_is_reported_to_each_rank_once() {
        let ((one, end), (two, other)) = (liveness_pipe().unwrap(), liveness_pipe().unwrap());
        let ends = |end: &OwnedFd| Some(end.try_clone().unwrap());
        let mut watches = [0; 2].map(|_| LivenessMonitor::new(vec![None, ends(&end), ends(&other)]).unwrap());
        for watch in &mut watches {
            assert_eq!(watch.next_exited(), None);
        }
        drop(one);
        for watch in &mut watches {
            assert_eq!((watch.next_exited(), watch.next_exited()), (Some(1), None));
        }
        drop(two);
        assert_eq!(watches.each_mut().map(|watch| watch.next_exited()), [Some(2); 2]);
    }

    #[test]
    fn process_exit_is_reported() {
        let (held, end) = liveness_pipe().unwrap();
        let mut watch = LivenessMonitor::new(vec![Some(end)]).unwrap();
        // The child has the writing end as its standard input, and nobody else has it.
        let mut child = std::process::Command::new("sleep").arg("60").stdin(held._write_end).spawn().unwrap();
        assert_eq!(watch.next_exited(), None);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(watch.next_exited(), Some(0));
    }
}
