//! A peer that writes arbitrary words into shared memory while a rank reads it.

use super::layout::Layout;
use super::{Connected, connect_shared};
use crate::shm::seqlock;
use crate::sync::Ordering;
use crate::sys::segment::Segment;
use crate::{Geometry, Link, MAX_CONTROL_MSG_BYTES, Result, Tag};
use std::sync::Arc;
use unisono_reducers::{Source, Target};

/// Parses bytes as the writes of rank 1, one word after the other: the place, and the word. A place
/// that does not exist stands for all places. Rank 0 reads and sends after every word.
pub(crate) fn shm_fifo(bytes: &[u8]) {
    MEMORY.with(|memory| {
        memory.write(usize::MAX, 0);
        let segments = memory.segments.iter().cloned().map(Some).collect();
        let mut connected = connect_shared(0, 2, &GEOMETRY, segments).expect("connected");
        for [place, word @ ..] in bytes.as_chunks::<9>().0 {
            memory.write(usize::from(*place), u64::from_le_bytes(*word));
            recv_and_send(&mut connected);
        }
    });
}

/// Reads all control messages and messages, and sends. A link that fails is not used again.
fn recv_and_send(connected: &mut Connected) {
    while let Some(note) = connected.mailboxes.read(1) {
        assert!(note.len() <= MAX_CONTROL_MSG_BYTES);
    }
    let Some(link) = &mut connected.links[1] else { return };
    if (0..GEOMETRY.lanes).any(|lane| exchange(link.as_mut(), lane).is_err()) {
        connected.links[1] = None;
    }
}

/// Receives all messages of a lane, every second one in place, and sends one.
fn exchange(link: &mut dyn Link, lane: usize) -> Result<()> {
    let mut taken = [0; GEOMETRY.slot_bytes];
    while let Some(head) = link.header(lane)? {
        assert!(head.bytes <= GEOMETRY.slot_bytes);
        if head.tag.0[0].is_multiple_of(2) {
            assert!(link.recv_into(lane, Target::from(&mut taken[..head.bytes]))?);
            continue;
        }
        assert_eq!(link.body(lane)?.map(|body| body.len()), Some(head.bytes));
        link.release(lane);
    }
    link.try_send(lane, &Tag::default(), 1, &mut std::iter::once(Source::from(&[7][..]))).map(drop)
}

/// Memory of two ranks, reused for one input after the other because mapping it takes longer than
/// using it.
struct Memory {
    segments: [Arc<Segment>; 2],
    /// The words that rank 0 reads and rank 1 writes: the owner of the segment, and the offset.
    words: Vec<(usize, usize)>,
}

impl Memory {
    fn new() -> Self {
        let layout = Layout::new(2, &GEOMETRY).expect("a layout");
        let segments = [(); 2].map(|()| Arc::new(Segment::private(layout.bytes()).expect("memory")));
        let mut places = Vec::new();
        for lane in 0..GEOMETRY.lanes {
            let slots = (0..GEOMETRY.slots as u64).map(|number| layout.ring(1, lane) + layout.slot(number));
            // Seq, length, and the first word of the tag.
            places.extend(slots.flat_map(|slot| [0, 8, 16].map(|word| (0, slot + word))));
            places.push((1, layout.ring(0, lane)));
        }
        let entries = (0..seqlock::ENTRIES).map(Layout::mailbox_entry);
        places.extend(entries.flat_map(|entry| [0, 8].map(|word| (1, entry + word))));
        Self { segments, words: places }
    }

    fn write(&self, place: usize, word: u64) {
        let places = self.words.get(place).map_or(&self.words[..], std::slice::from_ref);
        for &(segment, offset) in places {
            self.segments[segment].word(offset).store(word, Ordering::Relaxed);
        }
    }
}

const GEOMETRY: Geometry =
    Geometry { lanes: 3, slots: 2, slot_bytes: 256, signal_lanes: 1, window_bytes: 4096, heap_bytes: 0 };

thread_local! {
    static MEMORY: Memory = Memory::new();
}
