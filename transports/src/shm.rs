//! Links and windows in memory that ranks share: between processes, and between threads.
//!
//! Every rank owns one [`Segment`] and maps everybody's. Its segment holds,
//! in this order: its signal and done counters and its tags (one line each per
//! channel), the FIFOs *into* it from every rank, and its window.

use crate::ring::{Impossible, Receiver, Sender, Slots};
use crate::segment::Segment;
use crate::sync::{AtomicU64, Ordering};
use crate::{Error, Geometry, Head, Link, Result, Tag, Window};
use std::sync::Arc;
use unisono_cuda::{Source, Store, Target, copy_to};

/// Where everything is in a rank's segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    geometry: Geometry,
    rings: usize,
    window: usize,
    bytes: usize,
}

impl Layout {
    /// The layout for `ranks` ranks with these sizes.
    ///
    /// # Errors
    /// [`Error::Misuse`] if that is more memory than there are addresses.
    pub fn new(ranks: usize, geometry: &Geometry) -> Result<Self> {
        let geometry = *geometry;
        let slot = geometry.slot_bytes.next_multiple_of(LINE_BYTES) + SLOT_HEAD_BYTES;
        let ring = geometry.slots.checked_mul(slot).and_then(|slots| slots.checked_add(LINE_BYTES));
        let rings = geometry.channels * LINES_PER_CHANNEL * LINE_BYTES;
        let sum = || {
            let end = ring?.checked_mul(geometry.lanes)?.checked_mul(ranks)?.checked_add(rings)?;
            let window = end.checked_next_multiple_of(PAGE_BYTES)?;
            let bytes = window.checked_add(geometry.window_bytes)?;
            (bytes <= isize::MAX as usize).then_some(Self { geometry, rings, window, bytes })
        };
        sum().ok_or_else(|| Error::Misuse(format!("{ranks} ranks with {geometry:?} need too much memory")))
    }

    /// Bytes of a rank's segment.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn slot_stride(&self) -> usize {
        self.geometry.slot_bytes.next_multiple_of(LINE_BYTES) + SLOT_HEAD_BYTES
    }

    fn ring(&self, from: usize, lane: usize) -> usize {
        let bytes = LINE_BYTES + self.geometry.slots * self.slot_stride();
        self.rings + (from * self.geometry.lanes + lane) * bytes
    }

    fn line(&self, channel: usize, line: usize) -> usize {
        (channel * LINES_PER_CHANNEL + line) * LINE_BYTES
    }
}

/// Links by peer (none to oneself and to ranks elsewhere), and the window where all ranks are at hand.
pub type Connected = (Vec<Option<Box<dyn Link>>>, Option<Box<dyn Window>>);

/// Makes this rank's links and, when all ranks are at hand, its window; `peers[i]` is the segment of rank i.
///
/// # Errors
/// [`Error::Misuse`] if a segment has not the agreed size.
pub fn connect(
    rank: usize,
    ranks: usize,
    geometry: &Geometry,
    own: Segment,
    peers: Vec<Option<Segment>>,
) -> Result<Connected> {
    let mut segments: Vec<_> = peers.into_iter().map(|peer| peer.map(Arc::new)).collect();
    segments[rank] = Some(Arc::new(own));
    connect_shared(rank, ranks, geometry, segments)
}

/// As [`connect`], with segments that other ranks of this process hold as well.
pub(crate) fn connect_shared(
    rank: usize,
    ranks: usize,
    geometry: &Geometry,
    segments: Vec<Option<Arc<Segment>>>,
) -> Result<Connected> {
    let layout = Layout::new(ranks, geometry)?;
    if let Some(segment) = segments.iter().flatten().find(|segment| segment.bytes() != layout.bytes) {
        let text = format!("a segment of {} bytes instead of {}", segment.bytes(), layout.bytes);
        return Err(Error::Misuse(text));
    }
    let own = segments[rank]
        .clone()
        .ok_or_else(|| Error::Misuse("a rank needs a segment of its own".to_owned()))?;
    let link = |(peer, segment): (usize, &Option<Arc<Segment>>)| {
        let segment = segment.as_ref().filter(|_| peer != rank)?;
        Some(Box::new(ShmLink::new(rank, peer, &layout, &own, segment)) as Box<dyn Link>)
    };
    let links = segments.iter().enumerate().map(link).collect();
    let everybody: Option<Vec<_>> = segments.iter().cloned().collect();
    let window = everybody.map(|segments| Box::new(ShmWindow { rank, segments, layout }) as Box<dyn Window>);
    Ok((links, window))
}

/// One FIFO in a segment.
struct Ring {
    segment: Arc<Segment>,
    offset: usize,
    slots: usize,
    slot_bytes: usize,
    slot_stride: usize,
}

impl Ring {
    fn new(layout: &Layout, segment: &Arc<Segment>, from: usize, lane: usize) -> Self {
        Self {
            segment: Arc::clone(segment),
            offset: layout.ring(from, lane),
            slots: layout.geometry.slots,
            slot_bytes: layout.geometry.slot_bytes,
            slot_stride: layout.slot_stride(),
        }
    }

    /// Where the slot of message `number` begins.
    fn slot(&self, number: u64) -> usize {
        self.offset + LINE_BYTES + (number % self.slots as u64) as usize * self.slot_stride
    }

    /// The `index`-th word of that slot: the stamp, the length, the tag.
    fn word(&self, number: u64, index: usize) -> &AtomicU64 {
        word(&self.segment, self.slot(number) + index * 8)
    }

    fn data(&self, number: u64, offset: usize, bytes: usize) -> *mut u8 {
        assert!(offset + bytes <= self.slot_bytes, "{bytes} bytes at {offset} of a slot");
        self.segment.at(self.slot(number) + SLOT_HEAD_BYTES + offset, bytes)
    }

    fn read_head(&self, number: u64, peer: usize) -> Result<Head> {
        let bytes = self.word(number, LENGTH).load(Ordering::Relaxed);
        if bytes > self.slot_bytes as u64 {
            let what = format!("a message of {bytes} bytes in a slot of {}", self.slot_bytes);
            return Err(Error::Corrupt { peer, what });
        }
        let tag = Tag(std::array::from_fn(|index| self.word(number, TAG + index).load(Ordering::Relaxed)));
        Ok(Head { tag, bytes: bytes as usize })
    }
}

impl Slots for Ring {
    fn slots(&self) -> u64 {
        self.slots as u64
    }

    fn stamp(&self, number: u64) -> &AtomicU64 {
        self.word(number, STAMP)
    }

    fn consumed(&self) -> &AtomicU64 {
        word(&self.segment, self.offset)
    }
}

/// FIFOs to and from one rank.
struct ShmLink {
    peer: usize,
    outgoing: Vec<(Ring, Sender)>,
    incoming: Vec<Incoming>,
}

struct Incoming {
    ring: Ring,
    receiver: Receiver,
    /// The head of the message that is next, read once: what the peer writes later does not count.
    head: Option<(u64, Head)>,
}

impl ShmLink {
    fn new(rank: usize, peer: usize, layout: &Layout, own: &Arc<Segment>, theirs: &Arc<Segment>) -> Self {
        let lanes = 0..layout.geometry.lanes;
        let outgoing = |lane| (Ring::new(layout, theirs, rank, lane), Sender::default());
        let incoming = |lane| Incoming {
            ring: Ring::new(layout, own, peer, lane),
            receiver: Receiver::default(),
            head: None,
        };
        Self {
            peer,
            outgoing: lanes.clone().map(outgoing).collect(),
            incoming: lanes.map(incoming).collect(),
        }
    }

    fn next(&mut self, lane: usize) -> Result<Option<(u64, Head)>> {
        let incoming = &mut self.incoming[lane];
        if incoming.head.is_none()
            && let Some(number) = incoming.receiver.arrived(&incoming.ring)
        {
            incoming.head = Some((number, incoming.ring.read_head(number, self.peer)?));
        }
        Ok(incoming.head)
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
        let (ring, sender) = &mut self.outgoing[lane];
        let reserved = sender.reserve(ring).map_err(|Impossible(count)| {
            let what = format!("a FIFO counter of {count}");
            Error::Corrupt { peer: self.peer, what }
        })?;
        let Some(number) = reserved else {
            return Ok(false);
        };
        let mut offset = 0;
        for part in parts {
            let pointer = ring.data(number, offset, part.len());
            // SAFETY: inside the slot by `data`, which is mapped as long as `ring` lives; in this process
            // only this call writes to it.
            copy_to(Store::Cached, unsafe { Target::from_raw(pointer, part.len()) }, part);
            offset += part.len();
        }
        assert_eq!(offset, bytes, "the parts of a message are as long as it");
        ring.word(number, LENGTH).store(bytes as u64, Ordering::Relaxed);
        for (index, &value) in tag.0.iter().enumerate() {
            ring.word(number, TAG + index).store(value, Ordering::Relaxed);
        }
        sender.publish(ring);
        Ok(true)
    }

    fn head(&mut self, lane: usize) -> Result<Option<Head>> {
        Ok(self.next(lane)?.map(|(_, head)| head))
    }

    fn body(&mut self, lane: usize) -> Result<Option<Source<'_>>> {
        let Some((number, head)) = self.next(lane)? else {
            return Ok(None);
        };
        let pointer = self.incoming[lane].ring.data(number, 0, head.bytes);
        // SAFETY: inside the slot by `data`, mapped as long as the link that the result borrows; nobody
        // in this process writes to it.
        Ok(Some(unsafe { Source::from_raw(pointer, head.bytes) }))
    }

    fn release(&mut self, lane: usize) {
        let Incoming { ring, receiver, head } = &mut self.incoming[lane];
        if head.take().is_some() {
            receiver.release(ring);
        }
    }

    fn take(&mut self, lane: usize, target: Target<'_>) -> Result<bool> {
        let Some(body) = self.body(lane)? else {
            return Ok(false);
        };
        copy_to(Store::Cached, target, body);
        self.release(lane);
        Ok(true)
    }

    fn progress(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Everybody's windows, as one rank sees them.
struct ShmWindow {
    rank: usize,
    segments: Vec<Arc<Segment>>,
    layout: Layout,
}

impl ShmWindow {
    fn counter(&self, rank: usize, channel: usize, line: usize) -> &AtomicU64 {
        word(&self.segments[rank], self.layout.line(channel, line))
    }

    fn at(&self, rank: usize, offset: usize, bytes: usize) -> *mut u8 {
        let window_bytes = self.layout.geometry.window_bytes;
        let fits = offset.checked_add(bytes).is_some_and(|end| end <= window_bytes);
        assert!(fits, "{bytes} bytes at {offset} of a window of {window_bytes}");
        self.segments[rank].at(self.layout.window + offset, bytes)
    }

    fn tag_word(&self, rank: usize, channel: usize, bank: usize, index: usize) -> &AtomicU64 {
        word(&self.segments[rank], self.layout.line(channel, TAGS + bank) + index * 8)
    }
}

impl Window for ShmWindow {
    fn bytes(&self) -> usize {
        self.layout.geometry.window_bytes
    }

    fn source(&self, rank: usize, offset: usize, bytes: usize) -> Source<'_> {
        // SAFETY: inside the window by `at`, mapped as long as this lives; only ever reached raw.
        unsafe { Source::from_raw(self.at(rank, offset, bytes), bytes) }
    }

    fn target(&self, rank: usize, offset: usize, bytes: usize) -> Target<'_> {
        // SAFETY: inside the window by `at`, mapped as long as this lives; only ever reached raw.
        unsafe { Target::from_raw(self.at(rank, offset, bytes), bytes) }
    }

    fn signal(&mut self, channel: usize, value: u64) {
        self.counter(self.rank, channel, SIGNALS).store(value, Ordering::Release);
    }

    fn signals(&self, rank: usize, channel: usize) -> u64 {
        self.counter(rank, channel, SIGNALS).load(Ordering::Acquire)
    }

    fn done(&mut self, channel: usize, value: u64) {
        self.counter(self.rank, channel, DONES).store(value, Ordering::Release);
    }

    fn dones(&self, rank: usize, channel: usize) -> u64 {
        self.counter(rank, channel, DONES).load(Ordering::Acquire)
    }

    fn set_tag(&mut self, channel: usize, bank: usize, tag: &Tag) {
        for (index, &value) in tag.0.iter().enumerate() {
            self.tag_word(self.rank, channel, bank, index).store(value, Ordering::Relaxed);
        }
    }

    fn tag(&self, rank: usize, channel: usize, bank: usize) -> Tag {
        Tag(std::array::from_fn(|index| self.tag_word(rank, channel, bank, index).load(Ordering::Relaxed)))
    }
}

fn word(segment: &Segment, offset: usize) -> &AtomicU64 {
    let pointer = segment.at(offset, 8);
    debug_assert_eq!(offset % 8, 0);
    // SAFETY: eight mapped bytes for as long as the segment, aligned because segments begin on pages and
    // every offset is a multiple of eight; all ranks reach these words as atomics only.
    unsafe { AtomicU64::from_ptr(pointer.cast()) }
}

/// Two cache lines: processors fetch lines in pairs.
const LINE_BYTES: usize = 128;
const PAGE_BYTES: usize = 4096;
/// Words in front of a slot's data.
const SLOT_HEAD_BYTES: usize = 64;
const STAMP: usize = 0;
const LENGTH: usize = 1;
const TAG: usize = 2;
/// Lines of a channel.
const SIGNALS: usize = 0;
const DONES: usize = 1;
const TAGS: usize = 2;
const LINES_PER_CHANNEL: usize = 4;
