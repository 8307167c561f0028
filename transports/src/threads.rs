//! Ranks that are threads of one process. They use the same FIFOs and windows as processes, in
//! memory of the process.

use crate::shm::{Connected, Layout, connect_shared};
use crate::sys::segment::Segment;
use crate::wait::AdaptiveWait;
use crate::{ControlChannel, Fabric, Geometry, MAX_CONTROL_MSG_BYTES, PeerEvent, Result};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Creates the fabrics of `ranks` ranks of this process, by rank.
///
/// # Errors
/// Returns an error if the memory cannot be allocated.
pub fn fabrics(ranks: usize, geometry: Geometry) -> Result<Vec<Fabric>> {
    let layout = Layout::new(ranks, &geometry)?;
    let segment = |_| Segment::private_parts(&layout.extents()).map(|segment| Some(Arc::new(segment)));
    let segments: Vec<_> = (0..ranks).map(segment).collect::<Result<_>>()?;
    let boxes: Arc<[Mailbox]> = (0..ranks).map(|_| Mailbox::default()).collect();
    let fabric = |rank| {
        let Connected { links, window, sleepers, .. } =
            connect_shared(rank, ranks, &geometry, segments.clone())?;
        Ok(Fabric {
            rank,
            ranks,
            geometry,
            links,
            window,
            control: Box::new(ThreadControl { rank, mailboxes: Arc::clone(&boxes) }),
            wait: Box::new(AdaptiveWait::new(ranks).woken_by(sleepers)),
            transport: "threads",
            oversubscribed: false,
        })
    };
    (0..ranks).map(fabric).collect()
}

/// Events in transit to one rank.
#[derive(Debug, Default)]
struct Mailbox(Mutex<MailboxState>);

#[derive(Debug, Default)]
struct MailboxState {
    events: VecDeque<PeerEvent>,
    /// The rank has ended, and reads no more events.
    closed: bool,
}

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, MailboxState> {
        // If a thread died while it held the lock, the events are still complete, because pushing
        // and popping do not panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Control channel of one thread: the mailboxes of all ranks.
struct ThreadControl {
    rank: usize,
    mailboxes: Arc<[Mailbox]>,
}

impl ControlChannel for ThreadControl {
    fn post(&mut self, note: &[u8]) {
        debug_assert!(note.len() <= MAX_CONTROL_MSG_BYTES);
        for (_, mailbox) in self.mailboxes.iter().enumerate().filter(|&(peer, _)| peer != self.rank) {
            let mut post = mailbox.lock();
            if !post.closed && post.events.len() < EVENTS_MAX {
                post.events.push_back(PeerEvent::Message { from: self.rank, bytes: note.to_vec() });
            }
        }
    }

    fn poll(&mut self) -> Option<PeerEvent> {
        self.mailboxes[self.rank].lock().events.pop_front()
    }
}

impl Drop for ThreadControl {
    fn drop(&mut self) {
        for (peer, mailbox) in self.mailboxes.iter().enumerate() {
            let mut post = mailbox.lock();
            if peer == self.rank {
                *post = MailboxState { closed: true, ..MailboxState::default() };
            } else if !post.closed {
                post.events.push_back(PeerEvent::Exited { from: self.rank });
            }
        }
    }
}

/// Number of events in a rank's mailbox from which further control messages are dropped. Exits of
/// ranks are never dropped.
const EVENTS_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mailbox_is_bounded_and_still_reports_exit() {
        let boxes: Arc<[Mailbox]> = (0..2).map(|_| Mailbox::default()).collect();
        let [mut talker, mut deaf] = [0, 1].map(|rank| ThreadControl { rank, mailboxes: Arc::clone(&boxes) });
        for _ in 0..2 * EVENTS_MAX {
            talker.post(&[1; 100]);
        }
        drop(talker);
        let heard: Vec<_> = std::iter::from_fn(|| deaf.poll()).collect();
        assert_eq!(heard.len(), EVENTS_MAX + 1);
        assert_eq!(heard.last(), Some(&PeerEvent::Exited { from: 0 }));
    }

    #[test]
    fn exited_ranks_get_no_messages() {
        let boxes: Arc<[Mailbox]> = (0..2).map(|_| Mailbox::default()).collect();
        let [mut talker, gone] = [0, 1].map(|rank| ThreadControl { rank, mailboxes: Arc::clone(&boxes) });
        talker.post(b"lost");
        drop(gone);
        talker.post(b"lost too");
        assert!(boxes[1].lock().events.is_empty());
        assert_eq!(talker.poll(), Some(PeerEvent::Exited { from: 1 }));
    }
}
