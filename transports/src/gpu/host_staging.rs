//! FIFOs through host memory, for peers whose memory a GPU cannot reach.
//!
//! The kernels fill and empty slots in page-locked memory in the same way as slots of a peer. The
//! host moves the contents over an ordinary link, lane by lane. A slot is free again when the link
//! has accepted its message, and a message is taken from the link only when there is a slot for it.
//! So the host never stores a message itself.

use crate::gpu::layout::{CACHE_LINE_BYTES, DeviceGeometry};
use crate::{Error, Link, Result, Tag};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use unisono_cuda::device::{Fifo, Gpu, MemoryRef, Pinned, Port, Protocol};

/// The host's side of all FIFOs to and from one peer.
pub struct HostStaging {
    peer: usize,
    geometry: DeviceGeometry,
    /// Slots of each lane: first the outgoing ones, then the incoming ones.
    slots: Pinned<u8>,
    /// Four counters of each lane, one to a cache line: sent and taken for outgoing messages, then
    /// for incoming ones.
    counters: Pinned<u64>,
    /// Number of messages of each lane that were given to the link and received from it.
    transferred: Vec<[u64; 2]>,
    /// Chunks of the longest possible message.
    max_chunks: usize,
}

impl HostStaging {
    /// Creates the FIFOs between `gpu` and the host for messages to and from `peer`.
    ///
    /// # Errors
    /// Returns an error if there is no page-locked memory for them.
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

    /// Raises the number of chunks that later messages may have.
    pub(crate) fn raise_max_chunks(&mut self, blocks: usize) {
        self.max_chunks = self.max_chunks.max(blocks);
    }

    /// Moves all messages that can move without waiting. Returns true if any moved.
    ///
    /// # Errors
    /// Returns an error if the link fails, or if a received message cannot come from a kernel.
    pub fn poll(&mut self, link: &mut dyn Link) -> Result<bool> {
        let mut moved = false;
        for lane in 0..self.geometry.lanes() {
            while self.send_next(link, lane)? || self.recv_next(link, lane)? {
                moved = true;
            }
        }
        // While messages move, their sends and receives drive the link already.
        if !moved {
            link.progress()?;
        }
        Ok(moved)
    }

    /// Returns true if messages of this rank wait for the link.
    pub fn has_pending(&self) -> bool {
        (0..self.geometry.lanes())
            .any(|lane| self.counter(lane, TAIL).load(Ordering::Acquire) > self.transferred[lane][0])
    }

    /// Gives the next message of the GPU to the link, if there is one and the link has room.
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

    /// Moves the next message from the link to the GPU, if there is one and a slot for it.
    fn recv_next(&mut self, link: &mut dyn Link, lane: usize) -> Result<bool> {
        let number = self.transferred[lane][1];
        // The GPU's counter is only compared, so a wrong value harms only the GPU itself.
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
        // The counter comes last, so a kernel that sees it finds the whole message in the slot.
        self.counter(lane, RECV_COUNTERS + TAIL).store(number + 1, Ordering::Release);
        Ok(true)
    }

    /// Returns the bytes of a slot that hold its message, according to its header. Each chunk
    /// begins at a multiple of 16. The result never exceeds the slot.
    fn message_bytes(&self, slot: &Range<usize>) -> usize {
        let word = |byte: usize| self.slots.get(slot.start + BYTES_OFFSET + byte);
        let bytes = u64::from_le_bytes(std::array::from_fn(word));
        let overhead = Port::HEADER_BYTES + self.max_chunks * CHUNK_ALIGNMENT;
        usize::try_from(bytes).map_or(slot.len(), |bytes| bytes.saturating_add(overhead).min(slot.len()))
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

    /// Returns the FIFOs of one lane for the kernels: to the peer, and from it.
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

    /// Returns references to the memory, for launches. The caller that moves messages owns the
    /// staging during this time.
    pub(crate) fn memory_refs(&self) -> [MemoryRef; 2] {
        [self.slots.memory_ref(), self.counters.memory_ref()]
    }
}

const COUNTERS: usize = 4;
const TAIL: usize = 0;
const HEAD: usize = 1;
/// Counters of incoming messages follow those of outgoing ones.
const RECV_COUNTERS: usize = 2;
const WORDS_PER_LINE: usize = CACHE_LINE_BYTES / size_of::<u64>();
/// Offset of the byte count in a slot's header, after the four words of the tag.
const BYTES_OFFSET: usize = 4 * size_of::<u64>();
const CHUNK_ALIGNMENT: usize = 16;
