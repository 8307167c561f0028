//! Eager plans, which hold the instructions of a program with offsets in buffers and slots of one
//! size.
//!
//! A program is eager if every rank signals once, after it has packed everything that its peers
//! read. Small data then needs no window, because it travels in a slot together with the flag that
//! publishes it. A plan is made once for each size, and later runs only step through its list.

use crate::engine::bounce_ring::PayloadRotation;
use crate::engine::exec::arith::Arithmetic;
use crate::engine::layout::Layout;
use crate::engine::plan::ScheduleBounds;
use crate::engine::store_tuner::OpClass;
use crate::engine::{Job, Shares};
use crate::op_desc::{AlgorithmDigest, OpDesc};
use crate::reduce_op::ReduceOp;
use crate::schedule::lower::{Combine, Instr, LaneInstrs, OPERANDS_MAX, Transfer, lower};
use crate::schedule::{Algorithm, Chunk, ChunkRef, Collective, GroupSpec, PeerAccess, Program, Rank, Space};
use std::ops::Range;
use unisono_reducers::ReduceKind;
use unisono_transports::SlotClass;

/// The properties of an operation that distinguish its plan from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlanKey {
    /// The operation, without sequence number and algorithm.
    pub(crate) op: OpDesc,
    input_bytes: usize,
    output_bytes: usize,
    /// Offsets of input and output in the buffer of an in-place operation.
    bases: Option<(usize, usize)>,
}

impl PlanKey {
    /// Returns the key of `job` if its shares are even and small.
    #[inline]
    pub(crate) fn of(job: &Job<'_>) -> Option<Self> {
        if job.share_bytes_max > SlotClass::K128.bytes() {
            return None;
        }
        let (&Shares::Even { bytes: input_bytes }, &Shares::Even { bytes: output_bytes }) =
            (&job.input, &job.output)
        else {
            return None;
        };
        let reduce = job.reduction.map(ReduceOp::kind);
        if reduce == Some(ReduceKind::Custom) {
            return None;
        }
        let op = OpDesc::new(0, job.kind, job.dtype, reduce, job.root, job.count);
        Some(Self { op, input_bytes, output_bytes, bases: job.buffers.bases() })
    }
}

/// One instruction. Ranges are offsets in a user buffer, `at` is an offset in the payload of a
/// slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SlotInstr {
    /// Copies a chunk of the input into the own slot.
    Pack { from: Range<usize>, at: usize },
    /// Copies a chunk of the input into the own slot and into the output, in one pass.
    PackAndCopy { from: Range<usize>, at: usize, into: Range<usize> },
    /// Publishes the own slot to all peers.
    Publish,
    /// Waits until `peer` has published its slot.
    Wait { peer: Rank },
    /// Copies a chunk of the input into the output.
    CopyLocal { from: Range<usize>, into: Range<usize> },
    /// Copies a chunk of the slot of `from` into the output.
    Get { from: Rank, at: usize, into: Range<usize> },
    /// Combines the operands of the plan, in their order, into the output.
    Reduce { into: Range<usize>, finish: bool },
}

impl SlotInstr {
    /// Returns what the instruction moves. `None` if it moves no data.
    pub(crate) fn transfer_stats(&self, rank: Rank) -> Option<TransferStats> {
        let (slot_bytes, output_bytes, reads_peers) = match self {
            SlotInstr::Pack { from, .. } => (from.len(), 0, false),
            SlotInstr::PackAndCopy { from, into, .. } => (from.len(), into.len(), false),
            SlotInstr::CopyLocal { into, .. } => (0, into.len(), false),
            SlotInstr::Get { from, into, .. } => (0, into.len(), *from != rank),
            SlotInstr::Reduce { into, .. } => (0, into.len(), true),
            SlotInstr::Publish | SlotInstr::Wait { .. } => return None,
        };
        Some(TransferStats { slot_bytes, output_bytes, reads_peers })
    }
}

/// Sizes of the memory that an instruction moves.
pub(crate) struct TransferStats {
    /// Bytes written to the own slot.
    pub(crate) slot_bytes: usize,
    /// Bytes written to the output.
    pub(crate) output_bytes: usize,
    /// True if slots of peers are read.
    pub(crate) reads_peers: bool,
}

/// One operand of a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operand {
    /// A part of the input that begins at this offset.
    Input(usize),
    /// The present content of the output, because the input is the same memory.
    Output,
    /// A part of the slot of `rank` that begins at `at`.
    Slot { rank: Rank, at: usize },
}

/// The instructions of one rank for one key.
#[derive(Clone, Debug)]
pub(crate) struct EagerPlan {
    pub(crate) key: PlanKey,
    /// The operation with its algorithm, without sequence number.
    pub(crate) op: OpDesc,
    pub(crate) instrs: Vec<SlotInstr>,
    /// Class of the slots that carry the data of all ranks.
    pub(crate) slot_class: SlotClass,
    /// Number of slots of that class.
    pub(crate) slots: u64,
    pub(crate) payload_rotation: PayloadRotation,
    pub(crate) tuning: SlotTuning,
    /// The arithmetic of the first operation. Others may have another factor.
    pub(crate) arithmetic: Arithmetic,
    pub(crate) operands: Vec<Operand>,
    /// Index of the operand that is [`Operand::Output`].
    pub(crate) own_operand: Option<usize>,
    /// Bytes read from other ranks.
    pub(crate) remote_bytes: usize,
}

/// The way in which the kind of store for the own slot is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotTuning {
    /// Slots are too short for the kind of store to matter.
    Cached,
    /// By the tuner that all operations in slots of 16 KiB share.
    K16,
    /// By the tuner of a class of operations.
    Class(OpClass),
}

impl SlotTuning {
    fn new(
        collective: Collective,
        algorithm: AlgorithmDigest,
        share_bytes: usize,
        slot_class: SlotClass,
    ) -> Self {
        match slot_class {
            SlotClass::Inline | SlotClass::HalfPage => SlotTuning::Cached,
            SlotClass::K16 => SlotTuning::K16,
            SlotClass::K32 | SlotClass::K64 | SlotClass::K128 => {
                SlotTuning::Class(OpClass::new(collective, algorithm, share_bytes).in_slots(slot_class))
            }
        }
    }
}

impl EagerPlan {
    /// Returns the size of the lists in bytes.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&self.instrs[..]) + size_of_val(&self.operands[..])
    }
}

/// The layout of the chunks of a window in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotFit {
    slot_class: SlotClass,
    slots: u64,
    payload_rotation: PayloadRotation,
    /// Distance between chunks in bytes.
    stride: usize,
}

impl SlotFit {
    /// Lays out `chunks` chunks of `share_bytes` each in the smallest class of slots that holds
    /// them.
    ///
    /// With `spare` there is room for one more chunk: an operand of this rank that no peer reads.
    pub(crate) fn new(chunks: usize, share_bytes: usize, spare: bool, ranks: usize) -> Option<Self> {
        let stride = share_bytes.next_multiple_of(8);
        let bytes = (chunks + usize::from(spare)) * stride;
        let slot_class = SlotClass::for_bytes(bytes, ranks)?;
        let payload_rotation = PayloadRotation::new(slot_class, bytes, ranks);
        Some(Self { slot_class, slots: slot_class.slots(ranks), payload_rotation, stride })
    }
}

impl EagerPlan {
    /// Makes the plan of `program`, whose chunks are whole shares. `None` if it is not eager.
    pub(crate) fn new(
        key: PlanKey,
        op: OpDesc,
        program: Program,
        fit: SlotFit,
        tuning: SlotTuning,
        arithmetic: Arithmetic,
        rank: Rank,
    ) -> Option<Self> {
        let spare = program.window * fit.stride;
        let is_separate = arithmetic.factor.is_none() && key.bases.is_none();
        let fuse = is_separate && key.input_bytes >= FUSE_COPY_MIN_BYTES;
        let [LaneInstrs { instrs, .. }] = &lower(program, rank, fuse)[..] else {
            return None;
        };
        let plan = Self {
            key,
            op,
            instrs: Vec::new(),
            slot_class: fit.slot_class,
            slots: fit.slots,
            payload_rotation: fit.payload_rotation,
            tuning,
            arithmetic,
            operands: Vec::new(),
            own_operand: None,
            remote_bytes: 0,
        };
        let mut builder = PlanBuilder::new(plan, spare, fit.stride, rank);
        instrs.iter().try_for_each(|instr| builder.instr(instr))?;
        Some(builder.plan)
    }
}

/// Makes the plan of `algorithm` for `job`. `None` if the operation cannot be eager.
pub(crate) fn plan_for(
    key: PlanKey,
    job: &Job<'_>,
    algorithm: &'static Algorithm,
    spec: &GroupSpec,
    arithmetic: Arithmetic,
    rank: Rank,
) -> Option<EagerPlan> {
    let is_candidate = algorithm.peer_access == PeerAccess::Window
        && (algorithm.chunks_per_share)(spec) == 1
        && spec.ranks <= OPERANDS_MAX;
    if !is_candidate {
        return None;
    }
    let chunks = ScheduleBounds::of(algorithm, spec).window_chunks;
    let fit = SlotFit::new(chunks, job.share_bytes_max, arithmetic.factor.is_some(), spec.ranks)?;
    let digest = AlgorithmDigest::of(algorithm, spec.ranks);
    let tuning = SlotTuning::new(job.collective, digest, job.share_bytes_max, fit.slot_class);
    let op = key.op.with_algorithm(digest);
    let plan_of =
        |rank| EagerPlan::new(key, op, (algorithm.build)(spec, rank), fit, tuning, arithmetic, rank);
    // A rank in a slot does not meet one in a window. The programs of the library's algorithms are
    // of one kind on all ranks, and those of a caller may not be.
    let is_eager_elsewhere = || (0..spec.ranks).all(|other| other == rank || plan_of(other).is_some());
    plan_of(rank).filter(|_| algorithm.is_built_in() || is_eager_elsewhere())
}

/// A plan under construction, and what the slot holds.
struct PlanBuilder {
    plan: EagerPlan,
    input: Layout<'static>,
    output: Layout<'static>,
    stride: usize,
    /// Offset in the own slot for an operand that no peer reads.
    scratch_slot: usize,
    rank: Rank,
    /// Chunks of the input in the own slot, with their offsets.
    packed: Vec<(Chunk, usize)>,
    published: bool,
}

impl PlanBuilder {
    fn new(plan: EagerPlan, scratch_slot: usize, stride: usize, rank: Rank) -> Self {
        let layout = |bytes| Layout::new(Shares::Even { bytes }, 1, 1);
        Self {
            input: layout(plan.key.input_bytes),
            output: layout(plan.key.output_bytes),
            plan,
            stride,
            scratch_slot,
            rank,
            packed: Vec::new(),
            published: false,
        }
    }

    /// Appends one instruction. `None` if slots cannot do it.
    fn instr(&mut self, instr: &Instr) -> Option<()> {
        let instr = match instr {
            Instr::Transfer(transfer) => self.transfer(transfer)?,
            Instr::Signal if !self.published => {
                self.published = true;
                SlotInstr::Publish
            }
            &Instr::Wait { peer, signals: 1 } => SlotInstr::Wait { peer },
            _ => return None,
        };
        self.plan.instrs.push(instr);
        Some(())
    }

    fn transfer(&mut self, transfer: &Transfer) -> Option<SlotInstr> {
        let instr = match (&transfer.sources[..], &transfer.targets[..]) {
            // The sum of one, and its average, is itself.
            ([source], [target]) => self.copy(source, target)?,
            ([source], [slot, output]) => match self.copy(source, slot)? {
                SlotInstr::Pack { from, at } => {
                    let output_range = self.output.chunk(output.chunk.index as usize);
                    SlotInstr::PackAndCopy { from, at, into: output_range }
                }
                _ => return None,
            },
            (sources, [target]) if target.chunk.space == Space::Output => {
                let range = self.output.chunk(target.chunk.index as usize);
                self.reduce_operands(sources, range.start)?;
                let finish = transfer.combine == Combine::Reduce { finish: true };
                SlotInstr::Reduce { into: range, finish }
            }
            _ => return None,
        };
        let output_bytes = instr.transfer_stats(self.rank).map_or(0, |stats| stats.output_bytes);
        self.plan.remote_bytes += transfer.remote_chunks * output_bytes;
        Some(instr)
    }

    fn copy(&mut self, source: &ChunkRef, target: &ChunkRef) -> Option<SlotInstr> {
        let index = |place: &ChunkRef| place.chunk.index as usize;
        Some(match (source.chunk.space, target.chunk.space) {
            (Space::Input, Space::Window) if target.rank == self.rank && !self.published => {
                let offset = index(target) * self.stride;
                // A later pack overwrites this part of the slot, so the chunk before is no longer
                // there to be read.
                self.packed.retain(|&(_, packed_offset)| packed_offset != offset);
                self.packed.push((source.chunk, offset));
                SlotInstr::Pack { from: self.input.chunk(index(source)), at: offset }
            }
            (Space::Input, Space::Output) => SlotInstr::CopyLocal {
                from: self.input.chunk(index(source)),
                into: self.output.chunk(index(target)),
            },
            (Space::Window, Space::Output) => SlotInstr::Get {
                from: source.rank,
                at: index(source) * self.stride,
                into: self.output.chunk(index(target)),
            },
            _ => return None,
        })
    }

    /// Resolves the operands of the reduction into offset `target_offset` of the output.
    fn reduce_operands(&mut self, operands: &[ChunkRef], target_offset: usize) -> Option<()> {
        // A plan has one list of operands. A program that reduces twice runs over the window.
        if !self.plan.operands.is_empty() {
            return None;
        }
        for place in operands {
            let index = place.chunk.index as usize;
            let operand = match place.chunk.space {
                Space::Window => Operand::Slot { rank: place.rank, at: index * self.stride },
                Space::Input => self.own_operand(place.chunk, target_offset)?,
                _ => return None,
            };
            self.plan.operands.push(operand);
        }
        self.plan.own_operand = self.plan.operands.iter().position(|operand| *operand == Operand::Output);
        Some(())
    }

    /// Resolves an operand of this rank.
    ///
    /// An operand without a factor is read where it is, since peers read the own slot at that time.
    /// A scaled operand is read from the slot, and packed there first if necessary. `None` if the
    /// reduction would overwrite the operand. No operation has such an operand: input and output of
    /// an in-place reduction begin at one address.
    fn own_operand(&mut self, chunk: Chunk, target_offset: usize) -> Option<Operand> {
        let input_offset = self.input.chunk(chunk.index as usize).start;
        let packed = self.packed.iter().find(|packed| packed.0 == chunk).map(|&(_, offset)| offset);
        match self.plan.key.bases {
            _ if self.plan.arithmetic.factor.is_some() => {
                let offset = packed.unwrap_or_else(|| self.pack_scratch(chunk));
                Some(Operand::Slot { rank: self.rank, at: offset })
            }
            None => Some(Operand::Input(input_offset)),
            Some((input, output)) if input + input_offset == output + target_offset => Some(Operand::Output),
            Some(_) => packed.map(|offset| Operand::Slot { rank: self.rank, at: offset }),
        }
    }

    /// Packs a chunk of the input where no peer reads, and returns its offset.
    fn pack_scratch(&mut self, chunk: Chunk) -> usize {
        self.packed.push((chunk, self.scratch_slot));
        let range = self.input.chunk(chunk.index as usize);
        self.plan.instrs.push(SlotInstr::Pack { from: range, at: self.scratch_slot });
        self.scratch_slot
    }
}

/// Smallest chunk for which one read of the input pays for a later publication.
const FUSE_COPY_MIN_BYTES: usize = 32 << 10;

#[cfg(test)]
mod tests;
