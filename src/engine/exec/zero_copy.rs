//! The zero-copy executor: programs that access the user buffers of peers directly.
//!
//! Only the ranks together know whether all of them called with symmetric memory. So, once
//! symmetric memory has been allocated, every large operation begins with a publication of the
//! offsets of its buffers. That publication is the first signal of the program. If the buffers of
//! any rank are elsewhere, all ranks use the pipelined executor.

use crate::engine::exec::arith::Arithmetic;
use crate::engine::exec::no_window;
use crate::engine::exec::step::OPERANDS_MAX;
use crate::engine::layout::Layout;
use crate::engine::plan::Plan;
use crate::engine::telemetry::traffic::count_remote;
use crate::engine::{Engine, Job};
use crate::error::{Error, ErrorKind, Result};
use crate::op_desc::OpDesc;
use crate::schedule::{Algorithm, ChunkRef, PeerAccess, Rank, Space, Step};
use unisono_cuda::{PostOp, ReduceKind, Source, Store, Target, copy_into, reduce_into};
use unisono_transports::{HeapAllocation, Window};

/// Offsets of a rank's buffers in its symmetric heap, or [`NOT_SYMMETRIC`].
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::engine) struct PeerOffsets {
    input: u64,
    output: u64,
}

/// The operands of all steps of one operation.
struct ZeroCopyExec<'e> {
    window: &'e Window,
    offsets: &'e [PeerOffsets],
    input: &'e Layout<'e>,
    output: &'e Layout<'e>,
    arithmetic: Arithmetic,
}

impl Engine {
    /// Allocates symmetric memory; all ranks call it together. `None` if ranks share no memory
    /// here.
    pub(crate) fn alloc_symmetric(&mut self, bytes: usize) -> Result<Option<HeapAllocation>> {
        self.check_healthy()?;
        let Some(window) = &self.fabric.window else {
            return Ok(None);
        };
        self.uses_symmetric = true;
        window.alloc_symmetric(bytes).map(Some).map_err(|error| Error::invalid_usage(error.to_string()))
    }

    /// Returns the zero-copy algorithm for `job`, or `None` if the operation cannot be zero-copy.
    ///
    /// The result is the same on all ranks. It does not depend on the buffers.
    pub(in crate::engine) fn zero_copy_algorithm(&self, job: &Job<'_>) -> Option<&'static Algorithm> {
        if !self.uses_symmetric || job.share_bytes_max < ZERO_COPY_MIN_BYTES {
            return None;
        }
        let is_set = self.overrides[job.collective as usize].is_some()
            || self.config.algorithm_override(job.collective).is_some();
        let premultiplied = job.reduction.is_some_and(|reduction| reduction.kind() == ReduceKind::PreMulSum);
        if is_set || premultiplied || !job.is_even() || self.fabric.ranks > OPERANDS_MAX {
            return None;
        }
        Algorithm::ALL
            .iter()
            .find(|row| row.peer_access == PeerAccess::ZeroCopy && row.collective == job.collective)
    }

    /// Exchanges the offsets of all buffers. Returns whether all of them are symmetric.
    pub(in crate::engine) fn exchange_offsets(&mut self, job: &Job<'_>, op: OpDesc) -> Result<bool> {
        self.watchdog.begin_op(op);
        let own = self.own_offsets(job);
        let tag = op.tag(0);
        let sequence = self.publish(&tag, &[own.input, own.output])?;
        self.peer_offsets.resize(self.fabric.ranks, PeerOffsets::default());
        self.peer_offsets[self.fabric.rank] = own;
        let (rank, ranks) = (self.fabric.rank, self.fabric.ranks);
        for peer in (0..ranks).filter(|&peer| peer != rank) {
            let [input, output] = self.wait_published(peer, sequence, &tag)?;
            self.peer_offsets[peer] = PeerOffsets { input, output };
        }
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
        let arithmetic = self.arithmetic(job, true);
        let element = job.dtype.size();
        let input = &Layout::new(job.input.clone(), plan.chunks_per_share, element);
        let output = &Layout::new(job.output.clone(), plan.chunks_per_share, element);
        let tag = op.tag(1);
        let mut published = None;
        for lane_program in &plan.program.lane_programs {
            let mut signals = 0;
            let mut steps = &lane_program.steps[..];
            while let Some((step, rest)) = steps.split_first() {
                steps = rest;
                match step {
                    Step::Signal => {
                        signals += 1;
                        if signals > 1 {
                            published = Some(self.publish(&tag, &[])?);
                        }
                    }
                    Step::Wait { peer, signals: 2.. } => {
                        if let Some(sequence) = published {
                            let [] = self.wait_published(*peer, sequence, &tag)?;
                        }
                    }
                    Step::Wait { .. } => {}
                    Step::Copy { from: value, .. } | Step::Reduce { into: value, .. } => {
                        let same_value =
                            |step: &&Step| matches!(step, Step::Copy { from, .. } if from == value);
                        let (copies, rest) = rest.split_at(rest.iter().take_while(same_value).count());
                        steps = rest;
                        let window = self.fabric.window.as_ref().ok_or_else(no_window)?;
                        let exec =
                            ZeroCopyExec { window, offsets: &self.peer_offsets, input, output, arithmetic };
                        exec.execute(step, copies)?;
                        let moved = exec.remote_bytes(self.fabric.rank, step, copies);
                        self.traffic.add_bytes(moved);
                    }
                    Step::Send { .. } | Step::Recv { .. } | Step::RecvReduce { .. } => {
                        return Err(Error::new(ErrorKind::Bug(
                            "a message step in a zero-copy schedule".to_owned(),
                        )));
                    }
                }
            }
        }
        if let Some(sequence) = published {
            self.finish_publish(sequence);
        }
        Ok(())
    }
}

impl ZeroCopyExec<'_> {
    /// Runs `step` and the `copies` after it that write the same value, in one pass over memory.
    fn execute(&self, step: &Step, copies: &[Step]) -> Result<()> {
        let Arithmetic { dtype, op, finish: final_op, store, .. } = self.arithmetic;
        let (from, into) = match step {
            Step::Copy { from, into } => (std::slice::from_ref(from), into),
            Step::Reduce { from, into, .. } => (&from[..], into),
            _ => return Ok(()),
        };
        let mut sources = [Source::from(&[][..]); OPERANDS_MAX];
        for (source, place) in sources.iter_mut().zip(from) {
            *source = self.source(place)?;
        }
        let sources = &sources[..from.len()];
        let mut targets: [(Store, Target<'_>); OPERANDS_MAX] =
            std::array::from_fn(|_| (store, Target::from(&mut [][..])));
        let more = copies
            .iter()
            .filter_map(|step| if let Step::Copy { into, .. } = step { Some(into) } else { None });
        let mut count = 0;
        for place in std::iter::once(into).chain(more) {
            let mut target = self.target(place)?;
            // An in-place input is already in its target.
            let stays =
                matches!(step, Step::Copy { .. }) && target.as_mut_ptr().cast_const() == sources[0].as_ptr();
            if !stays {
                targets[count].1 = target;
                count += 1;
            }
        }
        let targets = &mut targets[..count];
        match step {
            Step::Reduce { finish, .. } => {
                let finish = if *finish { final_op } else { PostOp::Identity };
                reduce_into(dtype, op, finish, targets, sources);
            }
            _ => copy_into(targets, sources[0]),
        }
        Ok(())
    }

    /// Returns the bytes that `step` and `copies` move between `rank` and its peers.
    fn remote_bytes(&self, rank: Rank, step: &Step, copies: &[Step]) -> usize {
        let of = |step: &Step| match step {
            Step::Copy { from, into } => count_remote(rank, [from, into]).min(1) * self.locate(into).1,
            Step::Reduce { from, into, .. } => count_remote(rank, from) * self.locate(into).1,
            _ => 0,
        };
        std::iter::once(step).chain(copies).map(of).sum()
    }

    fn source(&self, place: &ChunkRef) -> Result<Source<'_>> {
        let (offset, bytes) = self.locate(place);
        self.window
            .heap_source(place.rank, offset, bytes)
            .ok_or_else(|| outside_heap(place.rank, offset, bytes))
    }

    fn target(&self, place: &ChunkRef) -> Result<Target<'_>> {
        let (offset, bytes) = self.locate(place);
        self.window
            .heap_target(place.rank, offset, bytes)
            .ok_or_else(|| outside_heap(place.rank, offset, bytes))
    }

    /// Returns offset and length of a chunk in the heap of its rank.
    fn locate(&self, place: &ChunkRef) -> (usize, usize) {
        let index = place.chunk.index as usize;
        let offsets = self.offsets[place.rank];
        let (chunk, offset) = match place.chunk.space {
            Space::Input => (self.input.chunk(index), offsets.input),
            _ => (self.output.chunk(index), offsets.output),
        };
        // The offset comes from a peer and may be anything. The heap checks the sum.
        ((offset as usize).saturating_add(chunk.start), chunk.len())
    }
}

fn outside_heap(peer: Rank, offset: usize, bytes: usize) -> Error {
    let what = format!("a buffer of {bytes} bytes at {offset}, outside of its heap");
    Error::new(ErrorKind::ProtocolViolation { peer, what })
}

/// The offset of a buffer that is not in the heap.
const NOT_SYMMETRIC: u64 = u64::MAX;
/// Smallest share for zero-copy. Below, staging in the cache costs less than one more exchange.
const ZERO_COPY_MIN_BYTES: usize = 64 << 10;
