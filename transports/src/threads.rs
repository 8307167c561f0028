//! Ranks as threads of one process: the same FIFOs and windows, in memory of the process.

use crate::pace::Patience;
use crate::segment::Segment;
use crate::shm::{Layout, connect_shared};
use crate::{Control, Event, Geometry, Mesh, Result};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

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
        let (links, window) = connect_shared(rank, ranks, &geometry, segments.clone())?;
        Ok(Mesh {
            rank,
            ranks,
            geometry,
            links,
            window,
            control: Box::new(Mailboxes { rank, boxes: Arc::clone(&boxes) }),
            pace: Box::new(Patience::new(ranks)),
            transport: "threads",
        })
    };
    (0..ranks).map(mesh).collect()
}

/// Events on their way to one rank.
type Mailbox = Mutex<VecDeque<Event>>;

/// The control path of one thread: everybody's mailboxes.
struct Mailboxes {
    rank: usize,
    boxes: Arc<[Mailbox]>,
}

impl Mailboxes {
    fn deliver(&self, peer: usize, event: Event) {
        self.boxes[peer].lock().unwrap_or_else(PoisonError::into_inner).push_back(event);
    }
}

impl Control for Mailboxes {
    fn post(&mut self, peer: usize, note: &[u8]) {
        self.deliver(peer, Event::Note { from: self.rank, bytes: note.to_vec() });
    }

    fn poll(&mut self) -> Option<Event> {
        self.boxes[self.rank].lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

impl Drop for Mailboxes {
    fn drop(&mut self) {
        for peer in (0..self.boxes.len()).filter(|&peer| peer != self.rank) {
            self.deliver(peer, Event::Closed { from: self.rank });
        }
    }
}
