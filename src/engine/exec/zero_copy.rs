//! The zero-copy executor, which runs programs that access the user buffers of peers directly.
//!
//! No rank alone knows if all ranks gave symmetric memory. So after symmetric memory has been
//! allocated, every large operation begins with a publication of the offsets of its buffers. That
//! publication is the first signal of the program. If the buffers of any rank are elsewhere, all
//! ranks use the pipelined executor.
//!
//! The operation of a rank may fail while a peer copies from or to its buffers. The rank returns
//! only when no peer accesses them any more: see [`HeapExposure`].

use crate::engine::exec::arith::Arithmetic;
use crate::engine::exec::no_window;
use crate::engine::layout::Layout;
use crate::engine::plan::Plan;
use crate::engine::{Engine, Job};
use crate::error::{Error, ErrorKind, Result};
use crate::op_desc::OpDesc;
use crate::reduce_op::ReduceOp;
use crate::schedule::lower::{Combine, Instr, OPERANDS_MAX, Transfer};
use crate::schedule::{Algorithm, ChunkRef, PeerAccess, Rank, Space};
use unisono_reducers::{ReduceKind, Source, Store, Target, copy_into, reduce_into};
use unisono_transports::{HeapAccess, HeapAllocation, HeapExposure};

/// Offsets of a rank's buffers in its symmetric heap, or [`NOT_SYMMETRIC`].
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::engine) struct PeerOffsets {
    input: u64,
    output: u64,
}

/// The heaps of all ranks, with the positions of the user buffers of one operation.
struct PeerHeaps<'e> {
    access: HeapAccess<'e>,
    offsets: &'e [PeerOffsets],
    input: &'e Layout<'e>,
    output: &'e Layout<'e>,
}

impl Engine {
    /// Allocates symmetric memory; all ranks call it together. `None` if ranks share no memory
    /// here.
    pub(crate) fn alloc_symmetric(&mut self, bytes: usize) -> Result<Option<HeapAllocation>> {
        self.check_healthy()?;
        let Some(window) = &self.fabric.window else {
            return Ok(None);
        };
        if !self.uses_symmetric {
            self.uses_symmetric = true;
            // Operations of these plans may be zero-copy from now on.
            self.eager.plans.clear();
        }
        window.alloc_symmetric(bytes).map(Some).map_err(|error| Error::invalid_usage(error.to_string()))
    }

    /// Returns the zero-copy algorithm for `job`, or `None` if the operation cannot be zero-copy.
    ///
    /// The result is the same on all ranks. It does not depend on the buffers.
    pub(in crate::engine) fn zero_copy_algorithm(&self, job: &Job<'_>) -> Option<&'static Algorithm> {
        if !self.uses_symmetric || job.share_bytes_max < ZERO_COPY_MIN_BYTES {
            return None;
        }
        // An algorithm that the caller has set is used as it is, so no zero-copy algorithm takes
        // its place.
        let is_set = self.overrides[job.collective as usize].is_some()
            || self.config.algorithm_override(job.collective).is_some();
        let kind = job.reduction.map(ReduceOp::kind);
        // Zero-copy programs cannot apply a factor, and a custom function cannot read memory of
        // peers.
        let needs_copy = matches!(kind, Some(ReduceKind::PreMulSum | ReduceKind::Custom));
        if is_set || needs_copy || !job.is_even() || self.fabric.ranks > OPERANDS_MAX {
            return None;
        }
        Algorithm::ALL
            .iter()
            .find(|row| row.peer_access == PeerAccess::ZeroCopy && row.collective == job.collective)
    }

    /// Exposes the buffers of `job` to the peers, if they are symmetric. The exposure lasts until
    /// the operation has succeeded, or until no peer accesses the buffers any more.
    pub(in crate::engine) fn expose_buffers(&mut self, job: &Job<'_>) -> Option<HeapExposure> {
        let offsets = self.own_offsets(job);
        self.peer_offsets.resize(self.fabric.ranks, PeerOffsets::default());
        self.peer_offsets[self.fabric.rank] = offsets;
        let (input, output) = job.buffers.views();
        if offsets.input == NOT_SYMMETRIC || offsets.output == NOT_SYMMETRIC {
            return None;
        }
        let part = |offset: u64, buffer: &[u8]| offset as usize..offset as usize + buffer.len();
        let parts = [part(offsets.input, input), part(offsets.output, output)];
        Some(self.fabric.window.as_ref()?.expose_heap(parts))
    }

    /// Exchanges the offsets of all buffers, after those of this rank were exposed. Returns true if
    /// all buffers are symmetric.
    pub(in crate::engine) fn exchange_offsets(&mut self, op: OpDesc) -> Result<bool> {
        self.watchdog.begin_op(op);
        let (rank, ranks) = (self.fabric.rank, self.fabric.ranks);
        let own_offsets = self.peer_offsets[rank];
        let tag = op.tag(0);
        let sequence = self.publish(&tag, &[own_offsets.input, own_offsets.output])?;
        for peer in (0..ranks).filter(|&peer| peer != rank) {
            let [input, output] = self.wait_published(peer, sequence, &tag)?;
            self.peer_offsets[peer] = PeerOffsets { input, output };
        }
        // This rank has read all offsets, so the peers may write these slots again.
        self.finish_publish(sequence);
        Ok(self
            .peer_offsets
            .iter()
            .all(|offsets| offsets.input != NOT_SYMMETRIC && offsets.output != NOT_SYMMETRIC))
    }

    /// Returns the offsets of this rank's buffers.
    fn own_offsets(&self, job: &Job<'_>) -> PeerOffsets {
        let offset = |buffer: &[u8]| match &self.fabric.window {
            // An empty buffer is never accessed.
            _ if buffer.is_empty() => 0,
            Some(window) => {
                let found = window.heap().offset_of(buffer.as_ptr().addr(), buffer.len());
                found.map_or(NOT_SYMMETRIC, |offset| offset as u64)
            }
            None => NOT_SYMMETRIC,
        };
        let (input, output) = job.buffers.views();
        PeerOffsets { input: offset(input), output: offset(output) }
    }

    /// Runs a program whose first signal has been exchanged already.
    pub(in crate::engine) fn run_zero_copy(&mut self, plan: &Plan, job: &Job<'_>, op: OpDesc) -> Result<()> {
        let arithmetic = self.arithmetic(job, true, plan.rounds_once);
        let element = job.dtype.size();
        let input = &Layout::new(job.input.clone(), plan.chunks_per_share, element);
        let output = &Layout::new(job.output.clone(), plan.chunks_per_share, element);
        let tag = op.tag(1);
        let mut published = None;
        for lane in &plan.lanes {
            let mut sent = 0;
            for instr in &lane.instrs {
                match instr {
                    Instr::Transfer(transfer) => self.access_peers(transfer, input, output, arithmetic)?,
                    Instr::Signal => {
                        sent += 1;
                        // The exchange of offsets was the first signal, so only later ones are
                        // published, under a tag of their own.
                        if sent > 1 {
                            published = Some(self.publish(&tag, &[])?);
                        }
                    }
                    Instr::Wait { peer, signals } => {
                        if let (Some(sequence), 2..) = (published, *signals) {
                            let [] = self.wait_published(*peer, sequence, &tag)?;
                        }
                    }
                    _ => return Err(not_zero_copy(instr)),
                }
            }
        }
        if let Some(sequence) = published {
            self.finish_publish(sequence);
        }
        Ok(())
    }

    /// Runs `transfer` in the heaps of all ranks.
    fn access_peers(
        &mut self,
        transfer: &Transfer,
        input: &Layout<'_>,
        output: &Layout<'_>,
        arithmetic: Arithmetic,
    ) -> Result<()> {
        let window = self.fabric.window.as_ref().ok_or_else(no_window)?;
        let closed = match window.access_heaps() {
            Ok(access) => {
                let heaps = PeerHeaps { access, offsets: &self.peer_offsets, input, output };
                heaps.run(transfer, arithmetic)?;
                self.traffic.add_bytes(transfer.remote_chunks * heaps.locate(&transfer.targets[0]).1);
                None
            }
            Err(peer) => Some(peer),
        };
        closed.map_or(Ok(()), |peer| self.await_error_of(peer))
    }

    /// Waits for the error with which `peer` has left this operation. It has closed its heap.
    #[cold]
    fn await_error_of(&mut self, peer: Rank) -> Result<()> {
        loop {
            // The loop has no end of its own, because each round fails once the error of the peer
            // arrives, or at the deadline.
            self.wait_round(std::iter::once(peer))?;
        }
    }
}

impl PeerHeaps<'_> {
    fn run(&self, transfer: &Transfer, arithmetic: Arithmetic) -> Result<()> {
        let Arithmetic { dtype, op, store, .. } = arithmetic;
        let mut sources = [Source::from(&[][..]); OPERANDS_MAX];
        for (source, place) in sources.iter_mut().zip(&transfer.sources) {
            *source = self.source(place)?;
        }
        let sources = &sources[..transfer.sources.len()];
        let mut targets: [(Store, Target<'_>); OPERANDS_MAX] =
            std::array::from_fn(|_| (store, Target::from(&mut [][..])));
        let mut count = 0;
        for place in &transfer.targets {
            let mut target = self.target(place)?;
            // An input in place is already at its target.
            let stays =
                transfer.combine == Combine::Copy && target.as_mut_ptr().cast_const() == sources[0].as_ptr();
            if !stays {
                targets[count].1 = target;
                count += 1;
            }
        }
        let targets = &mut targets[..count];
        match transfer.combine {
            Combine::Copy => copy_into(targets, sources[0]),
            Combine::Reduce { finish } => {
                reduce_into(dtype, op, arithmetic.post_op(finish), targets, sources);
            }
        }
        Ok(())
    }

    fn source(&self, place: &ChunkRef) -> Result<Source<'_>> {
        let (offset, bytes) = self.locate(place);
        self.access.source(place.rank, offset, bytes).ok_or_else(|| outside_heap(place.rank, offset, bytes))
    }

    fn target(&self, place: &ChunkRef) -> Result<Target<'_>> {
        let (offset, bytes) = self.locate(place);
        self.access.target(place.rank, offset, bytes).ok_or_else(|| outside_heap(place.rank, offset, bytes))
    }

    /// Returns offset and length of a chunk in the heap of its rank.
    fn locate(&self, place: &ChunkRef) -> (usize, usize) {
        let index = place.chunk.index as usize;
        let offsets = self.offsets[place.rank];
        let (chunk, offset) = match place.chunk.space {
            Space::Input => (self.input.chunk(index), offsets.input),
            Space::Output => (self.output.chunk(index), offsets.output),
            // These spaces are not in a heap, so return an offset outside of it.
            Space::Window | Space::Scratch => return (usize::MAX, 1),
        };
        // The offset comes from a peer and may be anything. The heap checks the sum.
        ((offset as usize).saturating_add(chunk.start), chunk.len())
    }
}

/// Copies chunks between the heaps of two ranks. The offsets are made of bytes, as a peer could
/// send them.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(bytes: &[u8]) {
    use crate::engine::Shares;
    use crate::schedule::Chunk;
    use unisono_transports::{Fabric, Geometry, threads};
    const GEOMETRY: Geometry = Geometry {
        lanes: 1,
        slots: 2,
        slot_bytes: 256,
        signal_lanes: 1,
        window_bytes: 4096,
        heap_bytes: 64 << 10,
    };
    thread_local! {
        /// Fabrics that are made once, because mapping memory takes longer than using it.
        static FABRICS: Vec<Fabric> = threads::fabrics(2, GEOMETRY).expect("memory");
    }
    let (words, steps) = bytes.split_at(bytes.len().min(32));
    let mut words = words.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).chain([0; 4]);
    let mut offsets =
        || PeerOffsets { input: words.next().unwrap_or_default(), output: words.next().unwrap_or_default() };
    let offsets = [offsets(), offsets()];
    FABRICS.with(|fabrics| {
        let window = fabrics[0].window.as_ref().expect("shared memory");
        for [places, index, share] in steps.as_chunks::<3>().0 {
            let share_bytes = Shares::Even { bytes: usize::from(*share) << 6 };
            let layout = &Layout::new(share_bytes, 4, 8);
            let heaps = PeerHeaps {
                access: window.access_heaps().expect("open heaps"),
                offsets: &offsets,
                input: layout,
                output: layout,
            };
            let place = |rank: Rank, space: u8| {
                let space = [Space::Input, Space::Output, Space::Scratch, Space::Window][usize::from(space)];
                ChunkRef { rank, chunk: Chunk { space, index: u32::from(*index) } }
            };
            let (source_place, target_place) = (place(0, places & 3), place(1, places >> 2 & 3));
            let is_inside = |place: &ChunkRef| {
                let (offset, bytes) = heaps.locate(place);
                offset.checked_add(bytes).is_some_and(|end| end <= GEOMETRY.heap_bytes)
            };
            assert_eq!(heaps.source(&source_place).is_ok(), is_inside(&source_place));
            assert_eq!(heaps.target(&target_place).is_ok(), is_inside(&target_place));
            if let (Ok(source), Ok(target)) = (heaps.source(&source_place), heaps.target(&target_place)) {
                copy_into(&mut [(Store::Cached, target)], source);
            }
        }
    });
}

#[cold]
fn not_zero_copy(instr: &Instr) -> Error {
    Error::new(ErrorKind::Bug(format!("a zero-copy schedule has the instruction {instr:?}")))
}

fn outside_heap(peer: Rank, offset: usize, bytes: usize) -> Error {
    let what = format!("a buffer of {bytes} bytes at {offset}, outside of its heap");
    Error::new(ErrorKind::ProtocolViolation { peer, what })
}

/// The offset of a buffer that is not in the heap.
const NOT_SYMMETRIC: u64 = u64::MAX;
/// Smallest share for zero-copy. For smaller shares, staging in the cache takes less time than one
/// more exchange.
const ZERO_COPY_MIN_BYTES: usize = 64 << 10;
