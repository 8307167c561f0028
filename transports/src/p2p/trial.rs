//! Tries links before they are used: every two ranks swap some bytes through the memory of each other.

use super::arena::{Arena, Reached};
use super::launch::threads;
use crate::Result;
use std::time::Duration;
use unisono_cuda::device::{Channel, Exchange, Patience, Protocol, Shape, Status};

/// Messages that a trial sends on its lane, the last one.
pub(super) const TRIAL_MESSAGES: u64 = 2;

impl Arena {
    /// Swaps bytes with all ranks of `reached` at once, which must do the same; says, by rank, whose came right.
    ///
    /// # Errors
    /// If the driver says no.
    pub fn try_links(&self, reached: &[Option<Reached>], limit: Duration) -> Result<Vec<bool>> {
        let gpu = self.gpu();
        let sizes = self.layout().sizes();
        // One slot to the last byte, and some more.
        let bytes = sizes.slot_stride(Protocol::Slots) + TAIL_BYTES;
        let peers: Vec<(usize, &Reached)> = reached
            .iter()
            .enumerate()
            .filter_map(|(peer, reached)| Some((peer, reached.as_ref()?)))
            .collect();
        if peers.is_empty() {
            return Ok(vec![false; reached.len()]);
        }
        let sent: Vec<u8> = peers.iter().flat_map(|(peer, _)| pattern(self.rank(), *peer, bytes)).collect();
        let (stream, kernel) = (gpu.stream()?, gpu.kernel("exchange")?);
        let (input, output) = (gpu.upload(&sent)?, gpu.alloc::<u8>(sent.len())?);
        let (abort, status) = (gpu.pin::<u32>(1)?, gpu.pin::<Status>(1)?);
        let channel = |(index, (peer, reached)): (usize, &(usize, &Reached))| {
            let [out, into] = self.fifos(reached, Protocol::Slots, sizes.lanes() - 1, *peer);
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
        let patience = Patience {
            abort: abort.address() as *const u32,
            status: status.address() as *mut Status,
            limit_ns: limit.as_nanos() as u64,
        };
        let exchange = Exchange { channels: channels.address() as *const Channel, patience };
        let shape =
            Shape { blocks: peers.len() as u32, threads: threads(gpu.is_software()), cooperative: true };
        // SAFETY: there is a channel for each block, whose FIFOs lie in arenas that are open here, and whose buffers are
        // as long as it says; all of it lives until the stream has been waited for, or is told that the stream uses it.
        unsafe { kernel.launch(&stream, shape, &exchange) }?;
        self.used_by(&stream);
        peers.iter().for_each(|(_, reached)| reached.used_by(&stream));
        [&input, &output].into_iter().for_each(|buffer| buffer.used_by(&stream));
        channels.used_by(&stream);
        abort.used_by(&stream);
        status.used_by(&stream);
        let found = output.to_vec(&stream)?;
        let mut right = vec![false; reached.len()];
        for ((peer, _), found) in peers.iter().zip(found.chunks(bytes)) {
            right[*peer] = found.iter().copied().eq(pattern(*peer, self.rank(), bytes));
        }
        Ok(right)
    }
}

/// What `from` sends to `to`: different in every place, and for every two ranks.
fn pattern(from: usize, to: usize, bytes: usize) -> impl Iterator<Item = u8> {
    (0..bytes).map(move |at| (at * 7 + at / 251 + from * 31 + to * 13 + 1) as u8)
}

const TAIL_BYTES: usize = 200;
