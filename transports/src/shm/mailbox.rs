//! Control messages of all ranks in shared memory.

use crate::Footprint;
use crate::shm::layout::Layout;
use crate::shm::seqlock;
use crate::shm::seqlock::{ControlMailbox, MailboxReader};
use crate::sync::AtomicU64;
use crate::sys::segment::Segment;
use std::sync::Arc;

/// The mailboxes of the ranks that share memory, as one of them sees them.
#[derive(Debug)]
pub struct ControlMailboxes {
    rank: usize,
    segments: Vec<Option<Arc<Segment>>>,
    written: u64,
    readers: Vec<MailboxReader>,
}

/// Mailbox of one rank in its segment.
struct ShmMailbox<'n>(&'n Segment);

impl ControlMailbox for ShmMailbox<'_> {
    fn seq(&self, number: u64) -> &AtomicU64 {
        self.0.word(Layout::mailbox_entry(number))
    }

    fn length(&self, number: u64) -> &AtomicU64 {
        self.0.word(Layout::mailbox_entry(number) + 8)
    }

    fn word(&self, number: u64, index: usize) -> &AtomicU64 {
        self.0.word(Layout::mailbox_entry(number) + 16 + index * 8)
    }
}

impl ControlMailboxes {
    pub(super) fn new(rank: usize, segments: Vec<Option<Arc<Segment>>>) -> Self {
        let readers = vec![MailboxReader::default(); segments.len()];
        Self { rank, segments, written: 0, readers }
    }

    /// Returns the number of ranks, including those on other hosts.
    pub(crate) fn ranks(&self) -> usize {
        self.segments.len()
    }

    /// Returns the memory that the mailboxes occupy.
    pub(crate) fn footprint(&self) -> Footprint {
        let segment = self.segments.get(self.rank).and_then(Option::as_ref);
        Footprint {
            mapped: self.segments.iter().flatten().map(|segment| segment.mapped_bytes()).sum(),
            resident: segment.map_or(0, |segment| segment.resident_bytes()),
            descriptors: usize::from(segment.is_some_and(|segment| segment.fd().is_some())),
            ..Footprint::default()
        }
    }

    /// Writes a message that all ranks can read.
    pub(crate) fn write(&mut self, message: &[u8]) {
        if let Some(Some(segment)) = self.segments.get(self.rank) {
            seqlock::write(&ShmMailbox(segment), self.written, message);
            self.written += 1;
        }
    }

    /// Returns the next message of `peer`, if there is one. This rank's own messages are never
    /// returned.
    pub(crate) fn read(&mut self, peer: usize) -> Option<Vec<u8>> {
        let segment = self.segments[peer].as_ref().filter(|_| peer != self.rank)?;
        self.readers[peer].read(&ShmMailbox(segment))
    }
}
