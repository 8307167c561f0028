//! The memory of a rank that its peers access, and the memory of peers that the rank accesses.

use crate::gpu::layout::Layout;
use crate::{Error, Result};
use unisono_cuda::device::{
    Buffer, Fifo, Gpu, ImportedMemory, IpcHandle, MemoryRef, PeerWindow, Protocol, Stream,
};

/// The peer memory of this rank.
pub struct PeerMemory {
    layout: Layout,
    rank: usize,
    memory: Buffer<u8>,
}

/// The peer memory of another rank, as mapped by this one.
pub struct MappedPeerMemory {
    memory: ImportedMemory,
}

impl PeerMemory {
    /// Allocates empty peer memory on `gpu` for `rank`.
    ///
    /// # Errors
    /// Returns an error if there is no room for it.
    pub fn new(gpu: &Gpu, rank: usize, layout: Layout) -> Result<Self> {
        Ok(Self { layout, rank, memory: gpu.alloc_exportable(layout.bytes())? })
    }

    /// Returns the handle that peers need to map the memory, in this process or in another of the
    /// host.
    ///
    /// # Errors
    /// Returns an error if the driver cannot export it.
    pub fn export(&self) -> Result<IpcHandle> {
        Ok(self.memory.export()?)
    }

    /// Declares that no peer in another process will access the memory again, so that it can be
    /// reused.
    pub fn withdraw(&self) {
        self.memory.withdraw();
    }

    /// Maps the peer memory of another rank.
    ///
    /// # Errors
    /// Returns an error if it cannot be reached from here, or if the handle is not one of peer
    /// memory.
    pub fn map(&self, handle: &IpcHandle) -> Result<MappedPeerMemory> {
        let memory = self.memory.gpu().import(handle)?;
        // The handle comes from a peer, and offsets of the layout are used without further checks.
        if memory.bytes() != self.layout.bytes() {
            let what = format!("an arena of {} bytes instead of {}", memory.bytes(), self.layout.bytes());
            return Err(Error::InvalidUsage(what));
        }
        Ok(MappedPeerMemory { memory })
    }

    /// Returns the layout.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns the rank that owns the memory.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the GPU that holds the memory.
    pub fn gpu(&self) -> &Gpu {
        self.memory.gpu()
    }

    pub(crate) fn record_stream(&self, stream: &Stream) {
        self.memory.record_stream(stream);
    }

    /// Returns a handle that keeps the memory, and with which its export can be withdrawn.
    pub fn memory_ref(&self) -> MemoryRef {
        self.memory.memory_ref()
    }

    /// Returns the bytes before the window: counters and signals.
    pub(crate) fn counters(&self, stream: &Stream) -> Result<Vec<u8>> {
        Ok(self.memory.view(..self.layout.inbox().end).to_vec(stream)?)
    }

    pub(crate) fn peer_window(&self) -> PeerWindow {
        peer_window(&self.layout, self.memory.address())
    }

    pub(crate) fn mailbox(&self, protocol: Protocol) -> *mut u8 {
        mailbox(&self.layout, protocol, self.memory.address())
    }

    /// Returns the direct FIFOs to and from `peer` on one lane.
    pub(crate) fn fifos(
        &self,
        reached: &MappedPeerMemory,
        protocol: Protocol,
        lane: usize,
        peer: usize,
    ) -> [Fifo; 2] {
        let (layout, rank) = (&self.layout, self.rank);
        let (address, peer_address) = (self.memory.address() as usize, reached.memory.address() as usize);
        let (slot_count, slot_bytes) =
            (layout.geometry().slots as u32, layout.geometry().slot_stride(protocol) as u32);
        let fifo = |receiver: (usize, usize), sender: (usize, usize)| Fifo {
            slots: (receiver.0 + layout.slots(protocol, receiver.1, lane, sender.1).start) as *mut u8,
            tail: (receiver.0 + layout.tail(protocol, lane, sender.1).start) as *mut u64,
            head: (sender.0 + layout.head(protocol, lane, receiver.1).start) as *mut u64,
            slot_count,
            slot_bytes,
        };
        [fifo((peer_address, peer), (address, rank)), fifo((address, rank), (peer_address, peer))]
    }
}

impl MappedPeerMemory {
    /// Returns true if this process has allocated the memory, on this GPU. Such memory is accessed
    /// by the same pointer, so no link is involved.
    pub fn is_on(&self, gpu: &Gpu) -> bool {
        self.memory.owner() == Some(gpu)
    }

    pub(crate) fn is_other_process(&self) -> bool {
        self.memory.is_other_process()
    }

    pub(crate) fn record_stream(&self, stream: &Stream) {
        self.memory.record_stream(stream);
    }

    pub(crate) fn memory_ref(&self) -> MemoryRef {
        self.memory.memory_ref()
    }

    pub(crate) fn peer_window(&self, layout: &Layout) -> PeerWindow {
        peer_window(layout, self.memory.address())
    }

    pub(crate) fn mailbox(&self, layout: &Layout, protocol: Protocol) -> *mut u8 {
        mailbox(layout, protocol, self.memory.address())
    }
}

fn peer_window(layout: &Layout, base: u64) -> PeerWindow {
    let address = |offset: usize| base as usize + offset;
    PeerWindow {
        window: address(layout.window().start) as *mut u8,
        inbox: address(layout.inbox().start) as *mut u64,
    }
}

fn mailbox(layout: &Layout, protocol: Protocol, base: u64) -> *mut u8 {
    (base as usize + layout.mailbox(protocol).start) as *mut u8
}
