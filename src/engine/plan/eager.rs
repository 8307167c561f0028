//! A small operation of one hand-over with every place worked out beforehand.
//!
//! Programs over windows in which every rank signals once, when all that its
//! peers will read is laid out, need no window for small data: what was laid
//! out travels in a slot, behind the flag itself. The program is translated
//! once for each size; running it again is a walk over a short list.

use crate::engine::layout::Layout;
use crate::engine::payload_rotation::PayloadRotation;
use crate::engine::{Job, Shares};
use crate::op_desc::OpDesc;
use crate::reduce_op::ReduceOp;
use crate::schedule::{Chunk, ChunkRef, Program, Rank, Space, Step};
use std::ops::Range;
use unisono_transports::SlotClass;

/// What distinguishes one plan from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlanKey {
    /// Of no number, and done by any algorithm.
    pub(crate) op: OpDesc,
    input_bytes: usize,
    output_bytes: usize,
    bases: Option<(usize, usize)>,
}

impl PlanKey {
    /// The key of `job`, if its shares are even and small.
    #[inline]
    pub(crate) fn of(job: &Job<'_>) -> Option<Self> {
        let (&Shares::Even { bytes: input_bytes }, &Shares::Even { bytes: output_bytes }) =
            (&job.input, &job.output)
        else {
            return None;
        };
        let bases = job.buffers.bases();
        let op = job.reduction.map(ReduceOp::kind);
        let call = OpDesc::new(0, job.kind, job.dtype, op, job.root, job.count);
        let key = Self { op: call, input_bytes, output_bytes, bases };
        (job.share_bytes_max <= SlotClass::K128.bytes()).then_some(key)
    }
}

/// One act of a rank. Ranges count from the beginning of a buffer, `at` from that of a slot's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Instr {
    /// A chunk of the input into the own slot.
    Pack { from: Range<usize>, at: usize },
    /// A chunk of the input into the own slot and into the output, in one pass.
    PackAndCopy { from: Range<usize>, at: usize, into: Range<usize> },
    /// Shows the own slot to everybody.
    Publish,
    /// Waits for the post of `peer`.
    Wait { peer: Rank },
    /// A chunk of the input into the output.
    CopyLocal { from: Range<usize>, into: Range<usize> },
    /// A chunk of somebody's slot into the output.
    Get { from: Rank, at: usize, into: Range<usize> },
    /// Blocks of everybody's, combined in the order of the plan's operands.
    Reduce { into: Range<usize>, finish: bool },
}

impl Instr {
    /// Bytes that it writes for peers to read, those that it writes to the output, and whether it reads what peers
    /// wrote. None: it moves nothing.
    pub(crate) fn transfer_stats(&self, rank: Rank) -> Option<(usize, usize, bool)> {
        Some(match self {
            Instr::Pack { from, .. } => (from.len(), 0, false),
            Instr::PackAndCopy { from, into, .. } => (from.len(), into.len(), false),
            Instr::CopyLocal { into, .. } => (0, into.len(), false),
            Instr::Get { from, into, .. } => (0, into.len(), *from != rank),
            Instr::Reduce { into, .. } => (0, into.len(), true),
            Instr::Publish | Instr::Wait { .. } => return None,
        })
    }
}

/// One of the chunks that are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operand {
    /// Of the input, from here on.
    Input(usize),
    /// What is in the output's place, as the input is in the same memory.
    Output,
    /// Of the slot of `rank`, from `at` on.
    Slot { rank: Rank, at: usize },
}

/// The acts of one rank for one key.
#[derive(Clone, Debug)]
pub(crate) struct EagerPlan {
    pub(crate) key: PlanKey,
    /// As its key says, by the algorithm that it was made from.
    pub(crate) op: OpDesc,
    pub(crate) instrs: Vec<Instr>,
    /// In which kind of slot the data of all ranks travels.
    pub(crate) slot_class: SlotClass,
    pub(crate) payload_rotation: PayloadRotation,
    pub(crate) operands: Vec<Operand>,
    /// Which of them is [`Operand::Output`], if one is.
    pub(crate) own_operand: Option<usize>,
    /// Bytes that it takes from other ranks.
    pub(crate) remote_bytes: usize,
}

impl EagerPlan {
    /// Bytes of its lists.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&self.instrs[..]) + size_of_val(&self.operands[..])
    }
}

/// Where the chunks of a window lie in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotFit {
    slot_class: SlotClass,
    payload_rotation: PayloadRotation,
    /// From one chunk to the next.
    stride: usize,
}

impl SlotFit {
    /// How `chunks` chunks of `share_bytes` each fit into a slot; `spare`: with a place for an operand that no
    /// peer reads.
    pub(crate) fn new(chunks: usize, share_bytes: usize, spare: bool, ranks: usize) -> Option<Self> {
        let stride = share_bytes.next_multiple_of(8);
        let bytes = (chunks + usize::from(spare)) * stride;
        let slot = SlotClass::for_bytes(bytes, ranks)?;
        Some(Self { slot_class: slot, payload_rotation: PayloadRotation::new(slot, bytes, ranks), stride })
    }
}

impl EagerPlan {
    /// Translates `program`, whose chunks are whole shares, if it is of the kind that can travel in slots. `plain`: the
    /// input is added as it is, not multiplied beforehand.
    pub(crate) fn new(
        (key, call): (PlanKey, OpDesc),
        program: &Program,
        fit: SlotFit,
        plain: bool,
        rank: Rank,
    ) -> Option<Self> {
        let [lane_program] = &program.lane_programs[..] else {
            return None;
        };
        let mut translation = Lowering::new((key, call), program.window * fit.stride, fit, plain, rank);
        lane_program.steps.iter().try_for_each(|step| translation.step(step))?;
        Some(translation.plan)
    }
}

struct Lowering {
    plan: EagerPlan,
    input: Layout<'static>,
    output: Layout<'static>,
    stride: usize,
    /// Place for an operand of this rank that no peer reads.
    scratch_slot: usize,
    no_scaling: bool,
    rank: Rank,
    /// Blocks of the input that are in the own slot.
    packed: Vec<(Chunk, usize)>,
    published: bool,
}

impl Lowering {
    fn new((key, call): (PlanKey, OpDesc), spare: usize, fit: SlotFit, plain: bool, rank: Rank) -> Self {
        let layout = |bytes| Layout::new(Shares::Even { bytes }, 1, 1);
        Self {
            input: layout(key.input_bytes),
            output: layout(key.output_bytes),
            plan: EagerPlan {
                key,
                op: call,
                instrs: Vec::new(),
                slot_class: fit.slot_class,
                payload_rotation: fit.payload_rotation,
                operands: Vec::new(),
                own_operand: None,
                remote_bytes: 0,
            },
            stride: fit.stride,
            scratch_slot: spare,
            no_scaling: plain,
            rank,
            packed: Vec::new(),
            published: false,
        }
    }

    /// `None`: this step cannot be done with slots.
    fn step(&mut self, step: &Step) -> Option<()> {
        let act = match step {
            Step::Copy { from, into } => match self.fuse_copy(from, into) {
                Some(()) => return Some(()),
                None => self.copy(from, into)?,
            },
            // The sum of one, and its average, is itself.
            Step::Reduce { from, into, .. } if from.len() == 1 => self.copy(&from[0], into)?,
            Step::Reduce { from, into, finish } if into.chunk.space == Space::Output => {
                let into = self.output.chunk(into.chunk.index as usize);
                self.reduce_operands(from, into.start)?;
                Instr::Reduce { into, finish: *finish }
            }
            Step::Signal if !self.published => {
                self.published = true;
                Instr::Publish
            }
            &Step::Wait { peer, signals: 1 } => Instr::Wait { peer },
            _ => return None,
        };
        self.plan.remote_bytes += self.remote_bytes(&act);
        self.plan.instrs.push(act);
        Some(())
    }

    fn remote_bytes(&self, act: &Instr) -> usize {
        match act {
            Instr::Get { from, into, .. } if *from != self.rank => into.len(),
            Instr::Reduce { into, .. } => {
                let is_foreign =
                    |operand: &&Operand| matches!(operand, Operand::Slot { rank, .. } if *rank != self.rank);
                self.plan.operands.iter().filter(is_foreign).count() * into.len()
            }
            _ => 0,
        }
    }

    /// Makes the act that lays a long chunk of the input into the slot one that gives it to the output, too. `None`: there is none
    /// that could. Nothing else writes that part of the output.
    fn fuse_copy(&mut self, from: &ChunkRef, into: &ChunkRef) -> Option<()> {
        let kept = self.input.chunk(from.chunk.index as usize);
        let apart = self.no_scaling && self.plan.key.bases.is_none();
        let spaces = (from.chunk.space, into.chunk.space);
        if spaces != (Space::Input, Space::Output) || !apart || kept.len() < FUSE_COPY_MIN_BYTES {
            return None;
        }
        let into = self.output.chunk(into.chunk.index as usize);
        let (at, act) = self.plan.instrs.iter_mut().find_map(|act| match act {
            Instr::Pack { from, at } if *from == kept => Some((*at, act)),
            _ => None,
        })?;
        *act = Instr::PackAndCopy { from: kept, at, into };
        Some(())
    }

    fn copy(&mut self, from: &ChunkRef, into: &ChunkRef) -> Option<Instr> {
        let index = |place: &ChunkRef| place.chunk.index as usize;
        Some(match (from.chunk.space, into.chunk.space) {
            (Space::Input, Space::Window) if into.rank == self.rank && !self.published => {
                let at = index(into) * self.stride;
                self.packed.push((from.chunk, at));
                Instr::Pack { from: self.input.chunk(index(from)), at }
            }
            (Space::Input, Space::Output) => {
                Instr::CopyLocal { from: self.input.chunk(index(from)), into: self.output.chunk(index(into)) }
            }
            (Space::Window, Space::Output) => Instr::Get {
                from: from.rank,
                at: index(from) * self.stride,
                into: self.output.chunk(index(into)),
            },
            _ => return None,
        })
    }

    /// Where the operands are of what comes to `into` in the output.
    fn reduce_operands(&mut self, from: &[ChunkRef], into: usize) -> Option<()> {
        if !self.plan.operands.is_empty() {
            return None;
        }
        for place in from {
            let index = place.chunk.index as usize;
            let operand = match place.chunk.space {
                Space::Window => Operand::Slot { rank: place.rank, at: index * self.stride },
                Space::Input => self.own_operand(place.chunk, into)?,
                _ => return None,
            };
            self.plan.operands.push(operand);
        }
        self.plan.own_operand = self.plan.operands.iter().position(|operand| *operand == Operand::Output);
        Some(())
    }

    /// Where an operand of this rank is. What is plain is best read from where it is, since the slot that it may be laid into
    /// is wanted by peers at that time. What is multiplied beforehand is laid into the slot, if it is not there. `None`: it
    /// would be written over, which no operation has; input and output of a reduction in place begin at one address.
    fn own_operand(&mut self, chunk: Chunk, into: usize) -> Option<Operand> {
        let from = self.input.chunk(chunk.index as usize).start;
        let laid = self.packed.iter().find(|laid| laid.0 == chunk).map(|&(_, at)| at);
        match self.plan.key.bases {
            _ if !self.no_scaling => {
                let at = laid.unwrap_or_else(|| self.pack_scratch(chunk));
                Some(Operand::Slot { rank: self.rank, at })
            }
            None => Some(Operand::Input(from)),
            Some((input, output)) if input + from == output + into => Some(Operand::Output),
            Some(_) => laid.map(|at| Operand::Slot { rank: self.rank, at }),
        }
    }

    /// Lays a chunk of the input where no peer reads.
    fn pack_scratch(&mut self, chunk: Chunk) -> usize {
        self.packed.push((chunk, self.scratch_slot));
        let from = self.input.chunk(chunk.index as usize);
        self.plan.instrs.push(Instr::Pack { from, at: self.scratch_slot });
        self.scratch_slot
    }
}

/// From here on reading a chunk once is worth showing it a little later.
const FUSE_COPY_MIN_BYTES: usize = 32 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op_desc::OpKind;
    use crate::schedule::{Algorithm, Collective, GroupSpec, PeerAccess};
    use unisono_cuda::DType;

    /// The plan of rank 1 of 3 for the row named `name`, in one memory if input and output begin somewhere in it.
    fn eager_plan(
        collective: Collective,
        name: &str,
        bases: Option<(usize, usize)>,
        plain: bool,
    ) -> Option<EagerPlan> {
        let row = crate::schedule::find(collective, name).unwrap();
        let program = (row.build)(&GroupSpec { ranks: 3, root: 0, aggregation: 1 }, 1);
        let call = OpDesc::new(0, OpKind::Collective(collective), DType::U8, None, 0, 24);
        let key = PlanKey { op: call, input_bytes: 24, output_bytes: 24, bases };
        EagerPlan::new((key, key.op), &program, SlotFit::new(3, 24, true, 3).unwrap(), plain, 1)
    }

    #[test]
    fn eager_plan_exists_for_single_signal_window_algorithms() {
        for row in Algorithm::ALL.iter().filter(|row| row.peer_access == PeerAccess::Window) {
            let found = eager_plan(row.collective, row.name, None, true).is_some();
            assert_eq!(
                found,
                !["twoshot", "inplace_ring"].contains(&row.name),
                "{} {}",
                row.collective,
                row.name
            );
        }
        assert!(eager_plan(Collective::AllReduce, "ring", None, true).is_none());
    }

    #[test]
    fn own_operand_is_read_in_place_when_possible() {
        let slot = |rank, at| Operand::Slot { rank, at };
        let own =
            |name, bases, plain| eager_plan(Collective::AllReduce, name, bases, plain).unwrap().operands;
        assert_eq!(own("oneshot", None, true), [slot(0, 0), Operand::Input(0), slot(2, 0)]);
        assert_eq!(own("oneshot", Some((0, 0)), true), [slot(0, 0), Operand::Output, slot(2, 0)]);
        assert_eq!(own("oneshot", Some((0, 24)), true), [slot(0, 0), slot(1, 0), slot(2, 0)]);
        assert_eq!(own("oneshot", None, false), [slot(0, 0), slot(1, 0), slot(2, 0)]);
    }

    #[test]
    fn own_operand_unread_by_peers_uses_scratch_slot() {
        let laid = Instr::Pack { from: 24..48, at: 48 };
        let own_in_cell = Operand::Slot { rank: 1, at: 48 };
        for (bases, plain, own) in [
            (None, true, Operand::Input(24)),
            (None, false, own_in_cell),
            (Some((0, 24)), true, Operand::Output),
            (Some((0, 24)), false, own_in_cell),
        ] {
            let plan = eager_plan(Collective::ReduceScatter, "window_direct", bases, plain).unwrap();
            assert_eq!(plan.instrs.contains(&laid), own == own_in_cell, "{:?}", plan.instrs);
            assert!(plan.operands.contains(&own), "{:?}", plan.operands);
        }
    }

    #[test]
    fn own_operand_overwritten_and_unpacked_is_rejected() {
        assert!(eager_plan(Collective::ReduceScatter, "window_direct", Some((0, 8)), true).is_none());
    }

    #[test]
    fn pack_and_copy_of_long_chunk_is_fused() {
        let bytes = FUSE_COPY_MIN_BYTES;
        let acts = |bytes: usize, bases: Option<(usize, usize)>| {
            let row = crate::schedule::find(Collective::AllGather, "window_direct").unwrap();
            let program = (row.build)(&GroupSpec { ranks: 2, root: 0, aggregation: 1 }, 1);
            let call = OpDesc::new(0, OpKind::Collective(Collective::AllGather), DType::U8, None, 0, 0);
            let key = PlanKey { op: call, input_bytes: bytes, output_bytes: bytes, bases };
            let fit = SlotFit::new(1, bytes, false, 2).unwrap();
            EagerPlan::new((key, call), &program, fit, true, 1).unwrap().instrs
        };
        let spread = Instr::PackAndCopy { from: 0..bytes, at: 0, into: bytes..2 * bytes };
        assert_eq!(acts(bytes, None)[..2], [spread, Instr::Publish]);
        let apart = [Instr::Pack { from: 0..bytes, at: 0 }, Instr::Publish];
        assert_eq!(acts(bytes, Some((0, 0)))[..2], apart);
        assert_eq!(acts(bytes - 8, None)[0], Instr::Pack { from: 0..bytes - 8, at: 0 });
    }

    #[test]
    fn slot_fit_picks_smallest_class_or_none() {
        let slot = |chunks, bytes, spare| SlotFit::new(chunks, bytes, spare, 2).map(|fit| fit.slot_class);
        assert_eq!(
            [slot(7, 4, false), slot(7, 4, true)],
            [Some(SlotClass::Inline), Some(SlotClass::HalfPage)]
        );
        assert_eq!([slot(1, 8188, true), slot(1, 8193, true)], [Some(SlotClass::K16), Some(SlotClass::K32)]);
        assert_eq!(SlotFit::new(1, 8188, true, 2).map(|fit| fit.stride), Some(8192));
        // Two ranks leave room behind what they read.
        let half_page = |bytes, ranks| {
            SlotFit::new(1, bytes, false, ranks).map(|fit| fit.slot_class == SlotClass::HalfPage)
        };
        assert_eq!(
            [half_page(1536, 2), half_page(1537, 2), half_page(1537, 3)],
            [Some(true), Some(false), Some(true)]
        );
        assert_eq!([slot(1, 128 << 10, false), slot(1, 128 << 10, true)], [Some(SlotClass::K128), None]);
    }
}
