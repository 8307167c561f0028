//! Ranks as threads of one process: the same FIFOs and windows, in memory of the process.

use crate::pace::Patience;
use crate::segment::Segment;
use crate::shm::{Connected, Layout, connect_shared};
use crate::{Control, Event, Geometry, MAX_NOTE_BYTES, Mesh, Result};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The meshes of `ranks` ranks, by rank.
///
/// # Errors
/// If their memory cannot be had.
pub fn mesh(ranks: usize, geometry: Geometry) -> Result<Vec<Mesh>> {
    let layout = Layout::new(ranks, &geometry)?;
    let segment = |_| Segment::private(layout.bytes()).map(|segment| Some(Arc::new(segment)));
    let segments: Vec<_> = (0..ranks).map(segment).collect::<Result<_>>()?;
    let boxes: Arc<[Mailbox]> = (0..ranks).map(|_| Mailbox::default()).collect();
    let mesh = |rank| {
        let Connected { links, window, .. } = connect_shared(rank, ranks, &geometry, segments.clone())?;
        Ok(Mesh {
            rank,
            ranks,
            geometry,
            links,
            window,
            control: Box::new(Mailboxes { rank, boxes: Arc::clone(&boxes) }),
            pace: Box::new(Patience::new(ranks)),
            transport: "threads",
            crowded: false,
        })
    };
    (0..ranks).map(mesh).collect()
}

/// Events on their way to one rank.
#[derive(Debug, Default)]
struct Mailbox(Mutex<Post>);

#[derive(Debug, Default)]
struct Post {
    events: VecDeque<Event>,
    /// Nobody will look at it any more.
    abandoned: bool,
}

impl Mailbox {
    fn open(&self) -> MutexGuard<'_, Post> {
        // A thread that died with the lock held left whole events: pushing and popping do not panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The control path of one thread: everybody's mailboxes.
struct Mailboxes {
    rank: usize,
    boxes: Arc<[Mailbox]>,
}

impl Control for Mailboxes {
    fn post(&mut self, note: &[u8]) {
        debug_assert!(note.len() <= MAX_NOTE_BYTES);
        for (_, mailbox) in self.boxes.iter().enumerate().filter(|&(peer, _)| peer != self.rank) {
            let mut post = mailbox.open();
            if !post.abandoned && post.events.len() < EVENTS_MAX {
                post.events.push_back(Event::Note { from: self.rank, bytes: note.to_vec() });
            }
        }
    }

    fn poll(&mut self) -> Option<Event> {
        self.boxes[self.rank].open().events.pop_front()
    }
}

impl Drop for Mailboxes {
    fn drop(&mut self) {
        for (peer, mailbox) in self.boxes.iter().enumerate() {
            let mut post = mailbox.open();
            if peer == self.rank {
                *post = Post { abandoned: true, ..Post::default() };
            } else if !post.abandoned {
                post.events.push_back(Event::Closed { from: self.rank });
            }
        }
    }
}

/// Notes that a rank does not read are dropped from here on; news of deaths never are.
const EVENTS_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deaf_rank_costs_a_bounded_mailbox_and_still_hears_of_a_death() {
        let boxes: Arc<[Mailbox]> = (0..2).map(|_| Mailbox::default()).collect();
        let [mut talker, mut deaf] = [0, 1].map(|rank| Mailboxes { rank, boxes: Arc::clone(&boxes) });
        for _ in 0..2 * EVENTS_MAX {
            talker.post(&[1; 100]);
        }
        drop(talker);
        let heard: Vec<_> = std::iter::from_fn(|| deaf.poll()).collect();
        assert_eq!(heard.len(), EVENTS_MAX + 1);
        assert_eq!(heard.last(), Some(&Event::Closed { from: 0 }));
    }

    #[test]
    fn the_dead_get_no_mail() {
        let boxes: Arc<[Mailbox]> = (0..2).map(|_| Mailbox::default()).collect();
        let [mut talker, gone] = [0, 1].map(|rank| Mailboxes { rank, boxes: Arc::clone(&boxes) });
        talker.post(b"lost");
        drop(gone);
        talker.post(b"lost too");
        assert!(boxes[1].open().events.is_empty());
        assert_eq!(talker.poll(), Some(Event::Closed { from: 1 }));
    }
}
