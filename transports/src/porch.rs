//! Where connections stay until they have proved themselves, all of them heard by one thread: one that
//! says nothing holds up nobody.
//!
//! A guest costs a descriptor and the hundred bytes of its half of the handshake. It has a moment to itself, and
//! a little more while nobody waits for its place: then the oldest of those leaves whose address has most guests here.

mod crowd;

use crate::auth::{Claims, Terms};
use crate::listener::Listener;
use crate::socket::Stream;
use crate::sync::{self, Instant, thread};
use crate::{Error, Result};
use crowd::{Complaints, Guest};
use rustix::event::{PollFd, PollFlags};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// Listeners, and guests who are being heard.
#[derive(Debug)]
pub struct Porch {
    listeners: Vec<Listener>,
    terms: Terms,
    guests: Vec<Guest>,
    complaints: Complaints,
}

/// What there is to know.
#[derive(Debug)]
pub enum News {
    /// Somebody who knows the secret, and what it says that it is.
    Guest(Stream, Claims),
    /// Somebody was sent away: why. The log has it, unless there are many.
    Stranger(Error),
    /// The watched descriptor of this index can be read, or is closed.
    Ready(usize),
}

impl Porch {
    /// For connections to `listeners` from those who know the secret, on these terms.
    pub fn new(listeners: Vec<Listener>, terms: Terms) -> Self {
        Self { listeners, terms, guests: Vec::new(), complaints: Complaints::default() }
    }

    /// As [`Porch::new`], at the door of a rank that has met the others.
    pub fn of_one_who_has_met(listener: Listener, terms: Terms) -> Self {
        let complaints = Complaints::of_one_who_has_met();
        Self { listeners: vec![listener], terms, guests: Vec::new(), complaints }
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
        let now = Instant::now();
        let until = self.guests.iter().map(|guest| guest.until()).min();
        // With no room, connections wait in the queue until somebody has had its moment.
        let crowded = self.guests.len() >= GUESTS_MAX;
        let moment = crowded.then(|| self.guests.iter().map(|guest| guest.came + MOMENT).min()).flatten();
        let is_over = moment.is_some_and(|moment| moment <= now);
        let until = [until, moment.filter(|_| !is_over)].into_iter().flatten().fold(deadline, Instant::min);
        let left = until.saturating_duration_since(now);
        let wanted = if crowded && !is_over { PollFlags::empty() } else { PollFlags::IN };
        let watched = watched.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN));
        let listeners =
            self.listeners.iter().map(|listener| PollFd::from_borrowed_fd(listener.as_fd(), wanted));
        let guests =
            self.guests.iter().map(|guest| PollFd::from_borrowed_fd(guest.stream.as_fd(), PollFlags::IN));
        let mut fds: Vec<PollFd<'_>> = watched.chain(listeners).chain(guests).collect();
        match sync::poll(&mut fds, left) {
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
        for mut guest in std::mem::take(&mut self.guests) {
            let said_more = ready[index];
            index += 1;
            match said_more.then(|| guest.hearing.advance(&mut guest.stream, &self.terms)) {
                Some(Ok(Some(claims))) => news.push(News::Guest(guest.stream, claims)),
                Some(Err(error)) => self.send_away(error, news),
                _ if now >= guest.until() => self.send_away(guest.unproved(), news),
                _ => kept.push(guest),
            }
        }
        self.guests = kept;
    }

    /// Lets in who knocks, but so many at a time that those who are here are heard in between.
    fn let_in(&mut self, ready: &[bool], news: &mut Vec<News>) {
        for index in (0..self.listeners.len()).filter(|&index| ready[index]) {
            for _ in 0..GUESTS_PER_ROUND {
                if self.guests.len() >= GUESTS_MAX && !self.make_room(news) {
                    break;
                }
                match self.listeners[index].accept() {
                    Ok(Some(stream)) => self.guests.push(Guest::new(stream)),
                    Ok(None) => break,
                    Err(error) => {
                        // What is short, such as descriptors, a guest may have.
                        if crowd::is_no_room(&error) && !self.make_room(news) {
                            thread::sleep(RETRY_AFTER);
                        }
                        self.send_away(error, news);
                        break;
                    }
                }
            }
        }
    }

    /// Sends a guest away that has had its moment; false if there is none.
    fn make_room(&mut self, news: &mut Vec<News>) -> bool {
        let Some(index) = crowd::first_to_leave(&self.guests, Instant::now()) else { return false };
        let guest = self.guests.remove(index);
        self.send_away(guest.unproved(), news);
        true
    }

    fn send_away(&mut self, error: Error, news: &mut Vec<News>) {
        self.complaints.hear(&error);
        news.push(News::Stranger(error));
    }
}

/// How long one connection may take to prove itself.
const STRANGER_TIME_MAX: Duration = Duration::from_secs(2);
/// For how long nobody takes its place: any handshake that is under way is over by then.
const MOMENT: Duration = Duration::from_millis(100);
/// Guests at once: enough for a port scan and all ranks of a large job.
const GUESTS_MAX: usize = 256;
const GUESTS_PER_ROUND: usize = 64;
const RETRY_AFTER: Duration = Duration::from_millis(1);

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::auth::{self, Purpose, Secret};
    use std::net::{Ipv4Addr, SocketAddr, TcpStream};

    const CLAIMS: Claims = Claims { purpose: Purpose::Join, rank: 3, ranks: 4, index: 0, session: 0 };

    fn terms() -> Terms {
        Terms { secret: Secret::random().unwrap(), encrypted: false }
    }

    fn porch() -> (Porch, SocketAddr, Terms) {
        let listener = Listener::tcp((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let (address, terms) = (listener.address().unwrap(), terms());
        (Porch::new(vec![listener], terms.clone()), address, terms)
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(500)
    }

    fn call(address: SocketAddr, terms: &Terms) -> Result<()> {
        auth::connect(&mut Stream::dial(address, soon())?, terms, &CLAIMS, soon())
    }

    #[test]
    fn silent_strangers_hold_up_nobody() {
        let (mut porch, address, terms) = porch();
        let _silent: Vec<_> = (0..40).map(|_| TcpStream::connect(address).unwrap()).collect();
        let client = std::thread::spawn(move || call(address, &terms));
        let news = porch.wait(&[], soon()).unwrap();
        assert!(matches!(news[..], [News::Guest(_, CLAIMS)]), "{news:?}");
        client.join().unwrap().unwrap();
    }

    #[test]
    fn a_wrong_secret_is_news_and_no_guest() {
        let (mut porch, address, _) = porch();
        let client = std::thread::spawn(move || call(address, &terms()));
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
