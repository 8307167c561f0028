//! Memory that every rank reaches of every other: one buffer of each, equally long. Programs that name buffers of
//! peers read and write it where it is.

use crate::gpu::endpoint::{DeviceProgram, Endpoint};
use crate::gpu::operand::{Operand, Region};
use crate::{Error, Result};
use std::ptr::null_mut;
use std::sync::Arc;
use unisono_cuda::device::{Buffer, Gpu, ImportedMemory, IpcHandle, PeerBuffers, Stream};

/// One buffer of each rank, by rank. Its memory lasts as long as this does.
pub struct WindowSet {
    rank: usize,
    bytes: usize,
    buffers: Vec<ImportedMemory>,
}

/// Where the buffers of all ranks are in one operation.
pub struct AddressTable {
    /// A row for each rank.
    checked_address: Buffer<PeerBuffers>,
    /// Of the input, and of the output: what it is a part of, and where it begins; none where no peer's is named.
    windows: [Option<(Arc<WindowSet>, usize)>; 2],
}

impl WindowSet {
    /// Opens the buffers of `bytes` bytes that all ranks have exported, by rank: this one's too.
    ///
    /// # Errors
    /// If one cannot be opened, or is not as long.
    pub fn open(gpu: &Gpu, rank: usize, handles: &[IpcHandle], bytes: usize) -> Result<Self> {
        let buffers =
            handles.iter().map(|handle| Ok(gpu.import(handle)?)).collect::<Result<Vec<ImportedMemory>>>()?;
        match buffers.iter().position(|buffer| buffer.bytes() != bytes) {
            Some(peer) => {
                let what = format!("rank {peer} lends {} bytes, not {bytes}", buffers[peer].bytes());
                Err(Error::InvalidUsage(what))
            }
            None if rank >= buffers.len() => {
                Err(Error::InvalidUsage(format!("{} lent buffers, but none of rank {rank}", buffers.len())))
            }
            None => Ok(Self { rank, bytes, buffers }),
        }
    }

    /// Whether this rank has dropped its buffer, and no graph keeps any of them: no new work will use them.
    fn is_abandoned(&self) -> bool {
        self.buffers.iter().all(ImportedMemory::is_abandoned)
    }

    /// Whether they are abandoned, and all work that used them is done.
    pub fn is_unused(&self) -> bool {
        // All of them are asked: each notes when its work ends.
        self.is_abandoned() && self.buffers.iter().filter(|buffer| !buffer.is_idle()).count() == 0
    }

    /// Closes those of the others; this rank's is left.
    pub fn close(mut self) -> ImportedMemory {
        self.buffers.swap_remove(self.rank)
    }

    /// Says that no other process will touch this rank's any more, so that its memory can be used again.
    pub fn withdraw(&self) {
        self.buffers[self.rank].withdraw();
    }

    /// Where in this rank's buffer the region begins, if it is a part of it.
    pub fn offset_of(&self, region: &dyn Region) -> Option<usize> {
        let offset = region.address().checked_sub(self.buffers[self.rank].address())? as usize;
        offset.checked_add(region.bytes()).is_some_and(|end| end <= self.bytes).then_some(offset)
    }

    /// Where an operand begins that has so many blocks and lies in this rank's buffer.
    fn operand_base(&self, operand: &Operand<'_>, blocks: usize) -> Result<*mut u8> {
        if !operand.is_in_window(self) {
            return Err(Error::InvalidUsage("an operand outside of the memory that is lent".to_owned()));
        }
        Ok(operand.checked_layout("operand in symmetric memory", blocks)?.base)
    }

    /// What is as far in each rank's buffer as `own` is in this rank's.
    fn peer_addresses(&self, own: *mut u8) -> Vec<*mut u8> {
        let offset = (own as usize).wrapping_sub(self.buffers[self.rank].address() as usize);
        let of = |buffer: &ImportedMemory| (buffer.address() as usize).wrapping_add(offset) as *mut u8;
        self.buffers.iter().map(of).collect()
    }

    fn record_stream(&self, stream: &Stream) {
        self.buffers.iter().for_each(|buffer| buffer.record_stream(stream));
    }
}

impl Endpoint {
    /// Where peers' buffers are, if all ranks have theirs as far in the symmetric memory as this one: `lendings` of the input and
    /// of the output, where the program names those of peers.
    ///
    /// # Errors
    /// If an operand is not in the symmetric memory, or there is no room for the table.
    pub fn address_table(
        &self,
        uploaded: &DeviceProgram,
        lendings: [Option<Arc<WindowSet>>; 2],
        input: &Operand<'_>,
        output: &Operand<'_>,
    ) -> Result<AddressTable> {
        let (lent, ranks) = (uploaded.program().bounds().peer_chunks, self.memory.layout().geometry().ranks);
        let (mut held, mut columns) = ([None, None], [(); 2].map(|()| vec![null_mut(); ranks]));
        for (side, (lending, operand)) in lendings.into_iter().zip([input, output]).enumerate() {
            let Some(lending) = lending else { continue };
            let base = lending.operand_base(operand, lent[side])?;
            columns[side] = lending.peer_addresses(base);
            held[side] = Some((lending, base as usize));
        }
        let [inputs, outputs] = columns;
        let row = |(input, output)| PeerBuffers { input, output };
        let rows: Vec<PeerBuffers> = inputs.into_iter().zip(outputs).map(row).collect();
        Ok(AddressTable { checked_address: self.memory.gpu().upload(&rows)?, windows: held })
    }
}

impl AddressTable {
    /// Whether it is of buffers that no new work will use.
    pub fn is_abandoned(&self) -> bool {
        self.windows.iter().flatten().any(|(lending, _)| lending.is_abandoned())
    }

    /// The table, if it was made for these operands and has what the program names of them.
    pub(crate) fn table(
        &self,
        lent: [usize; 2],
        ranks: usize,
        operands: [&Operand<'_>; 2],
    ) -> Result<*const PeerBuffers> {
        for ((blocks, held), operand) in lent.into_iter().zip(&self.windows).zip(operands) {
            let fits = match held {
                Some((lending, base)) => lending.operand_base(operand, blocks)? as usize == *base,
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

    pub(crate) fn record_stream(&self, stream: &Stream) {
        self.checked_address.record_stream(stream);
        self.windows.iter().flatten().for_each(|(lending, _)| lending.record_stream(stream));
    }
}
