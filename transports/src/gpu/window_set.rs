//! Symmetric GPU memory: one buffer of each rank, all of the same length, which every rank reaches.
//! Programs that name buffers of peers read and write them in place.

use crate::gpu::endpoint::{DeviceProgram, Endpoint};
use crate::gpu::operand::{Operand, Region};
use crate::gpu::table_arena::Table;
use crate::{Error, Result};
use std::ptr::null_mut;
use std::sync::Arc;
use unisono_cuda::device::{CaptureState, Gpu, ImportedMemory, IpcHandle, PeerBuffers, Stream};

/// One buffer of each rank, by rank. The memory lives as long as this value.
pub struct WindowSet {
    rank: usize,
    bytes: usize,
    buffers: Vec<ImportedMemory>,
}

/// Addresses of the buffers of all ranks in one operation.
pub struct AddressTable {
    /// One row for each rank.
    checked_address: Table<PeerBuffers>,
    /// Window set and offset of the input, and of the output. An entry is `None` if the program
    /// names no such buffer of a peer.
    windows: [Option<(Arc<WindowSet>, usize)>; 2],
}

impl WindowSet {
    /// Maps the buffers of `bytes` bytes that all ranks have exported, by rank, including this
    /// one's.
    ///
    /// # Errors
    /// Returns an error if a buffer cannot be mapped, or has another length.
    pub fn open(gpu: &Gpu, rank: usize, handles: &[IpcHandle], bytes: usize) -> Result<Self> {
        let buffers =
            handles.iter().map(|handle| Ok(gpu.import(handle)?)).collect::<Result<Vec<ImportedMemory>>>()?;
        match buffers.iter().position(|buffer| buffer.bytes() != bytes) {
            Some(peer) => {
                let what = format!("rank {peer} exports {} bytes, not {bytes}", buffers[peer].bytes());
                Err(Error::InvalidUsage(what))
            }
            None if rank >= buffers.len() => Err(Error::InvalidUsage(format!(
                "{} exported buffers, but none of rank {rank}",
                buffers.len()
            ))),
            None => Ok(Self { rank, bytes, buffers }),
        }
    }

    /// Returns true if this rank has dropped its buffer and no graph keeps any of the buffers. No
    /// new work will use them then.
    fn is_abandoned(&self) -> bool {
        self.buffers.iter().all(ImportedMemory::is_abandoned)
    }

    /// Returns true if the buffers are abandoned, and all work that used them is done.
    pub fn is_unused(&self) -> bool {
        // All buffers are asked, because each one records when its work ends.
        self.is_abandoned() && self.buffers.iter().filter(|buffer| !buffer.is_idle()).count() == 0
    }

    /// Unmaps the buffers of the other ranks and returns this rank's.
    pub fn close(mut self) -> ImportedMemory {
        self.buffers.swap_remove(self.rank)
    }

    /// Declares that no other process will access this rank's buffer again, so that its memory can
    /// be reused.
    pub fn withdraw(&self) {
        self.buffers[self.rank].withdraw();
    }

    /// Returns the offset of the region in this rank's buffer, if the region is a part of it.
    pub fn offset_of(&self, region: &dyn Region) -> Option<usize> {
        let offset = region.address().checked_sub(self.buffers[self.rank].address())? as usize;
        offset.checked_add(region.bytes()).is_some_and(|end| end <= self.bytes).then_some(offset)
    }

    /// Returns the start of an operand that has this many chunks and lies in this rank's buffer.
    fn operand_base(&self, operand: &Operand<'_>, blocks: usize) -> Result<*mut u8> {
        if !operand.is_in_window(self) {
            return Err(Error::InvalidUsage("an operand outside of the symmetric memory".to_owned()));
        }
        Ok(operand.checked_layout("operand in symmetric memory", blocks)?.base)
    }

    /// Returns, for each rank, the address at the same offset in its buffer as `address` in this
    /// rank's.
    fn peer_addresses(&self, address: *mut u8) -> Vec<*mut u8> {
        let offset = (address as usize).wrapping_sub(self.buffers[self.rank].address() as usize);
        let peer_address =
            |buffer: &ImportedMemory| (buffer.address() as usize).wrapping_add(offset) as *mut u8;
        self.buffers.iter().map(peer_address).collect()
    }

    fn record_use(&self, stream: &Stream, capture: CaptureState) {
        self.buffers.iter().for_each(|buffer| buffer.record_use(stream, capture));
    }
}

impl Endpoint {
    /// Makes the table of peers' buffers, if all ranks use the same offsets in the symmetric memory
    /// as this one. The first window set is that of the input and the second that of the output.
    /// Each is present if the program names the input or the output of peers.
    ///
    /// # Errors
    /// Returns an error if an operand is not in the symmetric memory, or if there is no room for
    /// the table.
    pub fn address_table(
        &self,
        uploaded: &DeviceProgram,
        window_sets: [Option<Arc<WindowSet>>; 2],
        input: &Operand<'_>,
        output: &Operand<'_>,
    ) -> Result<AddressTable> {
        let (peer_chunks, ranks) =
            (uploaded.program().bounds().peer_chunks, self.memory.layout().geometry().ranks);
        let (mut held, mut columns) = ([None, None], [(); 2].map(|()| vec![null_mut(); ranks]));
        for (side, (window_set, operand)) in window_sets.into_iter().zip([input, output]).enumerate() {
            let Some(window_set) = window_set else { continue };
            let base = window_set.operand_base(operand, peer_chunks[side])?;
            columns[side] = window_set.peer_addresses(base);
            // The table keeps the window set, because kernels use its addresses after this call.
            held[side] = Some((window_set, base as usize));
        }
        let [inputs, outputs] = columns;
        let row = |(input, output)| PeerBuffers { input, output };
        let rows: Vec<PeerBuffers> = inputs.into_iter().zip(outputs).map(row).collect();
        Ok(AddressTable { checked_address: self.tables.table(&rows)?, windows: held })
    }
}

impl AddressTable {
    /// Returns true if no new work will use the buffers of the table.
    pub fn is_abandoned(&self) -> bool {
        self.windows.iter().flatten().any(|(window_set, _)| window_set.is_abandoned())
    }

    /// Returns the table, if it was made for these operands and holds all that the program names of
    /// them.
    pub(crate) fn table(
        &self,
        peer_chunks: [usize; 2],
        ranks: usize,
        operands: [&Operand<'_>; 2],
    ) -> Result<*const PeerBuffers> {
        for ((blocks, held), operand) in peer_chunks.into_iter().zip(&self.windows).zip(operands) {
            let fits = match held {
                Some((window_set, base)) => window_set.operand_base(operand, blocks)? as usize == *base,
                None => blocks == 0,
            };
            if !fits || self.checked_address.len() != ranks {
                return Err(Error::InvalidUsage(
                    "a table of other buffers than those of the operation".to_owned(),
                ));
            }
        }
        Ok(self.checked_address.address() as *const PeerBuffers)
    }

    pub(crate) fn record_use(&self, stream: &Stream, capture: CaptureState) {
        self.checked_address.record_use(stream, capture);
        self.windows.iter().flatten().for_each(|(window_set, _)| window_set.record_use(stream, capture));
    }
}
