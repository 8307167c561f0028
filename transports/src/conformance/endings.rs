//! Cases about notes, and about ranks that are gone.

use super::side::{Side, run};
use super::{Maker, SMALL, pattern};
use crate::{Error, Event, Geometry, MAX_NOTE_BYTES, Tag};
use std::time::{Duration, Instant};

/// How soon the others must know.
const SOON: Duration = Duration::from_secs(1);

/// Notes of every size arrive whole and, of one sender, in order.
pub fn notes_arrive_in_order(make: Maker<'_>) {
    const LENGTHS: [usize; 6] = [0, 1, 40, MAX_NOTE_BYTES, 2, MAX_NOTE_BYTES - 1];
    run(make, 3, SMALL, |mut side| {
        let (rank, ranks) = (side.mesh.rank, side.mesh.ranks);
        for (index, &bytes) in LENGTHS.iter().enumerate() {
            side.mesh.control.post(&pattern((rank * 8 + index) as u64, bytes));
        }
        let mut heard = vec![0; ranks];
        for _ in 0..LENGTHS.len() * (ranks - 1) {
            let Event::Note { from, bytes } = side.event() else { panic!("nobody has left") };
            let index = heard[from];
            assert!(bytes == pattern((from * 8 + index) as u64, LENGTHS[index]), "note {index} of {from}");
            heard[from] += 1;
        }
        assert_eq!(heard[rank], 0);
        ((), Some(side))
    });
}

/// Everybody learns of a death, once, after the notes that came before it.
pub fn a_death_is_told_once_and_soon(make: Maker<'_>) {
    run(make, 3, SMALL, |mut side| {
        if side.mesh.rank == 1 {
            side.mesh.control.post(b"farewell");
            return ((), None);
        }
        let begun = Instant::now();
        for news in [Event::Note { from: 1, bytes: b"farewell".to_vec() }, Event::Closed { from: 1 }] {
            let of_the_dead = std::iter::repeat_with(|| side.event()).find(|event| !is_of_the_living(event));
            assert_eq!(of_the_dead, Some(news));
        }
        assert!(begun.elapsed() < SOON, "the news took {:?}", begun.elapsed());
        // Notes to the dead are dropped without harm, and its death is no news any more.
        let begun = Instant::now();
        for rounds in 1.. {
            side.mesh.control.post(&[7; MAX_NOTE_BYTES]);
            let news = std::iter::from_fn(|| side.mesh.control.poll()).find(|event| !is_of_the_living(event));
            assert_eq!(news, None);
            side.idle(rounds);
            if begun.elapsed() > Duration::from_millis(20) {
                break;
            }
        }
        ((), Some(side))
    });
}

fn is_of_the_living(event: &Event) -> bool {
    matches!(event, Event::Note { from: 0 | 2, .. })
}

/// What was sent before a rank left can be received after it left.
pub fn last_words_outlive_their_sender(make: Maker<'_>) {
    let geometry = Geometry { slot_bytes: 4096, ..SMALL };
    run(make, 2, geometry, |mut side| {
        let bodies: Vec<_> = (0..geometry.slots).map(|index| pattern(index as u64, 4000)).collect();
        if side.mesh.rank == 1 {
            for (index, body) in bodies.iter().enumerate() {
                side.send(0, 2, Tag([index as u64; 4]), &[body]);
            }
            return ((), None);
        }
        assert_eq!(side.event(), Event::Closed { from: 1 });
        for (index, body) in bodies.iter().enumerate() {
            let found = side.receive(1, 2, index % 2 == 0);
            assert!(found == (Tag([index as u64; 4]), body.clone()), "message {index}");
        }
        ((), Some(side))
    });
}

/// Calls about a peer that is gone return at once; they may say that it is lost.
pub fn a_dead_peer_holds_up_nobody(make: Maker<'_>) {
    run(make, 2, SMALL, |mut side| {
        if side.mesh.rank == 1 {
            return ((), None);
        }
        assert_eq!(side.event(), Event::Closed { from: 1 });
        let begun = Instant::now();
        let body = pattern(1, SMALL.slot_bytes);
        for _ in 0..1000 {
            for lane in 0..SMALL.lanes {
                sound_or_lost(side.try_send(1, lane, Tag::default(), &[&body]));
                sound_or_lost(side.link(1).head(lane).map(|head| assert_eq!(head, None)));
                sound_or_lost(side.link(1).body(lane).map(|body| assert!(body.is_none())));
                sound_or_lost(side.link(1).progress());
            }
        }
        assert!(begun.elapsed() < SOON, "calls to a dead peer took {:?}", begun.elapsed());
        ((), Some::<Side>(side))
    });
}

fn sound_or_lost<T>(result: crate::Result<T>) {
    match result {
        Ok(_) | Err(Error::Lost { peer: 1, .. }) => {}
        Err(error) => panic!("{error}"),
    }
}
