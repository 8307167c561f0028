//! Everybody's notes in shared memory.

use super::layout::Layout;
use crate::Footprint;
use crate::notes::{self, NoteBoard, NoteReader};
use crate::segment::Segment;
use crate::sync::AtomicU64;
use std::sync::Arc;

/// The boards of the ranks that share memory, as one of them sees them.
#[derive(Debug)]
pub struct Notes {
    rank: usize,
    segments: Vec<Option<Arc<Segment>>>,
    written: u64,
    readers: Vec<NoteReader>,
}

/// One rank's board in its segment.
struct ShmBoard<'n>(&'n Segment);

impl NoteBoard for ShmBoard<'_> {
    fn stamp(&self, number: u64) -> &AtomicU64 {
        self.0.word(Layout::note(number))
    }

    fn length(&self, number: u64) -> &AtomicU64 {
        self.0.word(Layout::note(number) + 8)
    }

    fn word(&self, number: u64, index: usize) -> &AtomicU64 {
        self.0.word(Layout::note(number) + 16 + index * 8)
    }
}

impl Notes {
    pub(super) fn new(rank: usize, segments: Vec<Option<Arc<Segment>>>) -> Self {
        let readers = vec![NoteReader::default(); segments.len()];
        Self { rank, segments, written: 0, readers }
    }

    /// Number of ranks, those elsewhere included.
    pub(crate) fn ranks(&self) -> usize {
        self.segments.len()
    }

    /// The memory that the boards are in.
    pub(crate) fn footprint(&self) -> Footprint {
        let own = self.segments.get(self.rank).and_then(Option::as_ref);
        Footprint {
            mapped: self.segments.iter().flatten().map(|segment| segment.bytes()).sum(),
            resident: own.map_or(0, |own| own.resident()),
            descriptors: usize::from(own.is_some_and(|own| own.fd().is_some())),
            ..Footprint::default()
        }
    }

    /// Writes a note for all to read.
    pub(crate) fn write(&mut self, note: &[u8]) {
        if let Some(Some(own)) = self.segments.get(self.rank) {
            notes::write(&ShmBoard(own), self.written, note);
            self.written += 1;
        }
    }

    /// The next note of `peer`, if there is one; never one of this rank's own.
    pub(crate) fn read(&mut self, peer: usize) -> Option<Vec<u8>> {
        let segment = self.segments[peer].as_ref().filter(|_| peer != self.rank)?;
        self.readers[peer].read(&ShmBoard(segment))
    }
}
