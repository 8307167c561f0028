//! The eager executor, which runs small operations. Their data travels in a slot, together with the
//! flag that publishes it.
//!
//! The instructions of a plan run in order. They pack the input into this rank's slot, publish it,
//! wait for the slots of the peers, and copy or reduce their contents. This path has the shortest
//! latency, so every CPU instruction matters.

use crate::engine::buffers::Buffers;
use crate::engine::exec::arith::Arithmetic;
use crate::engine::exec::slot_sync::{SlotWait, flag_value, slot_wait};
use crate::engine::plan::eager::{EagerPlan, Operand, SlotInstr, SlotTuning};
use crate::engine::store_tuner::{EAGER_K16, Sample, StoreTuner, Timed};
use crate::engine::{Engine, Job};
use crate::error::Result;
use crate::op_desc::OpDesc;
use crate::schedule::lower::OPERANDS_MAX;
use std::ops::Range;
use std::time::Instant;
use unisono_reducers::{PostOp, Scalar, Source, Store, Target, copy_into, copy_to, reduce_among, scale};
use unisono_transports::{SlotClass, Tag, Window};

/// One run of a plan.
struct EagerExec<'e> {
    window: &'e mut Window,
    plan: &'e EagerPlan,
    /// Number of the publication.
    sequence: u64,
    /// Offset of the payload in the slots.
    payload_offset: usize,
    flag_value: u64,
    tag: Tag,
    /// Factor of this rank's input.
    factor: Option<Scalar>,
    /// Store kind for the own slot.
    store: Store,
    wait: SlotWait<'e>,
}

impl Engine {
    /// Runs `job` with the eager plan at `index`.
    pub(in crate::engine) fn run_eager(&mut self, index: usize, job: &mut Job<'_>, op: OpDesc) -> Result<()> {
        self.watchdog.begin_op(op);
        let EagerPlan { slot_class, slots, tuning, remote_bytes, .. } = *self.eager.plans.plan(index);
        self.wait_free_slot(slots)?;
        let tuner = match tuning {
            SlotTuning::Cached => None,
            // All operations in these slots count their publications together. So all ranks explore
            // in the same turn, and a slot that comes round again was written in the same way.
            SlotTuning::K16 => {
                Some((EAGER_K16, StoreTuner::explore_in_turn(self.eager.k16_published % slots)))
            }
            SlotTuning::Class(class) => {
                let tuner = self.tuners.entry(class);
                Some((tuner, self.tuners.tuner_mut(tuner).next_decision(0, slots)))
            }
        };
        let (store, timed) = match tuner {
            // A rank that reads nothing, such as the root of a broadcast, hardly measures the
            // difference between the stores. So it decides by the hints of the ranks that read.
            Some((tuner, decision)) => self.store_decision(tuner, decision, remote_bytes == 0),
            None => (Store::Cached, Timed::No),
        };
        let (sequence, tag, ranks) = (self.eager.next_sequence, op.tag(0), self.fabric.ranks);
        let (window, wait, plans) =
            slot_wait(&mut self.fabric, &mut self.watchdog, &mut self.eager, &mut self.messages)?;
        let plan = plans.plan(index);
        let mut exec = EagerExec {
            window,
            plan,
            sequence,
            payload_offset: plan.payload_rotation.offset(sequence),
            flag_value: flag_value(sequence, &tag),
            tag,
            // The plan is kept for later operations, but each operation has its own factor. Only
            // pre-multiplied sums, and averages whose sums are rounded more than once, have a
            // factor.
            factor: plan.arithmetic.factor.and_then(|_| job.reduction?.factor(job.dtype, ranks, false)),
            store,
            wait,
        };
        match tuner {
            Some((tuner, _)) if timed != Timed::No => {
                let sample = exec.run_timed(&mut job.buffers)?;
                let hint = self.tuners.tuner_mut(tuner).record(timed, store, sample);
                hint.into_iter().for_each(|hint| exec.window.set_hint(hint));
            }
            _ => {
                for instr in &plan.instrs {
                    exec.step(instr, &mut job.buffers)?;
                }
            }
        }
        // The slots of the peers are acknowledged only here, where all of them have been read.
        // After an earlier acknowledgement, a peer could write its slot again while this rank reads
        // it.
        self.finish_publish(sequence);
        self.traffic.add_bytes(remote_bytes);
        self.eager.k16_published += u64::from(slot_class == SlotClass::K16);
        Ok(())
    }
}

impl EagerExec<'_> {
    /// Runs all instructions and measures those that move data.
    #[cold]
    fn run_timed(&mut self, buffers: &mut Buffers<'_>) -> Result<Sample> {
        let mut sample = Sample::default();
        for instr in &self.plan.instrs {
            let begun = Instant::now();
            self.step(instr, buffers)?;
            if let Some(stats) = instr.transfer_stats(self.wait.rank()) {
                sample.add(stats.slot_bytes, stats.output_bytes, stats.reads_peers, begun.elapsed());
            }
        }
        Ok(sample)
    }

    /// Runs one instruction.
    #[inline]
    fn step(&mut self, instr: &SlotInstr, buffers: &mut Buffers<'_>) -> Result<()> {
        let EagerPlan { slot_class, ref arithmetic, ref operands, .. } = *self.plan;
        let sequence = self.sequence;
        match instr {
            SlotInstr::Publish => self.window.publish(slot_class, sequence, self.flag_value, &self.tag),
            &SlotInstr::Wait { peer } => {
                self.wait.wait(self.window, peer, slot_class, sequence, self.flag_value, &self.tag)?;
            }
            SlotInstr::Pack { from, at } => {
                let offset = self.payload_offset + *at;
                let target = self.window.own_slot(slot_class, sequence, offset, from.len());
                self.read_input(self.store, buffers.input(from.clone()).into(), target);
            }
            SlotInstr::PackAndCopy { from, at, into } => {
                let offset = self.payload_offset + *at;
                let target = self.window.own_slot(slot_class, sequence, offset, from.len());
                // A plan has this instruction only if there is no factor, so the input is copied as
                // it is.
                let (input, output) = buffers.input_and_output_range(into.clone());
                let targets = &mut [(self.store, target), (Store::Cached, output.into())];
                copy_into(targets, input[from.clone()].into());
            }
            SlotInstr::CopyLocal { from, into } => self.copy_local(from, into, buffers),
            SlotInstr::Get { from, at, into } => {
                let offset = self.payload_offset + *at;
                let source = self.window.slot(*from, slot_class, sequence, offset, into.len());
                copy_to(Store::Cached, buffers.output(into.clone()).into(), source);
            }
            SlotInstr::Reduce { into, finish } => {
                let finish = arithmetic.post_op(*finish);
                let buffers = buffers.input_and_output_range(into.clone());
                match &operands[..] {
                    // Two operands need no array of the largest size. An operation of 8 bytes on
                    // two ranks notices the time that takes.
                    [first, second] => self.reduce([first, second], buffers, finish),
                    _ => self.reduce_many(operands, buffers, finish),
                }
            }
        }
        Ok(())
    }

    fn copy_local(
        &self,
        source_range: &Range<usize>,
        target_range: &Range<usize>,
        buffers: &mut Buffers<'_>,
    ) {
        match buffers.input_and_output(source_range.clone(), target_range.clone()) {
            Some((input, output)) => self.read_input(Store::Cached, input.into(), output.into()),
            None => {
                // Input and output are parts of one buffer, and they may overlap. So the factor is
                // applied after the move.
                buffers.copy_within(source_range.clone(), target_range.clone());
                if let Some(factor) = self.factor {
                    scale(
                        self.plan.arithmetic.dtype,
                        factor,
                        buffers.output(target_range.clone()).into(),
                        None,
                    );
                }
            }
        }
    }

    /// Copies a chunk of the input, multiplied by the factor of the reduction if it has one.
    fn read_input(&self, store: Store, source: Source<'_>, target: Target<'_>) {
        match self.factor {
            Some(factor) => scale(self.plan.arithmetic.dtype, factor, target, Some(source)),
            None => copy_to(store, target, source),
        }
    }

    /// Returns the memory of an operand. An operand that the output holds has no memory of its own.
    #[inline]
    fn operand_source<'s>(&'s self, operand: Operand, input: &'s [u8], bytes: usize) -> Source<'s> {
        match operand {
            Operand::Slot { rank, at } => {
                self.window.slot(rank, self.plan.slot_class, self.sequence, self.payload_offset + at, bytes)
            }
            Operand::Input(at) => input[at..at + bytes].into(),
            Operand::Output => Source::from(&[][..]),
        }
    }

    #[inline]
    fn reduce(&self, operands: [&Operand; 2], (input, output): (&[u8], &mut [u8]), finish: PostOp) {
        let source = |operand: &Operand| self.operand_source(*operand, input, output.len());
        // `map` of an array is not always inlined.
        let mut sources = [source(operands[0]), source(operands[1])];
        let EagerPlan { arithmetic: Arithmetic { dtype, op, .. }, own_operand, .. } = *self.plan;
        reduce_among(dtype, op, finish, output.into(), &mut sources, own_operand);
    }

    fn reduce_many(&self, operands: &[Operand], (input, output): (&[u8], &mut [u8]), finish: PostOp) {
        let mut sources = [Source::from(&[][..]); OPERANDS_MAX];
        for (source, operand) in sources.iter_mut().zip(operands) {
            *source = self.operand_source(*operand, input, output.len());
        }
        let sources = &mut sources[..operands.len()];
        let EagerPlan { arithmetic: Arithmetic { dtype, op, .. }, own_operand, .. } = *self.plan;
        reduce_among(dtype, op, finish, output.into(), sources, own_operand);
    }
}
