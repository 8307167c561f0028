//! Where connections stay until they have proved themselves, all of them heard by one thread: one that
//! says nothing holds up nobody.

use crate::auth::{Claims, Hearing, Secret};
use crate::listener::Listener;
use crate::socket::Stream;
use crate::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Listeners, and guests who are being heard.
#[derive(Debug)]
pub struct Porch {
    listeners: Vec<Listener>,
    secret: Secret,
    guests: Vec<Guest>,
}

/// A connection that has yet to prove itself.
#[derive(Debug)]
struct Guest {
    stream: Stream,
    hearing: Hearing,
    until: Instant,
}

/// What there is to know.
#[derive(Debug)]
pub enum News {
    /// Somebody who knows the secret, and what it says that it is.
    Guest(Stream, Claims),
    /// Somebody was sent away: why.
    Stranger(Error),
    /// The watched descriptor of this index can be read, or is closed.
    Ready(usize),
}

impl Porch {
    /// For connections to `listeners` from those who know `secret`.
    pub fn new(listeners: Vec<Listener>, secret: Secret) -> Self {
        Self { listeners, secret, guests: Vec::new() }
    }

    /// Waits for news of guests and of `watched`; nothing at the deadline.
    ///
    /// # Errors
    /// The system's, if it cannot wait.
    pub fn wait(&mut self, watched: &[BorrowedFd<'_>], deadline: Instant) -> Result<Vec<News>> {
        loop {
            let ready = self.poll(watched, deadline)?;
            let mut news: Vec<News> = Vec::new();
            news.extend((0..watched.len()).filter(|&index| ready[index]).map(News::Ready));
            self.hear(&ready[watched.len()..], &mut news);
            self.let_in(&ready[watched.len()..], &mut news);
            if !news.is_empty() || Instant::now() >= deadline {
                return Ok(news);
            }
        }
    }

    /// Whether each of `watched`, the listeners and the guests is ready, once one of them is, or it is time
    /// for somebody to go.
    fn poll(&self, watched: &[BorrowedFd<'_>], deadline: Instant) -> Result<Vec<bool>> {
        let until =
            self.guests.iter().map(|guest| guest.until).min().map_or(deadline, |first| first.min(deadline));
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        // With no room, connections wait in the queue.
        let wanted = if self.guests.len() < GUESTS_MAX { PollFlags::IN } else { PollFlags::empty() };
        let watched = watched.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN));
        let listeners =
            self.listeners.iter().map(|listener| PollFd::from_borrowed_fd(listener.as_fd(), wanted));
        let guests =
            self.guests.iter().map(|guest| PollFd::from_borrowed_fd(guest.stream.as_fd(), PollFlags::IN));
        let mut fds: Vec<PollFd<'_>> = watched.chain(listeners).chain(guests).collect();
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => {
                let what = "cannot wait for connections".to_owned();
                return Err(Error::System { what, source: errno.into() });
            }
        }
        Ok(fds.iter().map(|fd| !fd.revents().is_empty()).collect())
    }

    /// Goes on with the guests that have said more, and sends those away whose time is up.
    fn hear(&mut self, ready: &[bool], news: &mut Vec<News>) {
        let (mut index, now) = (self.listeners.len(), Instant::now());
        let mut kept = Vec::with_capacity(self.guests.len());
        for mut guest in self.guests.drain(..) {
            let said_more = ready[index];
            index += 1;
            match said_more.then(|| guest.hearing.advance(&mut guest.stream, &self.secret)) {
                Some(Ok(Some(claims))) => news.push(News::Guest(guest.stream, claims)),
                Some(Err(error)) => news.push(News::Stranger(error)),
                _ if now >= guest.until => {
                    let what = format!("{} did not prove itself", guest.stream.peer());
                    news.push(News::Stranger(Error::Timeout { what }));
                }
                _ => kept.push(guest),
            }
        }
        self.guests = kept;
    }

    /// Lets everybody in who knocks.
    fn let_in(&mut self, ready: &[bool], news: &mut Vec<News>) {
        for listener in
            self.listeners.iter().zip(ready).filter_map(|(listener, ready)| ready.then_some(listener))
        {
            while self.guests.len() < GUESTS_MAX {
                match listener.accept() {
                    Ok(Some(stream)) => {
                        let until = Instant::now() + STRANGER_TIME_MAX;
                        self.guests.push(Guest { stream, hearing: Hearing::default(), until });
                    }
                    Ok(None) => break,
                    Err(error) => {
                        // Whatever is short, such as descriptors, may be had again soon.
                        std::thread::sleep(RETRY_AFTER);
                        news.push(News::Stranger(error));
                        break;
                    }
                }
            }
        }
    }
}

/// How long one connection may take to prove itself.
const STRANGER_TIME_MAX: Duration = Duration::from_secs(5);
/// Guests at once: enough for a port scan and all ranks of a large job.
const GUESTS_MAX: usize = 512;
const RETRY_AFTER: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::{self, Purpose};
    use std::net::{Ipv4Addr, SocketAddr, TcpStream};

    const CLAIMS: Claims = Claims { purpose: Purpose::Join, rank: 3, ranks: 4, index: 0, session: 0 };

    fn porch() -> (Porch, SocketAddr, Secret) {
        let listener = Listener::tcp((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let (address, secret) = (listener.address().unwrap(), Secret::random().unwrap());
        (Porch::new(vec![listener], secret.clone()), address, secret)
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(500)
    }

    fn call(address: SocketAddr, secret: &Secret) -> Result<()> {
        auth::connect(&mut Stream::dial(address, soon())?, secret, &CLAIMS, soon())
    }

    #[test]
    fn silent_strangers_hold_up_nobody() {
        let (mut porch, address, secret) = porch();
        let _silent: Vec<_> = (0..40).map(|_| TcpStream::connect(address).unwrap()).collect();
        let client = std::thread::spawn(move || call(address, &secret));
        let news = porch.wait(&[], soon()).unwrap();
        assert!(matches!(news[..], [News::Guest(_, CLAIMS)]), "{news:?}");
        client.join().unwrap().unwrap();
    }

    #[test]
    fn a_wrong_secret_is_news_and_no_guest() {
        let (mut porch, address, _) = porch();
        let client = std::thread::spawn(move || call(address, &Secret::random().unwrap()));
        let news = porch.wait(&[], soon()).unwrap();
        assert!(matches!(news[..], [News::Stranger(Error::Refused { .. })]), "{news:?}");
        assert!(client.join().unwrap().is_err());
    }

    #[test]
    fn what_is_watched_is_told_by_index_and_nothing_comes_at_the_deadline() {
        let (mut porch, ..) = porch();
        let (quiet, _other) = std::io::pipe().unwrap();
        let (ended, other) = std::io::pipe().unwrap();
        drop(other);
        let news = porch.wait(&[quiet.as_fd(), ended.as_fd()], soon()).unwrap();
        assert!(matches!(news[..], [News::Ready(1)]), "{news:?}");
        let begun = Instant::now();
        assert!(porch.wait(&[quiet.as_fd()], Instant::now() + Duration::from_millis(50)).unwrap().is_empty());
        assert!(begun.elapsed() >= Duration::from_millis(50));
    }
}
