//! The memory of a rank that its peers reach, and theirs that it reaches.

use crate::gpu::layout::Layout;
use crate::{Error, Result};
use unisono_cuda::device::{Buffer, Fifo, Gpu, ImportedMemory, IpcHandle, PeerWindow, Protocol, Stream};

/// This rank's arena.
pub struct PeerMemory {
    layout: Layout,
    rank: usize,
    memory: Buffer<u8>,
}

/// A peer's arena, as it is reached from here.
pub struct MappedPeerMemory {
    memory: ImportedMemory,
}

impl PeerMemory {
    /// An arena on `gpu` for `rank`, empty.
    ///
    /// # Errors
    /// If there is no room for it.
    pub fn new(gpu: &Gpu, rank: usize, layout: Layout) -> Result<Self> {
        Ok(Self { layout, rank, memory: gpu.alloc(layout.bytes())? })
    }

    /// What peers need to reach it, in this process or in another of the host.
    ///
    /// # Errors
    /// If the driver cannot export it.
    pub fn export(&self) -> Result<IpcHandle> {
        Ok(self.memory.export()?)
    }

    /// Says that no peer in another process will touch it any more, so that its memory can be used again.
    pub fn withdraw(&self) {
        self.memory.withdraw();
    }

    /// Reaches the arena of a peer.
    ///
    /// # Errors
    /// If it cannot be reached from here, or is none.
    pub fn map(&self, handle: &IpcHandle) -> Result<MappedPeerMemory> {
        let memory = self.memory.gpu().import(handle)?;
        if memory.bytes() != self.layout.bytes() {
            let what = format!("an arena of {} bytes instead of {}", memory.bytes(), self.layout.bytes());
            return Err(Error::InvalidUsage(what));
        }
        Ok(MappedPeerMemory { memory })
    }

    /// Where everything is.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Whose it is.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The GPU that it is on.
    pub fn gpu(&self) -> &Gpu {
        self.memory.gpu()
    }

    pub(crate) fn record_stream(&self, stream: &Stream) {
        self.memory.record_stream(stream);
    }

    /// What is before the window: counters and the inbox.
    pub(crate) fn counters(&self, stream: &Stream) -> Result<Vec<u8>> {
        Ok(self.memory.view(..self.layout.inbox().end).to_vec(stream)?)
    }

    pub(crate) fn peer_window(&self) -> PeerWindow {
        peer_window(&self.layout, self.memory.address())
    }

    pub(crate) fn mailbox(&self, protocol: Protocol) -> *mut u8 {
        mailbox(&self.layout, protocol, self.memory.address())
    }

    /// What goes to `peer` directly on one lane, and what comes from it.
    pub(crate) fn fifos(
        &self,
        reached: &MappedPeerMemory,
        protocol: Protocol,
        lane: usize,
        peer: usize,
    ) -> [Fifo; 2] {
        let (layout, rank) = (&self.layout, self.rank);
        let (own, theirs) = (self.memory.address() as usize, reached.memory.address() as usize);
        let (slot_count, slot_bytes) =
            (layout.geometry().slots as u32, layout.geometry().slot_stride(protocol) as u32);
        let fifo = |receiver: (usize, usize), sender: (usize, usize)| Fifo {
            slots: (receiver.0 + layout.slots(protocol, receiver.1, lane, sender.1).start) as *mut u8,
            tail: (receiver.0 + layout.tail(protocol, lane, sender.1).start) as *mut u64,
            head: (sender.0 + layout.head(protocol, lane, receiver.1).start) as *mut u64,
            slot_count,
            slot_bytes,
        };
        [fifo((theirs, peer), (own, rank)), fifo((own, rank), (theirs, peer))]
    }
}

impl MappedPeerMemory {
    pub(crate) fn is_other_process(&self) -> bool {
        self.memory.is_other_process()
    }

    pub(crate) fn record_stream(&self, stream: &Stream) {
        self.memory.record_stream(stream);
    }

    pub(crate) fn peer_window(&self, layout: &Layout) -> PeerWindow {
        peer_window(layout, self.memory.address())
    }

    pub(crate) fn mailbox(&self, layout: &Layout, protocol: Protocol) -> *mut u8 {
        mailbox(layout, protocol, self.memory.address())
    }
}

fn peer_window(layout: &Layout, base: u64) -> PeerWindow {
    let at = |offset: usize| base as usize + offset;
    PeerWindow { window: at(layout.window().start) as *mut u8, inbox: at(layout.inbox().start) as *mut u64 }
}

fn mailbox(layout: &Layout, protocol: Protocol, base: u64) -> *mut u8 {
    (base as usize + layout.mailbox(protocol).start) as *mut u8
}
