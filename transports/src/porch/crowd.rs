//! Who waits on a porch, who leaves first when it is full, and how much of that is said.

use super::{MOMENT, STRANGER_TIME_MAX};
use crate::Error;
use crate::auth::{HUNG_UP, Hearing};
use crate::limits::is_shortage;
use crate::socket::Stream;
use crate::sync::Instant;
use rustix::io::Errno;
use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::time::Duration;

/// A connection that has yet to prove itself.
#[derive(Debug)]
pub(super) struct Guest {
    pub(super) stream: Stream,
    pub(super) hearing: Hearing,
    pub(super) came: Instant,
    /// None for one of this host that came by a local socket.
    address: Option<IpAddr>,
}

// With what it has said, a hundred bytes, and room to grow.
const _: () = assert!(size_of::<Guest>() + 512 <= 4096, "a guest is to cost less than 4 KiB");

impl Guest {
    pub(super) fn new(stream: Stream) -> Self {
        let address = stream.tcp().and_then(|socket| socket.peer_addr().ok()).map(|address| address.ip());
        Self { stream, hearing: Hearing::default(), came: Instant::now(), address }
    }

    /// When it must have proved itself.
    pub(super) fn until(&self) -> Instant {
        self.came + STRANGER_TIME_MAX
    }

    /// Why it has to go.
    pub(super) fn unproved(&self) -> Error {
        let what = format!("{} did not prove itself in {:?}", self.stream.peer(), self.came.elapsed());
        Error::Timeout { what }
    }
}

/// The guest whose place is given to the next: of those that have had their moment, the oldest from the address with
/// most guests. `guests` are in the order in which they came.
pub(super) fn first_to_leave(guests: &[Guest], now: Instant) -> Option<usize> {
    let mut shares: HashMap<Option<IpAddr>, usize> = HashMap::new();
    guests.iter().for_each(|guest| *shares.entry(guest.address).or_default() += 1);
    let had_its_moment = |guest: &Guest| now >= guest.came + MOMENT;
    let candidates = guests.iter().enumerate().filter(|(_, guest)| had_its_moment(guest));
    candidates.rev().max_by_key(|(_, guest)| shares[&guest.address]).map(|(index, _)| index)
}

/// Whether the system had not enough of something to let anybody in.
pub(super) fn is_no_room(error: &Error) -> bool {
    let Error::System { source, .. } = error else { return false };
    is_shortage(source) || matches!(Errno::from_io_error(source), Some(Errno::NOBUFS | Errno::NOMEM))
}

/// What the log hears of strangers: the first few of a while, and how many there were beside.
#[derive(Debug, Default)]
pub(super) struct Complaints {
    since: Option<Instant>,
    said: usize,
    unsaid: usize,
    has_met: bool,
}

impl Complaints {
    /// Those of a rank that has met the others: who hangs up now has no other secret, or is nobody's concern.
    pub(super) fn of_one_who_has_met() -> Self {
        Self { has_met: true, ..Self::default() }
    }

    /// One more; whether it was said.
    pub(super) fn hear(&mut self, error: &Error) -> bool {
        if self.has_met && is_hang_up(error) {
            tracing::debug!(%error, "somebody left before it had come in");
            return false;
        }
        let now = Instant::now();
        if self.since.is_none_or(|since| now - since >= WHILE) {
            if self.unsaid > 0 {
                tracing::warn!("{} more strangers were sent away", self.unsaid);
            }
            *self = Self { since: Some(now), has_met: self.has_met, ..Self::default() };
        }
        if self.said == SAID_MAX {
            self.unsaid += 1;
            return false;
        }
        self.said += 1;
        tracing::warn!(%error, "a stranger was sent away");
        true
    }
}

/// Ranks do so, too: those that find their peer's call at their own door, and those that end.
fn is_hang_up(error: &Error) -> bool {
    match error {
        Error::Closed { .. } => true,
        Error::Refused { what, .. } => what == HUNG_UP,
        Error::System { source, .. } => source.kind() == ErrorKind::ConnectionReset,
        _ => false,
    }
}

const WHILE: Duration = Duration::from_secs(10);
const SAID_MAX: usize = 8;

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    /// Guests that have been here for so long, each with the last number of its address.
    fn guests(who: &[(u8, Duration)]) -> Vec<Guest> {
        let now = Instant::now();
        let guest = |&(address, age): &(u8, Duration)| Guest {
            came: now - age,
            address: Some(Ipv4Addr::new(192, 0, 2, address).into()),
            ..Guest::new(Stream::Unix(UnixStream::pair().unwrap().0))
        };
        who.iter().map(guest).collect()
    }

    #[test]
    fn the_oldest_of_the_address_with_most_guests_leaves_first_but_nobody_in_its_moment() {
        let (old, older, new) = (2 * MOMENT, 3 * MOMENT, MOMENT / 2);
        let first = |who: &[(u8, Duration)]| first_to_leave(&guests(who), Instant::now());
        assert_eq!(first(&[(1, older), (2, older), (2, old)]), Some(1));
        assert_eq!(first(&[(1, older), (1, old), (2, old)]), Some(0));
        assert_eq!(first(&[(1, older), (2, new), (2, new)]), Some(0));
        assert_eq!(first(&[(2, new), (2, new)]), None);
        assert_eq!(first(&[]), None);
    }

    #[test]
    fn a_thousand_strangers_are_a_few_lines() {
        let mut complaints = Complaints::default();
        let error = Error::Timeout { what: "silence".to_owned() };
        let said = (0..1000).filter(|_| complaints.hear(&error)).count();
        assert_eq!((said, complaints.unsaid), (SAID_MAX, 1000 - SAID_MAX));
        complaints.since = Some(Instant::now() - WHILE);
        assert!(complaints.hear(&error) && complaints.unsaid == 0, "a new while begins");
    }

    #[test]
    fn who_hangs_up_once_all_have_met_is_no_stranger_to_complain_of() {
        let reset = std::io::Error::from(ErrorKind::ConnectionReset);
        let errors = [
            Error::Refused { peer: "somebody".to_owned(), what: HUNG_UP.to_owned() },
            Error::Closed { peer: "somebody".to_owned() },
            Error::System { what: "cannot read".to_owned(), source: reset },
        ];
        let (mut met, mut meeting) = (Complaints::of_one_who_has_met(), Complaints::default());
        errors.iter().for_each(|error| assert!(!met.hear(error) && meeting.hear(error), "{error}"));
        assert_eq!((met.said, met.unsaid), (0, 0));
        assert!(met.hear(&Error::Refused { peer: "somebody".to_owned(), what: "a wrong secret".to_owned() }));
    }

    #[test]
    fn a_guest_is_known_by_its_address() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(Guest::new(stream.into()).address, Some(Ipv4Addr::LOCALHOST.into()));
    }
}
