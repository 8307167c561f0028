//! FIFOs by way of the host, for peers whose memory a GPU does not reach.
//!
//! The kernels fill and empty slots in page-locked memory as they do those of a peer; the host moves
//! what is in them over an ordinary link, lane by lane. A slot is free again when its message is with the
//! link, and a message is taken from there when there is a slot for it: nothing is ever held in between.

use crate::gpu::layout::{CACHE_LINE_BYTES, DeviceGeometry};
use crate::{Error, Link, Result, Tag};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use unisono_cuda::device::{Fifo, Gpu, Pinned, PinnedRef, Port, Protocol};

/// The host's half of all FIFOs to and from one peer.
pub struct HostStaging {
    peer: usize,
    geometry: DeviceGeometry,
    /// For each lane those that go, then those that come.
    slots: Pinned<u8>,
    /// For each lane four counters, a line each: sent and taken of what goes, then of what comes.
    counters: Pinned<u64>,
    /// For each lane, messages handed to the link and got from it.
    transferred: Vec<[u64; 2]>,
    /// Blocks of the longest message there may be.
    max_chunks: usize,
}

impl HostStaging {
    /// FIFOs between `gpu` and the host for what goes to and comes from `peer`.
    ///
    /// # Errors
    /// If there is no page-locked memory for them.
    pub fn new(gpu: &Gpu, peer: usize, sizes: &DeviceGeometry) -> Result<Self> {
        let fifo = sizes.slots * sizes.slot_stride(Protocol::Simple);
        Ok(Self {
            peer,
            geometry: *sizes,
            slots: gpu.pin(sizes.lanes() * 2 * fifo)?,
            counters: gpu.pin(sizes.lanes() * COUNTERS * WORDS_PER_LINE)?,
            transferred: vec![[0; 2]; sizes.lanes()],
            max_chunks: 1,
        })
    }

    /// Says that messages may have so many blocks from now on.
    pub(crate) fn raise_max_chunks(&mut self, blocks: usize) {
        self.max_chunks = self.max_chunks.max(blocks);
    }

    /// Moves what can be moved without waiting; says whether anything was.
    ///
    /// # Errors
    /// If the link fails, or what comes is no message of a kernel.
    pub fn poll(&mut self, link: &mut dyn Link) -> Result<bool> {
        let mut moved = false;
        for lane in 0..self.geometry.lanes() {
            while self.send_next(link, lane)? || self.recv_next(link, lane)? {
                moved = true;
            }
        }
        if !moved {
            link.progress()?;
        }
        Ok(moved)
    }

    /// Whether messages of this rank wait for the link.
    pub fn has_pending(&self) -> bool {
        (0..self.geometry.lanes())
            .any(|lane| self.counter(lane, TAIL).load(Ordering::Acquire) > self.transferred[lane][0])
    }

    /// Hands the next message of the GPU to the link, if there is one and the link has room.
    fn send_next(&mut self, link: &mut dyn Link, lane: usize) -> Result<bool> {
        let number = self.transferred[lane][0];
        if self.counter(lane, TAIL).load(Ordering::Acquire) <= number {
            return Ok(false);
        }
        let slot = self.slot(lane, 0, number);
        let bytes = self.message_bytes(&slot);
        let message = self.slots.source(slot.start..slot.start + bytes);
        let tag = Tag([number, 0, 0, 0]);
        if !link.try_send(lane, &tag, bytes, &mut std::iter::once(message))? {
            return Ok(false);
        }
        self.transferred[lane][0] += 1;
        self.counter(lane, HEAD).store(number + 1, Ordering::Release);
        Ok(true)
    }

    /// Gets the next message for the GPU from the link, if there is one and a slot for it.
    fn recv_next(&mut self, link: &mut dyn Link, lane: usize) -> Result<bool> {
        let number = self.transferred[lane][1];
        // The GPU's word is only compared: what it says wrongly harms nobody but itself.
        let taken = self.counter(lane, RECV_COUNTERS + HEAD).load(Ordering::Acquire);
        if number.wrapping_sub(taken) >= self.geometry.slots as u64 {
            return Ok(false);
        }
        let Some(head) = link.header(lane)? else { return Ok(false) };
        let slot = self.slot(lane, 1, number);
        if head.tag != Tag([number, 0, 0, 0]) || head.bytes < Port::HEADER_BYTES || head.bytes > slot.len() {
            let what =
                format!("message {:?} of {} bytes for a GPU where {number} was due", head.tag, head.bytes);
            return Err(Error::ProtocolViolation { peer: self.peer, what });
        }
        let mut target = self.slots.target();
        if !link.recv_into(lane, target.slice(slot.start..slot.start + head.bytes))? {
            return Ok(false);
        }
        self.transferred[lane][1] += 1;
        self.counter(lane, RECV_COUNTERS + TAIL).store(number + 1, Ordering::Release);
        Ok(true)
    }

    /// Bytes of a slot that hold its message, as its head says: each block begins at a multiple of 16. Never more than the slot's.
    fn message_bytes(&self, slot: &Range<usize>) -> usize {
        let word = |byte: usize| self.slots.get(slot.start + BYTES_OFFSET + byte);
        let bytes = u64::from_le_bytes(std::array::from_fn(word));
        let around = Port::HEADER_BYTES + self.max_chunks * CHUNK_ALIGNMENT;
        usize::try_from(bytes).map_or(slot.len(), |bytes| bytes.saturating_add(around).min(slot.len()))
    }

    fn slot(&self, lane: usize, direction: usize, number: u64) -> Range<usize> {
        let stride = self.geometry.slot_stride(Protocol::Simple);
        let slot = (number % self.geometry.slots as u64) as usize;
        let start = ((lane * 2 + direction) * self.geometry.slots + slot) * stride;
        start..start + stride
    }

    fn counter(&self, lane: usize, which: usize) -> &AtomicU64 {
        &self.counters.words()[(lane * COUNTERS + which) * WORDS_PER_LINE]
    }

    /// What the kernels get of one lane: to the peer, and from it.
    pub(crate) fn fifos(&self, lane: usize) -> [Fifo; 2] {
        let counter = |which| {
            let word = (lane * COUNTERS + which) * WORDS_PER_LINE;
            (self.counters.address() as usize + word * size_of::<u64>()) as *mut u64
        };
        [0, 1].map(|direction| Fifo {
            slots: (self.slots.address() as usize + self.slot(lane, direction, 0).start) as *mut u8,
            tail: counter(direction * RECV_COUNTERS + TAIL),
            head: counter(direction * RECV_COUNTERS + HEAD),
            slot_count: self.geometry.slots as u32,
            slot_bytes: self.geometry.slot_stride(Protocol::Simple) as u32,
        })
    }

    /// Its memory, for launches: whoever moves messages has the stage meanwhile.
    pub(crate) fn memory_refs(&self) -> [PinnedRef; 2] {
        [self.slots.memory_ref(), self.counters.memory_ref()]
    }
}

const COUNTERS: usize = 4;
const TAIL: usize = 0;
const HEAD: usize = 1;
/// Counters of what comes are behind those of what goes.
const RECV_COUNTERS: usize = 2;
const WORDS_PER_LINE: usize = CACHE_LINE_BYTES / size_of::<u64>();
/// In a slot's head, behind the four words of the tag.
const BYTES_OFFSET: usize = 4 * size_of::<u64>();
const CHUNK_ALIGNMENT: usize = 16;
