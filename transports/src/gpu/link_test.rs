//! Tests links between GPUs before their first use. Every two ranks exchange bytes through each
//! other's memory.

use crate::Result;
use crate::gpu::launch::threads_per_block;
use crate::gpu::peer_memory::{MappedPeerMemory, PeerMemory};
use std::ptr::null_mut;
use std::time::Duration;
use unisono_cuda::device::{
    Buffer, Channel, Deadline, Exchange, Kernel, LaunchDims, Pinned, Protocol, Stream, WaitReport,
};

/// Messages that a test sends on its lane, which is the last one.
pub(crate) const LINK_TEST_MESSAGES: u64 = 2;

/// A test of links that is ready to run, because all its memory is allocated.
///
/// Ranks prepare the test, agree that all have done so, and then run it. This is needed because a
/// driver may wait for running kernels before it allocates memory, and kernels of ranks that are
/// ahead wait for this rank.
pub struct LinkTest<'a> {
    arena: &'a PeerMemory,
    /// The other ranks that are tested.
    peers: Vec<(usize, &'a MappedPeerMemory)>,
    ranks: usize,
    /// Bytes that each two ranks exchange.
    bytes: usize,
    stream: Stream,
    kernel: Kernel,
    input: Buffer<u8>,
    output: Buffer<u8>,
    channels: Buffer<Channel>,
    abort: Pinned<u32>,
    report: Pinned<WaitReport>,
}

impl PeerMemory {
    /// Prepares a test of the links to all ranks of `reached`. Memory on this GPU needs no test.
    /// Returns `None` if no rank is left to test.
    ///
    /// # Errors
    /// Returns an error if there is no memory for the test.
    pub fn prepare_link_test<'a>(
        &'a self,
        reached: &'a [Option<MappedPeerMemory>],
    ) -> Result<Option<LinkTest<'a>>> {
        let gpu = self.gpu();
        // The message fills one slot to its last byte and goes on in another, so the test covers a
        // full slot and a short one.
        let bytes = self.layout().geometry().slot_stride(Protocol::Simple) + EXTRA_BYTES;
        let is_tested = |reached: &&MappedPeerMemory| !reached.is_on(gpu);
        let peers: Vec<(usize, &MappedPeerMemory)> = reached
            .iter()
            .enumerate()
            .filter_map(|(peer, reached)| Some((peer, reached.as_ref().filter(is_tested)?)))
            .collect();
        if peers.is_empty() {
            return Ok(None);
        }
        let sent: Vec<u8> =
            peers.iter().flat_map(|(peer, _)| test_pattern(self.rank(), *peer, bytes)).collect();
        let (input, output) = (gpu.upload(&sent)?, gpu.alloc::<u8>(sent.len())?);
        let channel = |(index, (peer, reached)): (usize, &(usize, &MappedPeerMemory))| {
            let lane = self.layout().geometry().lanes() - 1;
            let [outgoing, incoming] = self.fifos(reached, Protocol::Simple, lane, *peer);
            Channel {
                input: (input.address() as usize + index * bytes) as *const u8,
                output: (output.address() as usize + index * bytes) as *mut u8,
                bytes: bytes as u64,
                out: outgoing,
                into: incoming,
                step: 0,
                rank: self.rank() as u32,
                peer: *peer as u32,
            }
        };
        let channels: Vec<Channel> = peers.iter().enumerate().map(channel).collect();
        Ok(Some(LinkTest {
            arena: self,
            peers,
            ranks: reached.len(),
            bytes,
            stream: gpu.stream()?,
            kernel: gpu.kernel("exchange")?,
            channels: gpu.upload(&channels)?,
            abort: gpu.pin(1)?,
            report: gpu.pin(1)?,
            input,
            output,
        }))
    }
}

impl LinkTest<'_> {
    /// Exchanges bytes with all tested ranks at once, which must do the same. Returns, by rank,
    /// true if the right bytes arrived, or if the link was not tested.
    ///
    /// # Errors
    /// Returns an error if the driver fails.
    pub fn run(&self, limit: Duration) -> Result<Vec<bool>> {
        let patience = Deadline {
            abort: self.abort.address() as *const u32,
            report: self.report.address() as *mut WaitReport,
            timeout_ns: limit.as_nanos() as u64,
            failed: null_mut(),
        };
        let exchange = Exchange { channels: self.channels.address() as *const Channel, deadline: patience };
        let shape = LaunchDims {
            blocks: self.peers.len() as u32,
            threads: threads_per_block(self.arena.gpu().is_emulated()),
            cooperative: false,
        };
        let stream = &self.stream;
        // SAFETY: there is a channel for each block. Its FIFOs lie in peer memory that is mapped
        // here, and its buffers are as long as it says. All of it lives until the stream has been
        // waited for, or is told that the stream uses it.
        unsafe { self.kernel.launch(stream, shape, &exchange) }?;
        self.arena.record_stream(stream);
        self.peers.iter().for_each(|(_, reached)| reached.record_stream(stream));
        [&self.input, &self.output].into_iter().for_each(|buffer| buffer.record_stream(stream));
        self.channels.record_stream(stream);
        self.abort.record_stream(stream);
        self.report.record_stream(stream);
        let found = self.output.to_vec(stream)?;
        let mut right = vec![true; self.ranks];
        for ((peer, _), found) in self.peers.iter().zip(found.chunks(self.bytes)) {
            let expected = test_pattern(*peer, self.arena.rank(), self.bytes);
            right[*peer] = found.iter().copied().eq(expected);
        }
        Ok(right)
    }
}

/// Bytes that `sender` sends to `receiver`. They differ at every position and for every two ranks.
fn test_pattern(sender: usize, receiver: usize, bytes: usize) -> impl Iterator<Item = u8> {
    (0..bytes).map(move |index| (index * 7 + index / 251 + sender * 31 + receiver * 13 + 1) as u8)
}

const EXTRA_BYTES: usize = 200;
