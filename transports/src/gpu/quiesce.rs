//! Tests if peers still use this rank's memory. Memory that another process has mapped vanishes
//! when this process ends.

use crate::Result;
use crate::gpu::endpoint::{Endpoint, Peer};
use unisono_cuda::device::{Protocol, ScheduleArgs};

impl Endpoint {
    /// Returns true if memory of this rank is mapped in another process.
    pub fn is_open_in_other_process(&self) -> bool {
        self.peers.iter().any(|peer| matches!(peer, Peer::Direct(reached) if reached.is_other_process()))
    }

    /// Returns true if every peer has taken all messages of this rank, and has finished the window
    /// programs that this rank ran. It may be called after this rank's launches are over. No peer
    /// accesses the memory between a true result and this rank's next launch.
    ///
    /// # Errors
    /// Returns an error if the driver fails.
    pub fn is_quiescent(&self) -> Result<bool> {
        let stream = self.memory.gpu().utility_stream();
        let counters = self.memory.counters(&stream)?;
        let word = |start: usize| {
            let bytes = counters.get(start..start + size_of::<u64>());
            bytes.and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
        };
        let (layout, ranks) = (self.memory.layout(), self.peers.len());
        // Peers behind the host never access this memory, so they need not be asked.
        let is_direct = |peer: usize| matches!(self.peers[peer], Peer::Direct(_));
        let mut at_rest = true;
        for protocol in Protocol::ALL {
            for (index, port) in self.ports[protocol as usize].to_vec(&stream)?.iter().enumerate() {
                let (lane, peer) = (index / ranks, index % ranks);
                at_rest &= !is_direct(peer) || word(layout.head(protocol, lane, peer).start) == port.sent;
            }
        }
        for (channel, instances) in self.window_sequences.to_vec(&stream)?.into_iter().enumerate() {
            let row = layout.geometry().channels * ScheduleArgs::LANES + channel;
            for peer in (0..ranks).filter(|&peer| is_direct(peer)) {
                let done = layout.inbox().start + (row * ranks + peer) * size_of::<u64>();
                at_rest &= word(done) >= instances;
            }
        }
        Ok(at_rest)
    }
}
