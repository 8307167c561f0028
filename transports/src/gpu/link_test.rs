//! Tests links before their first use: every two ranks exchange bytes through each other's memory.

use crate::Result;
use crate::gpu::launch::threads_per_block;
use crate::gpu::peer_memory::{MappedPeerMemory, PeerMemory};
use std::time::Duration;
use unisono_cuda::device::{Channel, Deadline, Exchange, LaunchDims, Protocol, WaitReport};

/// Messages that a test sends on its lane, which is the last one.
pub(crate) const LINK_TEST_MESSAGES: u64 = 2;

impl PeerMemory {
    /// Exchanges bytes with all ranks of `reached` at once, which must do the same. Returns, by
    /// rank, true if the right bytes arrived.
    ///
    /// # Errors
    /// Returns an error if the driver fails.
    pub fn test_links(&self, reached: &[Option<MappedPeerMemory>], limit: Duration) -> Result<Vec<bool>> {
        let gpu = self.gpu();
        let sizes = self.layout().geometry();
        // One slot to its last byte, and some more.
        let bytes = sizes.slot_stride(Protocol::Simple) + EXTRA_BYTES;
        let peers: Vec<(usize, &MappedPeerMemory)> = reached
            .iter()
            .enumerate()
            .filter_map(|(peer, reached)| Some((peer, reached.as_ref()?)))
            .collect();
        if peers.is_empty() {
            return Ok(vec![false; reached.len()]);
        }
        let sent: Vec<u8> =
            peers.iter().flat_map(|(peer, _)| test_pattern(self.rank(), *peer, bytes)).collect();
        let (stream, kernel) = (gpu.stream()?, gpu.kernel("exchange")?);
        let (input, output) = (gpu.upload(&sent)?, gpu.alloc::<u8>(sent.len())?);
        let (abort, status) = (gpu.pin::<u32>(1)?, gpu.pin::<WaitReport>(1)?);
        let channel = |(index, (peer, reached)): (usize, &(usize, &MappedPeerMemory))| {
            let [out, into] = self.fifos(reached, Protocol::Simple, sizes.lanes() - 1, *peer);
            Channel {
                input: (input.address() as usize + index * bytes) as *const u8,
                output: (output.address() as usize + index * bytes) as *mut u8,
                bytes: bytes as u64,
                out,
                into,
                step: 0,
                rank: self.rank() as u32,
                peer: *peer as u32,
            }
        };
        let channels = gpu.upload(&peers.iter().enumerate().map(channel).collect::<Vec<_>>())?;
        let patience = Deadline {
            abort: abort.address() as *const u32,
            report: status.address() as *mut WaitReport,
            timeout_ns: limit.as_nanos() as u64,
        };
        let exchange = Exchange { channels: channels.address() as *const Channel, deadline: patience };
        let shape = LaunchDims {
            blocks: peers.len() as u32,
            threads: threads_per_block(gpu.is_emulated()),
            cooperative: true,
        };
        // SAFETY: there is a channel for each block. Its FIFOs lie in peer memory that is mapped
        // here, and its buffers are as long as it says. All of it lives until the stream has been
        // waited for, or is told that the stream uses it.
        unsafe { kernel.launch(&stream, shape, &exchange) }?;
        self.record_stream(&stream);
        peers.iter().for_each(|(_, reached)| reached.record_stream(&stream));
        [&input, &output].into_iter().for_each(|buffer| buffer.record_stream(&stream));
        channels.record_stream(&stream);
        abort.record_stream(&stream);
        status.record_stream(&stream);
        let found = output.to_vec(&stream)?;
        let mut right = vec![false; reached.len()];
        for ((peer, _), found) in peers.iter().zip(found.chunks(bytes)) {
            right[*peer] = found.iter().copied().eq(test_pattern(*peer, self.rank(), bytes));
        }
        Ok(right)
    }
}

/// Bytes that `from` sends to `to`. They differ at every position and for every two ranks.
fn test_pattern(from: usize, to: usize, bytes: usize) -> impl Iterator<Item = u8> {
    (0..bytes).map(move |at| (at * 7 + at / 251 + from * 31 + to * 13 + 1) as u8)
}

const EXTRA_BYTES: usize = 200;
