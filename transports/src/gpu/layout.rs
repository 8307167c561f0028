//! Layout of a rank's *peer memory*, which is the memory that its peers access.
//!
//! The layout is pure arithmetic. Every rank computes all offsets in the peer memory of every rank
//! by itself. So a peer supplies no address except the start of its peer memory.

use crate::{Error, Result};
use std::ops::Range;
use unisono_cuda::device::{OneShotArgs, Port, Protocol, ScheduleArgs};

/// Sizes on which all GPU ranks agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceGeometry {
    /// Number of ranks.
    pub ranks: usize,
    /// Slices of one operation in flight at once.
    pub channels: usize,
    /// Messages that one FIFO holds. There are at least three, because a message may be received
    /// and sent on at once.
    pub slots: usize,
    /// Data of the largest message in bytes, which is a number of whole lines.
    pub slot_bytes: usize,
    /// Data of the largest message in which each word has a flag, in bytes.
    pub ll_bytes: usize,
    /// Bytes of a rank's window, which is a number of whole lines.
    pub window_bytes: usize,
    /// True if messages with flags also use [`Protocol::Ll128`].
    pub ll128: bool,
}

impl DeviceGeometry {
    /// Returns the number of independent FIFOs in each direction between two ranks. Each channel
    /// has its own, and one more serves sends and receives outside any schedule.
    pub fn lanes(&self) -> usize {
        self.channels * ScheduleArgs::LANES + 1
    }

    /// Returns the bytes of one slot with its header, or 0 for a protocol that is not used.
    pub fn slot_stride(&self, protocol: Protocol) -> usize {
        if !self.uses(protocol) {
            return 0;
        }
        Port::slot_bytes(protocol, 1, self.message_bytes(protocol)).next_multiple_of(CACHE_LINE_BYTES)
    }

    /// Returns the data bytes of the largest message of a protocol.
    pub fn message_bytes(&self, protocol: Protocol) -> usize {
        if protocol == Protocol::Simple { self.slot_bytes } else { self.ll_bytes }
    }

    /// Returns the bytes of one of the two halves of a channel's window.
    pub fn parity_bytes(&self) -> usize {
        self.window_bytes / (2 * self.channels) / CACHE_LINE_BYTES * CACHE_LINE_BYTES
    }

    /// Returns the geometry with messages short enough that a peer memory takes at most
    /// [`PEER_MEMORY_BYTES_MAX`] bytes in addition to the window.
    ///
    /// Every rank has FIFOs from every other, so their messages become shorter as ranks are added.
    /// The result depends only on the geometry. The memory is larger only if even messages of one
    /// cache line take too much.
    #[must_use]
    pub fn fit(mut self) -> Self {
        loop {
            let [messages, lines] = self.message_memory();
            let shorter =
                |bytes: usize| (bytes / 2 / CACHE_LINE_BYTES * CACHE_LINE_BYTES).max(CACHE_LINE_BYTES);
            let (slot, ll) = (shorter(self.slot_bytes), shorter(self.ll_bytes));
            let fixed = self.counter_bytes().saturating_add(self.inbox_bytes());
            let total = messages.saturating_add(lines).saturating_add(fixed);
            if total <= PEER_MEMORY_BYTES_MAX || (slot, ll) == (self.slot_bytes, self.ll_bytes) {
                return self;
            }
            if ll >= self.ll_bytes || slot < self.slot_bytes && messages >= lines {
                self.slot_bytes = slot;
            } else {
                self.ll_bytes = ll;
            }
        }
    }

    /// Returns the bytes of the FIFOs of whole messages, and those of FIFOs and mailboxes of lines.
    fn message_memory(&self) -> [usize; 2] {
        let fifos = self.fifo_slots();
        let slots = |protocol| fifos.saturating_mul(self.slot_stride(protocol));
        let lines = [Protocol::Ll, Protocol::Ll128];
        let lines = lines.map(|protocol| slots(protocol).saturating_add(self.mailbox_bytes(protocol)));
        [slots(Protocol::Simple), lines[0].saturating_add(lines[1])]
    }

    /// Returns the slots of all FIFOs into a rank.
    fn fifo_slots(&self) -> usize {
        self.lanes() * self.ranks.saturating_sub(1) * self.slots
    }

    fn counter_bytes(&self) -> usize {
        PROTOCOLS * self.lanes() * self.ranks * 2 * CACHE_LINE_BYTES
    }

    fn inbox_bytes(&self) -> usize {
        let words = ScheduleArgs::inbox_words(self.channels, self.ranks);
        (words * WORD_BYTES).next_multiple_of(CACHE_LINE_BYTES)
    }

    fn uses(&self, protocol: Protocol) -> bool {
        self.ll128 || protocol != Protocol::Ll128
    }

    fn mailbox_bytes(&self, protocol: Protocol) -> usize {
        let bytes = || OneShotArgs::mailbox_bytes(protocol, self.ranks, self.channels, self.ll_bytes);
        if self.uses(protocol) { bytes() } else { 0 }
    }

    fn is_valid(&self) -> bool {
        let in_lines = |bytes: usize| bytes.is_multiple_of(CACHE_LINE_BYTES);
        let is_used = self.ranks > 0 && self.channels > 0 && self.slots >= MIN_SLOTS;
        is_used
            && self.slot_bytes > 0
            && self.ll_bytes > 0
            && [self.slot_bytes, self.ll_bytes, self.window_bytes].into_iter().all(in_lines)
            && [self.ranks, self.channels, self.slots].into_iter().all(|count| count < MAX_COUNT)
            && [self.slot_bytes, self.ll_bytes, self.window_bytes].into_iter().all(|bytes| bytes < MAX_BYTES)
    }
}

/// Offsets of all parts of a peer memory, in bytes.
///
/// The first parts are the counters, with one counter in each line, then the signals, and then the
/// window. After them come the slots of the FIFOs to this rank and the mailboxes, for each
/// protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    geometry: DeviceGeometry,
    inbox: usize,
    window: usize,
    slots: [usize; PROTOCOLS],
    mailboxes: [usize; PROTOCOLS],
    bytes: usize,
}

impl Layout {
    /// Computes the layout of the peer memory of each rank.
    ///
    /// # Errors
    /// Returns an error if a size is invalid, or if the total is larger than memory can be.
    pub fn new(sizes: DeviceGeometry) -> Result<Self> {
        let refused = || Error::InvalidUsage(format!("{sizes:?} are no sizes of an arena"));
        if !sizes.is_valid() {
            return Err(refused());
        }
        let inbox = sizes.counter_bytes();
        let window = inbox + sizes.inbox_bytes();
        let fifos = sizes.fifo_slots();
        let mut layout = Self {
            geometry: sizes,
            inbox,
            window,
            slots: [0; PROTOCOLS],
            mailboxes: [0; PROTOCOLS],
            bytes: 0,
        };
        let mut end = window + sizes.window_bytes;
        let mut place = |bytes: Option<usize>| {
            let start = end;
            end = bytes.and_then(|bytes| start.checked_add(bytes)).ok_or_else(refused)?;
            Ok::<usize, Error>(start)
        };
        for (protocol, start) in Protocol::ALL.into_iter().zip(&mut layout.slots) {
            *start = place(sizes.slot_stride(protocol).checked_mul(fifos))?;
        }
        for (protocol, start) in Protocol::ALL.into_iter().zip(&mut layout.mailboxes) {
            *start = place(Some(sizes.mailbox_bytes(protocol)))?;
        }
        layout.bytes = end;
        if end <= isize::MAX as usize { Ok(layout) } else { Err(refused()) }
    }

    /// Returns the sizes for which the layout was computed.
    pub fn geometry(&self) -> &DeviceGeometry {
        &self.geometry
    }

    /// Returns the bytes of a peer memory.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Counter of messages from `peer` on `lane` that have arrived. `peer` writes it.
    pub fn tail(&self, protocol: Protocol, lane: usize, peer: usize) -> Range<usize> {
        self.counter(protocol, 2 * self.port_index(lane, peer))
    }

    /// Counter of messages to `peer` on `lane` that it has taken. `peer` writes it.
    pub fn head(&self, protocol: Protocol, lane: usize, peer: usize) -> Range<usize> {
        self.counter(protocol, 2 * self.port_index(lane, peer) + 1)
    }

    /// Signals and completion counters of the peers, as
    /// [`PeerWindow`](unisono_cuda::device::PeerWindow) describes.
    pub fn inbox(&self) -> Range<usize> {
        self.inbox
            ..self.inbox + WORD_BYTES * ScheduleArgs::inbox_words(self.geometry.channels, self.geometry.ranks)
    }

    /// The window.
    pub fn window(&self) -> Range<usize> {
        self.window..self.slots[0]
    }

    /// Mailbox for one-shot reductions in lines of a protocol, with a part for each rank.
    pub fn mailbox(&self, protocol: Protocol) -> Range<usize> {
        let start = self.mailboxes[protocol as usize];
        start..start + self.geometry.mailbox_bytes(protocol)
    }

    /// Returns the slots of messages from `peer` on `lane`, in the peer memory of `rank`.
    ///
    /// # Panics
    /// Panics if the two ranks are the same, or if there is no such rank or lane.
    pub fn slots(&self, protocol: Protocol, rank: usize, lane: usize, peer: usize) -> Range<usize> {
        assert!(
            peer != rank && peer < self.geometry.ranks && lane < self.geometry.lanes(),
            "FIFO {lane} from {peer}"
        );
        let bytes = self.geometry.slots * self.geometry.slot_stride(protocol);
        let fifo = lane * (self.geometry.ranks - 1) + peer - usize::from(peer > rank);
        let start = self.slots[protocol as usize] + fifo * bytes;
        start..start + bytes
    }

    /// Returns the index of the FIFO pair between this rank and `peer` on `lane`.
    ///
    /// # Panics
    /// Panics if there is no such rank or lane.
    pub fn port_index(&self, lane: usize, peer: usize) -> usize {
        assert!(peer < self.geometry.ranks && lane < self.geometry.lanes(), "lane {lane} to {peer}");
        lane * self.geometry.ranks + peer
    }

    fn counter(&self, protocol: Protocol, index: usize) -> Range<usize> {
        let line = protocol as usize * 2 * self.geometry.lanes() * self.geometry.ranks + index;
        line * CACHE_LINE_BYTES..line * CACHE_LINE_BYTES + WORD_BYTES
    }
}

/// Largest number of bytes of a peer memory without its window, for up to 1,024 ranks on 8
/// channels.
pub const PEER_MEMORY_BYTES_MAX: usize = 128 << 20;
/// Alignment of every part.
pub const CACHE_LINE_BYTES: usize = 64;
const WORD_BYTES: usize = 8;
const PROTOCOLS: usize = Protocol::ALL.len();
const MIN_SLOTS: usize = 3;
/// Limit of each count, so that products of sizes fit in a word.
const MAX_COUNT: usize = 1 << 12;
const MAX_BYTES: usize = 1 << 31;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all_ranges(layout: &Layout, rank: usize) -> Vec<Range<usize>> {
        let (ranks, lanes) = (layout.geometry().ranks, layout.geometry().lanes());
        let mut places = vec![layout.inbox(), layout.window()];
        for protocol in Protocol::ALL {
            places.push(layout.mailbox(protocol));
            for (lane, peer) in (0..lanes).flat_map(|lane| (0..ranks).map(move |peer| (lane, peer))) {
                places.push(layout.tail(protocol, lane, peer));
                places.push(layout.head(protocol, lane, peer));
                if peer != rank {
                    places.push(layout.slots(protocol, rank, lane, peer));
                }
            }
        }
        places
    }

    const GEOMETRY: DeviceGeometry = DeviceGeometry {
        ranks: 2,
        channels: 1,
        slots: 3,
        slot_bytes: 64,
        ll_bytes: 64,
        window_bytes: 0,
        ll128: true,
    };

    proptest! {
        #[test]
        fn layout_ranges_are_disjoint_and_in_bounds(
            ranks in 1usize..9, channels in 1usize..5, slots in 3usize..5, lines in 1usize..9, low in 1usize..4,
            window in 0usize..9, wide_lines: bool
        ) {
            let bytes = |lines| lines * CACHE_LINE_BYTES;
            let (slot_bytes, low_bytes, window_bytes) = (bytes(lines), bytes(low), bytes(window));
            let sizes = DeviceGeometry { ranks, channels, slots, slot_bytes, ll_bytes: low_bytes, window_bytes, ll128: wide_lines };
            let layout = Layout::new(sizes).unwrap();
            prop_assert_eq!(layout.mailbox(Protocol::Ll128).is_empty(), !wide_lines);
            for rank in 0..ranks {
                let mut found = all_ranges(&layout, rank);
                found.sort_by_key(|place| (place.start, place.end));
                prop_assert!(found.windows(2).all(|pair| pair[0].end <= pair[1].start));
                prop_assert!(found.iter().all(|place| place.start % CACHE_LINE_BYTES == 0));
                prop_assert_eq!(found.last().unwrap().end.next_multiple_of(CACHE_LINE_BYTES), layout.bytes());
            }
        }
    }

    #[test]
    fn fit_bounds_memory_for_any_number_of_ranks() {
        let default = DeviceGeometry {
            channels: 8,
            slots: 4,
            slot_bytes: 128 << 10,
            ll_bytes: 4 << 10,
            window_bytes: 4 << 20,
            ..GEOMETRY
        };
        let fit = |ranks| DeviceGeometry { ranks, ..default }.fit();
        let sizes = |ranks| (fit(ranks).slot_bytes, fit(ranks).ll_bytes);
        assert_eq!([2, 8].map(sizes), [(128 << 10, 4 << 10); 2], "few ranks have the sizes of the settings");
        assert_eq!(sizes(16), (64 << 10, 4 << 10));
        assert_eq!(sizes(66), (16 << 10, 2 << 10));
        assert_eq!(sizes(1024), (512, 128));
        for ranks in 1..=1024 {
            let fitted = fit(ranks);
            assert_eq!(fitted, fitted.fit());
            let bytes = Layout::new(fitted).unwrap().bytes();
            assert!(bytes - fitted.window_bytes <= PEER_MEMORY_BYTES_MAX, "{ranks} ranks: {bytes}");
        }
        let least = DeviceGeometry { ranks: 4000, channels: 4000, slots: 4000, ..default }.fit();
        assert_eq!((least.slot_bytes, least.ll_bytes), (64, 64), "as short as messages can be");
    }

    #[test]
    fn invalid_geometry_is_refused() {
        assert!(Layout::new(GEOMETRY).is_ok());
        for wrong in [
            DeviceGeometry { ranks: 0, ..GEOMETRY },
            DeviceGeometry { channels: 0, ..GEOMETRY },
            DeviceGeometry { slots: 2, ..GEOMETRY },
            DeviceGeometry { slot_bytes: 96, ..GEOMETRY },
            DeviceGeometry { ll_bytes: 0, ..GEOMETRY },
            DeviceGeometry { window_bytes: 8, ..GEOMETRY },
            DeviceGeometry { slot_bytes: 1 << 60, ..GEOMETRY },
            DeviceGeometry { slot_bytes: 1 << 30, channels: 4000, ranks: 4000, slots: 4000, ..GEOMETRY },
        ] {
            assert!(Layout::new(wrong).is_err(), "{wrong:?}");
        }
    }
}
