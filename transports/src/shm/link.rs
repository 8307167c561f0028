//! FIFOs of messages in shared memory.
//!
//! A slot is a cache line with seq, length and tag, followed by the data. A body of up to
//! [`INLINE_BYTES`] bytes is in that line as well. So a small message moves between cores as one
//! line.

use super::layout::{Layout, SLOT_HEADER_BYTES};
use crate::shm::sleep::Sleepers;
use crate::shm::spsc::{Invalid, Receiver, Ring, Sender};
use crate::sync::{AtomicU64, Ordering};
use crate::sys::segment::Segment;
use crate::{Error, Header, Link, Result, Tag};
use std::ptr::NonNull;
use std::sync::Arc;
use unisono_reducers::{Source, Store, Target, copy_to};

/// One FIFO in a segment.
struct ShmRing {
    /// Keeps the memory at `base` mapped.
    _segment: Arc<Segment>,
    layout: Layout,
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory belongs to the segment, which can be sent and shared. It is reached as
// atomics, and as bytes that the protocol of the FIFO gives to one side at a time.
unsafe impl Send for ShmRing {}

impl ShmRing {
    fn new(segment: &Arc<Segment>, layout: &Layout, sender: usize, lane: usize) -> Self {
        let bytes = layout.ring_bytes();
        let base = NonNull::new(segment.at(layout.ring(sender, lane), bytes)).expect("mapped memory");
        Self { _segment: Arc::clone(segment), layout: *layout, base, bytes }
    }

    /// Returns the address of `bytes` bytes at `offset`.
    ///
    /// # Panics
    /// Panics if the bytes are not inside the FIFO.
    #[inline]
    fn at(&self, offset: usize, bytes: usize) -> *mut u8 {
        let fits = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        assert!(fits, "{bytes} bytes at {offset} of a FIFO of {}", self.bytes);
        self.base.as_ptr().wrapping_add(offset)
    }

    /// Returns the word at `offset`, a multiple of eight.
    #[inline]
    fn word_at(&self, offset: usize) -> &AtomicU64 {
        let pointer = self.at(offset, size_of::<AtomicU64>());
        debug_assert!(pointer.cast::<AtomicU64>().is_aligned());
        // SAFETY: inside the FIFO by `at`, mapped as long as the segment that this holds. FIFOs,
        // slots and words begin on multiples of eight. All ranks reach words as atomics only.
        unsafe { &*pointer.cast::<AtomicU64>() }
    }

    /// Returns word `index` of the slot of message `number`.
    #[inline]
    fn word(&self, number: u64, index: usize) -> &AtomicU64 {
        self.word_at(self.layout.slot(number) + index * 8)
    }

    /// Returns the address of the body of message `number`, which has `bytes` bytes: at most those
    /// of a slot.
    fn body(&self, number: u64, bytes: usize) -> *mut u8 {
        debug_assert!(bytes <= self.layout.geometry.slot_bytes);
        let head = if bytes <= INLINE_BYTES { INLINE_OFFSET } else { SLOT_HEADER_BYTES };
        self.at(self.layout.slot(number) + head, bytes)
    }

    fn read_header(&self, number: u64) -> std::result::Result<Header, Invalid> {
        let bytes = self.word(number, LENGTH).load(Ordering::Relaxed);
        if bytes > self.layout.geometry.slot_bytes as u64 {
            return Err(Invalid(bytes));
        }
        let tag = Tag(std::array::from_fn(|index| self.word(number, TAG + index).load(Ordering::Relaxed)));
        Ok(Header { tag, bytes: bytes as usize })
    }

    fn write_header(&self, number: u64, head: &Header) {
        self.word(number, LENGTH).store(head.bytes as u64, Ordering::Relaxed);
        for (index, &value) in head.tag.0.iter().enumerate() {
            self.word(number, TAG + index).store(value, Ordering::Relaxed);
        }
    }
}

impl Ring for ShmRing {
    #[inline]
    fn capacity(&self) -> u64 {
        self.layout.geometry.slots as u64
    }

    #[inline]
    fn seq(&self, number: u64) -> &AtomicU64 {
        self.word(number, SEQ)
    }

    #[inline]
    fn consumed(&self) -> &AtomicU64 {
        self.word_at(0)
    }
}

/// FIFOs to and from one rank.
pub(super) struct ShmLink {
    rank: usize,
    peer: usize,
    layout: Layout,
    own: Arc<Segment>,
    theirs: Arc<Segment>,
    /// The ranks that sleep until this one publishes something.
    sleepers: Arc<Sleepers>,
    /// Empty until a lane is used, because a rank has many links and uses only a few.
    lanes: Vec<Lane>,
}

/// The two FIFOs of a lane.
struct Lane {
    outgoing: ShmRing,
    sender: Sender,
    incoming: ShmRing,
    receiver: Receiver,
    /// Header of the next message, read once. Later writes of the peer to it have no effect.
    header: Option<(u64, Header)>,
}

impl ShmLink {
    pub(super) fn new(
        rank: usize,
        peer: usize,
        layout: &Layout,
        own_segment: &Arc<Segment>,
        theirs: &Arc<Segment>,
        sleepers: &Arc<Sleepers>,
    ) -> Self {
        let (layout, own_segment, theirs) = (*layout, Arc::clone(own_segment), Arc::clone(theirs));
        Self {
            rank,
            peer,
            layout,
            own: own_segment,
            theirs,
            sleepers: Arc::clone(sleepers),
            lanes: Vec::new(),
        }
    }

    #[inline]
    fn lane(&mut self, lane: usize) -> Result<&mut Lane> {
        if self.lanes.is_empty() {
            self.make_lanes()?;
        }
        Ok(&mut self.lanes[lane])
    }

    #[cold]
    fn make_lanes(&mut self) -> Result<()> {
        // A rank receives in its own segment and sends into that of the peer, so it needs both.
        self.own.map_part(self.layout.bulk())?;
        self.theirs.map_part(self.layout.bulk())?;
        self.lanes = (0..self.layout.geometry.lanes).map(|lane| self.make_lane(lane)).collect();
        Ok(())
    }

    fn make_lane(&self, lane: usize) -> Lane {
        let ring = |segment, sender| ShmRing::new(segment, &self.layout, sender, lane);
        Lane {
            outgoing: ring(&self.theirs, self.rank),
            sender: Sender::default(),
            incoming: ring(&self.own, self.peer),
            receiver: Receiver::default(),
            header: None,
        }
    }

    #[inline]
    fn next_header(&mut self, lane: usize) -> Result<Option<(u64, Header)>> {
        let peer = self.peer;
        let Lane { incoming, receiver, header: head, .. } = self.lane(lane)?;
        if head.is_none()
            && let Some(number) =
                receiver.arrived(incoming).map_err(|word| protocol_violation(peer, "seq", word))?
        {
            let found =
                incoming.read_header(number).map_err(|word| protocol_violation(peer, "length", word))?;
            *head = Some((number, found));
        }
        Ok(*head)
    }
}

impl Link for ShmLink {
    fn try_send<'a>(
        &mut self,
        lane: usize,
        tag: &Tag,
        bytes: usize,
        parts: &mut dyn Iterator<Item = Source<'a>>,
    ) -> Result<bool> {
        let peer = self.peer;
        let Lane { outgoing, sender, .. } = self.lane(lane)?;
        if bytes > outgoing.layout.geometry.slot_bytes {
            let slot_bytes = outgoing.layout.geometry.slot_bytes;
            return Err(Error::InvalidUsage(format!("a message of {bytes} bytes for slots of {slot_bytes}")));
        }
        let reserved =
            sender.reserve(outgoing).map_err(|word| protocol_violation(peer, "FIFO counter", word))?;
        let Some(number) = reserved else {
            return Ok(false);
        };
        let pointer = outgoing.body(number, bytes);
        // SAFETY: inside the slot by `body`, which is mapped as long as the FIFO lives; in this
        // process only this call writes to it.
        let mut body = unsafe { Target::from_raw(pointer, bytes) };
        let mut filled = 0;
        for part in parts {
            if part.len() > bytes - filled {
                return Err(length_mismatch(bytes));
            }
            copy_to(Store::Cached, body.slice(filled..filled + part.len()), part);
            filled += part.len();
        }
        // A slot that is not published stays free, so the next message overwrites what was copied.
        if filled != bytes {
            return Err(length_mismatch(bytes));
        }
        outgoing.write_header(number, &Header { tag: *tag, bytes });
        sender.publish(outgoing);
        self.sleepers.notify();
        Ok(true)
    }

    fn header(&mut self, lane: usize) -> Result<Option<Header>> {
        Ok(self.next_header(lane)?.map(|(_, head)| head))
    }

    fn body(&mut self, lane: usize) -> Result<Option<Source<'_>>> {
        let Some((number, head)) = self.next_header(lane)? else {
            return Ok(None);
        };
        let pointer = self.lanes[lane].incoming.body(number, head.bytes);
        // SAFETY: inside the slot by `body`, mapped as long as the link that the result borrows;
        // nobody in this process writes to it.
        Ok(Some(unsafe { Source::from_raw(pointer, head.bytes) }))
    }

    fn release(&mut self, lane: usize) {
        // Without lanes there is no message to release.
        let Some(Lane { incoming, receiver, header: head, .. }) = self.lanes.get_mut(lane) else { return };
        // Only a message whose header was read is released. Otherwise, a message that has arrived
        // since would be lost unread.
        if head.take().is_some() {
            receiver.release(incoming);
            self.sleepers.notify();
        }
    }

    fn recv_into(&mut self, lane: usize, target: Target<'_>) -> Result<bool> {
        let Some(body) = self.body(lane)? else {
            return Ok(false);
        };
        if body.len() != target.len() {
            let text = format!("{} bytes to take a message of {}", target.len(), body.len());
            return Err(Error::InvalidUsage(text));
        }
        // The copy ends before the release, because the sender may then overwrite the slot.
        copy_to(Store::Cached, target, body);
        self.release(lane);
        Ok(true)
    }

    fn progress(&mut self) -> Result<()> {
        Ok(())
    }
}

fn protocol_violation(peer: usize, what: &str, Invalid(value): Invalid) -> Error {
    Error::ProtocolViolation { peer, what: format!("a {what} of {value:#x}") }
}

fn length_mismatch(bytes: usize) -> Error {
    Error::InvalidUsage(format!("the parts of a message of {bytes} bytes have another length"))
}

/// Index of each field in the words of a slot's line.
const SEQ: usize = 0;
const LENGTH: usize = 1;
const TAG: usize = 2;
/// Offset of a small body in the line. The next constant is the length of the longest such body.
const INLINE_OFFSET: usize = 8 * (TAG + 4);
const INLINE_BYTES: usize = SLOT_HEADER_BYTES - INLINE_OFFSET;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Geometry;

    const GEOMETRY: Geometry =
        Geometry { lanes: 2, slots: 2, slot_bytes: 128, signal_lanes: 1, window_bytes: 0, heap_bytes: 0 };

    struct Pair {
        layout: Layout,
        segments: [Arc<Segment>; 2],
        near: ShmLink,
        far: ShmLink,
    }

    fn pair() -> Pair {
        let layout = Layout::new(2, &GEOMETRY).unwrap();
        let segments = [(); 2].map(|()| Arc::new(Segment::private(layout.bytes()).unwrap()));
        let link = |rank: usize| {
            let (own_segment, theirs) = (&segments[rank], &segments[1 - rank]);
            let sleepers =
                Arc::new(Sleepers::new(rank, own_segment, segments.iter().cloned().map(Some).collect()));
            ShmLink::new(rank, 1 - rank, &layout, own_segment, theirs, &sleepers)
        };
        let (local, remote) = (link(0), link(1));
        Pair { layout, segments, near: local, far: remote }
    }

    fn send(link: &mut ShmLink, bytes: usize) -> Result<bool> {
        let body = vec![9; bytes];
        link.try_send(1, &Tag([1; 4]), bytes, &mut std::iter::once(Source::from(&body[..])))
    }

    /// Returns the header that rank 1 finds if rank 0 writes `value` into word `index` of its first
    /// slot.
    fn found(index: usize, value: u64) -> Result<Option<Header>> {
        let Pair { layout, segments, mut near, mut far } = pair();
        assert!(send(&mut near, 100).unwrap());
        segments[1].word(layout.ring(0, 1) + layout.slot(0) + index * 8).store(value, Ordering::Release);
        far.header(1)
    }

    #[test]
    fn invalid_headers_blame_the_sender() {
        assert!(matches!(found(LENGTH, 128), Ok(Some(Header { bytes: 128, .. }))));
        assert!(matches!(found(SEQ, 0), Ok(None)));
        for (index, value) in [(LENGTH, 129), (LENGTH, u64::MAX), (SEQ, 2), (SEQ, u64::MAX)] {
            assert!(
                matches!(found(index, value), Err(Error::ProtocolViolation { peer: 0, .. })),
                "{index} {value}"
            );
        }
    }

    #[test]
    fn invalid_counters_blame_the_receiver() {
        for (value, sound) in [(0, true), (2, true), (3, false), (u64::MAX, false)] {
            let Pair { layout, segments, mut near, .. } = pair();
            assert!(send(&mut near, 1).unwrap() && send(&mut near, 1).unwrap());
            segments[1].word(layout.ring(0, 1)).store(value, Ordering::Release);
            match send(&mut near, 1) {
                Ok(sent) => assert!(sound && sent == (value == 2)),
                Err(error) => assert!(!sound && matches!(error, Error::ProtocolViolation { peer: 1, .. })),
            }
        }
    }

    #[test]
    fn header_is_read_once() {
        let Pair { layout, segments, mut near, mut far } = pair();
        assert!(send(&mut near, 100).unwrap());
        assert_eq!(far.header(1).unwrap().unwrap().bytes, 100);
        segments[1].word(layout.ring(0, 1) + layout.slot(0) + LENGTH * 8).store(1 << 40, Ordering::Release);
        assert_eq!(far.body(1).unwrap().unwrap().len(), 100);
    }

    #[test]
    fn length_mismatch_is_invalid_usage() {
        let Pair { mut near, mut far, .. } = pair();
        assert!(matches!(send(&mut near, 129), Err(Error::InvalidUsage(_))));
        for bytes in [9, 11] {
            let body = [1; 10];
            let sent =
                near.try_send(1, &Tag::default(), bytes, &mut std::iter::once(Source::from(&body[..])));
            assert!(matches!(sent, Err(Error::InvalidUsage(_))));
        }
        assert_eq!(far.header(1).unwrap(), None);
        assert!(send(&mut near, 10).unwrap());
        let taken = far.recv_into(1, Target::from(&mut [0; 9][..]));
        assert!(matches!(taken, Err(Error::InvalidUsage(_))));
        assert!(far.recv_into(1, Target::from(&mut [0; 10][..])).unwrap());
    }
}
