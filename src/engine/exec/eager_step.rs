//! Carries out the acts of a plan: what is done for every post, in as few instructions as can be.

use crate::engine::buffers::Buffers;
use crate::engine::exec::eager::DIGEST_BITS;
use crate::engine::exec::step::{OPERANDS_MAX, tag_mismatch};
use crate::engine::plan::eager::{Instr, Operand};
use crate::engine::store_tuner::Sample;
use crate::engine::watchdog::Watchdog;
use crate::error::{Error, ErrorKind, Result};
use crate::reduce_op::ReduceOp;
use crate::schedule::Rank;
use std::ops::Range;
use std::time::Instant;
use unisono_cuda::{
    DType, PostOp, ReduceKind, Scalar, Source, Store, Target, copy_into, copy_to, reduce_among, scale,
};
use unisono_transports::{ControlChannel, Fabric, SlotClass, Tag, WaitStrategy, Window};

/// What the acts of one operation share.
pub(in crate::engine) struct EagerExec<'e> {
    pub(in crate::engine) window: &'e mut Window,
    pub(in crate::engine) slot_class: SlotClass,
    pub(in crate::engine) sequence: u64,
    /// Where in the slots the data begins.
    pub(in crate::engine) payload_offset: usize,
    pub(in crate::engine) flag_value: u64,
    pub(in crate::engine) tag: Tag,
    pub(in crate::engine) dtype: DType,
    pub(in crate::engine) reduction: Option<ReduceOp>,
    pub(in crate::engine) finish: PostOp,
    /// Which operand the output has already.
    pub(in crate::engine) own_operand: Option<usize>,
    /// How the own slot is written.
    pub(in crate::engine) store: Store,
    pub(in crate::engine) poll: PeerPoll<'e>,
}

/// How posts of peers are waited for.
pub(in crate::engine) struct PeerPoll<'e> {
    rank: Rank,
    control: &'e mut Box<dyn ControlChannel>,
    wait_strategy: &'e mut Box<dyn WaitStrategy>,
    watchdog: &'e mut Watchdog,
    peer_acked: &'e mut [u64],
    acked: &'e mut u64,
}

impl EagerExec<'_> {
    /// Carries out `acts`, and counts what they take.
    #[cold]
    pub(in crate::engine) fn run_timed(
        &mut self,
        acts: &[Instr],
        operands: &[Operand],
        buffers: &mut Buffers<'_>,
    ) -> Result<Sample> {
        let mut trial = Sample::default();
        for act in acts {
            let begun = Instant::now();
            self.step(act, operands, buffers)?;
            if let Some((written, received, read)) = act.transfer_stats(self.poll.rank) {
                trial.add(written, received, read, begun.elapsed());
            }
        }
        Ok(trial)
    }

    /// Carries out one act.
    #[inline]
    pub(in crate::engine) fn step(
        &mut self,
        act: &Instr,
        operands: &[Operand],
        buffers: &mut Buffers<'_>,
    ) -> Result<()> {
        match act {
            Instr::Publish => self.window.publish(self.slot_class, self.sequence, self.flag_value, &self.tag),
            &Instr::Wait { peer } => {
                self.poll.wait(
                    self.window,
                    peer,
                    self.slot_class,
                    self.sequence,
                    self.flag_value,
                    &self.tag,
                )?;
            }
            Instr::Pack { from, at } => {
                let target = self.window.own_slot(
                    self.slot_class,
                    self.sequence,
                    self.payload_offset + *at,
                    from.len(),
                );
                self.read_input(self.store, buffers.input(from.clone()).into(), target);
            }
            Instr::PackAndCopy { from, at, into } => {
                let target = self.window.own_slot(
                    self.slot_class,
                    self.sequence,
                    self.payload_offset + *at,
                    from.len(),
                );
                let (input, output) = buffers.input_and_output_range(into.clone());
                copy_into(
                    &mut [(self.store, target), (Store::Cached, output.into())],
                    input[from.clone()].into(),
                );
            }
            Instr::CopyLocal { from, into } => self.copy_local(from, into, buffers),
            Instr::Get { from, at, into } => {
                let source = self.window.slot(
                    *from,
                    self.slot_class,
                    self.sequence,
                    self.payload_offset + *at,
                    into.len(),
                );
                copy_to(Store::Cached, buffers.output(into.clone()).into(), source);
            }
            Instr::Reduce { into, finish } => {
                let finish = if *finish { self.finish } else { PostOp::Identity };
                let buffers = buffers.input_and_output_range(into.clone());
                match operands {
                    [one, other] => self.reduce([one, other], buffers, finish),
                    _ => self.reduce_many(operands, buffers, finish),
                }
            }
        }
        Ok(())
    }

    fn copy_local(&self, from: &Range<usize>, into: &Range<usize>, buffers: &mut Buffers<'_>) {
        match buffers.input_and_output(from.clone(), into.clone()) {
            Some((input, output)) => self.read_input(Store::Cached, input.into(), output.into()),
            None => {
                buffers.copy_within(from.clone(), into.clone());
                if let Some(factor) = self.factor() {
                    scale(self.dtype, factor, buffers.output(into.clone()).into(), None);
                }
            }
        }
    }

    fn factor(&self) -> Option<Scalar> {
        self.reduction.and_then(|reduction| reduction.factor())
    }

    /// Reads a chunk of the input: what is multiplied beforehand, is so here.
    fn read_input(&self, store: Store, source: Source<'_>, target: Target<'_>) {
        match self.factor() {
            Some(factor) => scale(self.dtype, factor, target, Some(source)),
            None => copy_to(store, target, source),
        }
    }

    /// Where an operand is; nowhere in particular, if it is what the output has.
    fn operand_source<'s>(&'s self, operand: Operand, input: &'s [u8], bytes: usize) -> Source<'s> {
        match operand {
            Operand::Slot { rank, at } => {
                self.window.slot(rank, self.slot_class, self.sequence, self.payload_offset + at, bytes)
            }
            Operand::Input(at) => input[at..at + bytes].into(),
            Operand::Output => Source::from(&[][..]),
        }
    }

    #[inline]
    fn reduce<const COUNT: usize>(
        &self,
        operands: [&Operand; COUNT],
        (input, output): (&[u8], &mut [u8]),
        finish: PostOp,
    ) {
        let mut sources = operands.map(|operand| self.operand_source(*operand, input, output.len()));
        reduce_among(self.dtype, self.op(), finish, output.into(), &mut sources, self.own_operand);
    }

    fn reduce_many(&self, operands: &[Operand], (input, output): (&[u8], &mut [u8]), finish: PostOp) {
        let mut sources = [Source::from(&[][..]); OPERANDS_MAX];
        for (source, operand) in sources.iter_mut().zip(operands) {
            *source = self.operand_source(*operand, input, output.len());
        }
        let sources = &mut sources[..operands.len()];
        reduce_among(self.dtype, self.op(), finish, output.into(), sources, self.own_operand);
    }

    fn op(&self) -> ReduceKind {
        self.reduction.map_or(ReduceKind::Sum, |reduction| reduction.kind())
    }
}

/// The window of `fabric`, and what waiting for posts in it takes.
#[inline]
pub(in crate::engine) fn poll_context<'e>(
    fabric: &'e mut Fabric,
    watch: &'e mut Watchdog,
    seen: &'e mut [u64],
    shown: &'e mut u64,
) -> Result<(&'e mut Window, PeerPoll<'e>)> {
    let Fabric { rank, window, control, wait: pace, .. } = fabric;
    let window = window.as_mut().ok_or_else(no_window)?;
    Ok((
        window,
        PeerPoll {
            rank: *rank,
            control,
            wait_strategy: pace,
            watchdog: watch,
            peer_acked: seen,
            acked: shown,
        },
    ))
}

impl PeerPoll<'_> {
    /// Waits for post `number` of `peer`.
    pub(in crate::engine) fn wait(
        &mut self,
        window: &mut Window,
        peer: Rank,
        slot: SlotClass,
        number: u64,
        stamp: u64,
        tag: &Tag,
    ) -> Result<()> {
        // Having come to this post, the peer is through with those before it.
        self.peer_acked[peer] = number;
        if window.published(peer, slot, number) == stamp {
            return Ok(());
        }
        // Peers that run ahead may be waiting for that.
        send_acks(window, self.acked, number);
        loop {
            for _ in 0..POLLS_PER_ROUND {
                std::hint::spin_loop();
                if window.published(peer, slot, number) == stamp {
                    self.watchdog.progressed();
                    return Ok(());
                }
            }
            // Whatever the peer did instead, its stamp is here.
            let other = window.published(peer, SlotClass::Inline, number);
            if other >> DIGEST_BITS == stamp >> DIGEST_BITS && other != stamp {
                return Err(tag_mismatch(tag, &window.published_tag(peer, number), self.rank, peer));
            }
            self.watchdog.wait_round(
                &mut **self.control,
                &mut **self.wait_strategy,
                std::iter::once(peer),
            )?;
        }
    }
}

/// Tells everybody that this rank has seen so many posts, if they do not know: `shown` is what they know.
pub(in crate::engine) fn send_acks(window: &mut Window, shown: &mut u64, count: u64) {
    if *shown < count {
        window.set_acked(count);
        *shown = count;
    }
}

pub(in crate::engine) fn no_window() -> Error {
    Error::new(ErrorKind::Bug("an eager plan without a window".to_owned()))
}

/// Looks at a stamp between two looks at the clock, the abort flag and the pace.
const POLLS_PER_ROUND: u32 = 2;
