//! One step of a program, carried out as far as it goes without waiting.

use crate::engine::buffers::StepMemory;
use crate::engine::exec::arith::{
    Arithmetic, copy_local, count_mismatch, message_lengths, pack_scaled, reduce_received, stage_operands,
};
use crate::engine::plan::Fusion;
use crate::engine::store_tuner::Sample;
use crate::engine::telemetry::traffic::{TrafficStats, count_remote};
use crate::error::{Error, ErrorKind, Result};
use crate::op_desc::OpDesc;
use crate::schedule::{Chunk, ChunkRef, Rank, Space, Step};
use std::time::Instant;
use unisono_cuda::{
    PostOp, Source, Store, Target, copy_into, copy_to, reduce_assign, reduce_into, reduce_to, scale,
};
use unisono_transports::{Link, Tag, Window};

/// What became of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum StepPoll {
    /// It is done.
    Done,
    /// It needs something from this rank first.
    Blocked(Rank),
}

/// A window as one instance of a program sees it.
pub(in crate::engine) struct WindowView<'e> {
    pub(in crate::engine) window: &'e mut Window,
    /// Line of the lane_program's signals.
    pub(in crate::engine) lane: usize,
    /// Instances run on this channel before this one.
    pub(in crate::engine) sequence: u64,
    /// Whether this is the operation's first instance on this channel: there, tags are compared.
    pub(in crate::engine) is_first: bool,
    /// Signals given in this instance so far.
    pub(in crate::engine) signals: &'e mut u64,
    /// For each rank, how many instances it has surely finished.
    pub(in crate::engine) completed: &'e mut [u64],
    /// Where the chunks of this instance begin.
    pub(in crate::engine) base: usize,
    /// How they are written.
    pub(in crate::engine) store: Store,
    /// Counts what that takes, if it is timed.
    pub(in crate::engine) sample: Option<&'e mut Sample>,
}

/// Everything a step of one lane_program touches.
pub(in crate::engine) struct StepExec<'e, 'm, 'a> {
    pub(in crate::engine) rank: Rank,
    pub(in crate::engine) links: &'e mut [Option<Box<dyn Link>>],
    pub(in crate::engine) window_view: Option<WindowView<'e>>,
    pub(in crate::engine) memory: StepMemory<'m, 'a>,
    pub(in crate::engine) arithmetic: Arithmetic,
    pub(in crate::engine) lane: usize,
    pub(in crate::engine) tag: Tag,
    pub(in crate::engine) traffic: &'e mut TrafficStats,
}

impl StepExec<'_, '_, '_> {
    /// Carries out `step`, or finds out whom it waits for.
    pub(in crate::engine) fn run(&mut self, step: &Step, fused: Fusion) -> Result<StepPoll> {
        match step {
            Step::Copy { from, into } if fused == Fusion::Elided => self.elided_copy(from, into),
            Step::Send { peer, chunks } => self.send(*peer, chunks),
            Step::Recv { peer, into } => self.recv(*peer, into),
            Step::RecvReduce { peer, with, into, finish } => self.recv_reduce(*peer, with, into, *finish),
            Step::Copy { from, into } => {
                self.timed(std::slice::from_ref(from), into, |stage| stage.copy(from, into, fused))
            }
            Step::Reduce { from, into, finish } => {
                self.timed(from, into, |stage| stage.reduce(from, into, *finish, fused))
            }
            Step::Signal => self.signal(),
            Step::Wait { peer, signals } => self.wait(*peer, *signals),
        }
    }

    /// Does `work`, which fills `into`, and counts what it takes if this instance is timed.
    fn timed(
        &mut self,
        from: &[ChunkRef],
        into: &ChunkRef,
        work: impl FnOnce(&mut Self) -> Result<StepPoll>,
    ) -> Result<StepPoll> {
        if self.window_view.as_ref().is_none_or(|bank| bank.sample.is_none()) {
            return work(self);
        }
        let begun = Instant::now();
        let outcome = work(self)?;
        let time = begun.elapsed();
        let received = if StepMemory::is_user_buffer(into.chunk) { self.memory.bytes(into.chunk) } else { 0 };
        let to_window = into.chunk.space == Space::Window;
        let written = if to_window { self.bytes_of(from.iter().chain([into]))? } else { 0 };
        let read = from.iter().any(|place| place.chunk.space == Space::Window && place.rank != self.rank);
        if let Some(trial) = self.window_view.as_mut().and_then(|bank| bank.sample.as_deref_mut()) {
            trial.add(written, received, read, time);
        }
        Ok(outcome)
    }

    fn send(&mut self, peer: Rank, chunks: &[Chunk]) -> Result<StepPoll> {
        let bytes = chunks.iter().map(|&chunk| self.memory.bytes(chunk)).sum();
        let scaled =
            self.arithmetic.factor.is_some() && chunks.iter().any(|chunk| chunk.space == Space::Input);
        let link = link(self.links, peer)?;
        let sent = if scaled {
            // A send that had to wait finds its message still there, unless another lane_program was here.
            if self.memory.scratch.staged_lane != Some(self.lane) {
                pack_scaled(&mut self.memory, &self.arithmetic, chunks, bytes);
                self.memory.scratch.staged_lane = Some(self.lane);
            }
            let staging = Source::from(&self.memory.scratch.staging[..bytes]);
            link.try_send(self.lane, &self.tag, bytes, &mut std::iter::once(staging))?
        } else {
            let mut parts = chunks.iter().map(|&chunk| self.memory.source(chunk));
            link.try_send(self.lane, &self.tag, bytes, &mut parts)?
        };
        if !sent {
            return Ok(StepPoll::Blocked(peer));
        }
        self.memory.scratch.staged_lane = None;
        Ok(StepPoll::Done)
    }

    fn recv(&mut self, peer: Rank, into: &[Chunk]) -> Result<StepPoll> {
        let link = link(self.links, peer)?;
        let Some(bytes) = match_head(link, self.lane, &self.tag, self.rank, peer)? else {
            return Ok(StepPoll::Blocked(peer));
        };
        let unknown = message_lengths(&self.memory, into, bytes, peer, self.rank)?;
        if let [chunk] = into {
            let target = self.memory.target(*chunk, bytes);
            if !link.recv_into(self.lane, target)? {
                return Ok(StepPoll::Blocked(peer));
            }
            self.traffic.add_bytes(bytes);
            return Ok(StepPoll::Done);
        }
        let Some(body) = link.body(self.lane)? else {
            return Ok(StepPoll::Blocked(peer));
        };
        let mut offset = 0;
        for &chunk in into {
            let bytes = if StepMemory::is_user_buffer(chunk) { self.memory.bytes(chunk) } else { unknown };
            copy_to(Store::Cached, self.memory.target(chunk, bytes), body.slice(offset..offset + bytes));
            offset += bytes;
        }
        link.release(self.lane);
        self.traffic.add_bytes(offset);
        Ok(StepPoll::Done)
    }

    fn recv_reduce(&mut self, peer: Rank, with: &[Chunk], into: &[Chunk], finish: bool) -> Result<StepPoll> {
        let link = link(self.links, peer)?;
        let Some(bytes) = match_head(link, self.lane, &self.tag, self.rank, peer)? else {
            return Ok(StepPoll::Blocked(peer));
        };
        let expected = with.iter().map(|&chunk| self.memory.bytes(chunk)).sum();
        if bytes != expected {
            return Err(count_mismatch(peer, bytes, self.rank, expected));
        }
        let Some(body) = link.body(self.lane)? else {
            return Ok(StepPoll::Blocked(peer));
        };
        let mut offset = 0;
        for (&with, &into) in with.iter().zip(into) {
            let bytes = self.memory.bytes(with);
            let arrived = body.slice(offset..offset + bytes);
            reduce_received(&mut self.memory, &self.arithmetic, with, into, arrived, finish);
            offset += bytes;
        }
        link.release(self.lane);
        self.traffic.add_bytes(offset);
        Ok(StepPoll::Done)
    }

    /// What an earlier step has copied counts as if it were copied here.
    fn elided_copy(&mut self, from: &ChunkRef, into: &ChunkRef) -> Result<StepPoll> {
        self.count_copy(from, into)?;
        Ok(StepPoll::Done)
    }

    /// Bytes of a copy, which are counted.
    fn count_copy(&mut self, from: &ChunkRef, into: &ChunkRef) -> Result<usize> {
        let bytes = self.bytes_of([from, into])?;
        self.traffic.add_bytes(bytes * count_remote(self.rank, [from, into]).min(1));
        Ok(bytes)
    }

    fn copy(&mut self, from: &ChunkRef, into: &ChunkRef, fused: Fusion) -> Result<StepPoll> {
        let bytes = self.count_copy(from, into)?;
        let slice_bytes = self.memory.slice_bytes;
        match (from.chunk.space, into.chunk.space) {
            (Space::Window, Space::Window) => {
                let bank = require_window(self.window_view.as_ref())?;
                copy_to(
                    Store::Cached,
                    bank.target(into, bytes, slice_bytes),
                    bank.source(from, bytes, slice_bytes),
                );
            }
            (Space::Window, _) => {
                let store = self.arithmetic.store_into(into.chunk);
                let source = require_window(self.window_view.as_ref())?.source(from, bytes, slice_bytes);
                copy_to(store, self.memory.target(into.chunk, bytes), source);
            }
            (_, Space::Window) => self.pack(from, into, fused, bytes)?,
            _ => copy_local(&mut self.memory, &self.arithmetic, from.chunk, into.chunk, bytes),
        }
        Ok(StepPoll::Done)
    }

    /// Copies a chunk of this rank's into a window, and into the output if it goes there, too.
    fn pack(&mut self, from: &ChunkRef, into: &ChunkRef, fused: Fusion, bytes: usize) -> Result<()> {
        let bank = require_window(self.window_view.as_ref())?;
        let target = bank.target(into, bytes, self.memory.slice_bytes);
        let Arithmetic { dtype, .. } = self.arithmetic;
        let factor = self.arithmetic.factor_of(from.chunk);
        if let (Fusion::AlsoInto(own), None) = (fused, factor)
            && let Some((output, source)) = self.memory.target_and_source(own, from.chunk)
        {
            copy_into(&mut [(bank.store, target), (self.arithmetic.store_into(own), output)], source);
            return Ok(());
        }
        let source = self.memory.source(from.chunk);
        match factor {
            Some(scalar) => scale(dtype, scalar, target, Some(source)),
            None => copy_to(bank.store, target, source),
        }
        if let Fusion::AlsoInto(own) = fused {
            copy_local(&mut self.memory, &self.arithmetic, from.chunk, own, bytes);
        }
        Ok(())
    }

    /// Folds `from` into `into`, [`OPERANDS_MAX`] operands in one pass over memory.
    fn reduce(
        &mut self,
        from: &[ChunkRef],
        into: &ChunkRef,
        finish: bool,
        fused: Fusion,
    ) -> Result<StepPoll> {
        let bytes = self.bytes_of(from.iter().chain([into]))?;
        // What is added to where it lies is moved once.
        let elsewhere = Some(into).filter(|&into| from.first() != Some(into));
        self.traffic.add_bytes(bytes * count_remote(self.rank, from.iter().chain(elsewhere)));
        stage_operands(&mut self.memory, &self.arithmetic, from, fused.user_target(into), bytes);
        let passes = from.len().div_ceil(OPERANDS_MAX);
        let mut staged = 0;
        for (pass, operands) in from.chunks(OPERANDS_MAX).enumerate() {
            let finish = if finish && pass + 1 == passes { self.arithmetic.finish } else { PostOp::Identity };
            match operands.len() {
                0..=8 => {
                    self.reduce_pass::<8>(operands, into, bytes, (pass == 0, finish, fused), &mut staged)?
                }
                _ => self.reduce_pass::<OPERANDS_MAX>(
                    operands,
                    into,
                    bytes,
                    (pass == 0, finish, fused),
                    &mut staged,
                )?,
            }
        }
        Ok(StepPoll::Done)
    }

    /// One pass of a reduction; `MAX` operands at most.
    fn reduce_pass<const MAX: usize>(
        &mut self,
        operands: &[ChunkRef],
        into: &ChunkRef,
        bytes: usize,
        (first, finish, fused): (bool, PostOp, Fusion),
        staged: &mut usize,
    ) -> Result<()> {
        let Arithmetic { dtype, op, store, .. } = self.arithmetic;
        let slice_bytes = self.memory.slice_bytes;
        let bank = self.window_view.as_ref();
        let own = fused.user_target(into);
        let store_own = self.arithmetic.store_into(own);
        let open = self.memory.open_target(own, bytes);
        let mut sources = [Source::from(&[][..]); MAX];
        for (source, place) in sources.iter_mut().zip(operands) {
            *source = match (place.chunk.space, open.input) {
                (Space::Window, _) => require_window(bank)?.source(place, bytes, slice_bytes),
                (Space::Input, Some(input)) if self.arithmetic.factor.is_none() => {
                    let slice =
                        open.input_layout.slice(place.chunk.index as usize, open.slice_index, slice_bytes);
                    Source::from(&input[slice])
                }
                _ => {
                    *staged += bytes;
                    Source::from(&open.staging[*staged - bytes..*staged])
                }
            };
        }
        let sources = &sources[..operands.len()];
        match (open.target, fused) {
            (Some(target), Fusion::AlsoInto(_)) => {
                let bank = require_window(bank)?;
                let window = bank.target(into, bytes, slice_bytes);
                reduce_into(dtype, op, finish, &mut [(bank.store, window), (store, target)], sources);
            }
            (Some(target), _) if first => reduce_to(store_own, dtype, op, finish, target, sources),
            (Some(target), _) => reduce_assign(dtype, op, finish, target, sources),
            (None, _) => {
                let bank = require_window(bank)?;
                let target = bank.target(into, bytes, slice_bytes);
                match first {
                    true => reduce_to(bank.store, dtype, op, finish, target, sources),
                    false => reduce_assign(dtype, op, finish, target, sources),
                }
            }
        }
        Ok(())
    }

    fn signal(&mut self) -> Result<StepPoll> {
        let bank = self.window_view.as_mut().ok_or_else(no_window)?;
        if *bank.signals == 0 && bank.is_first {
            bank.window.set_tag(bank.lane, bank.parity(), &self.tag);
        }
        *bank.signals += 1;
        bank.window.signal(bank.lane, bank.sequence << SIGNAL_BITS | *bank.signals);
        Ok(StepPoll::Done)
    }

    fn wait(&mut self, peer: Rank, signals: u32) -> Result<StepPoll> {
        let bank = self.window_view.as_mut().ok_or_else(no_window)?;
        if bank.window.last_signal(peer, bank.lane) < bank.sequence << SIGNAL_BITS | u64::from(signals) {
            return Ok(StepPoll::Blocked(peer));
        }
        // Having begun this instance, the peer has finished those before it.
        bank.completed[peer] = bank.sequence;
        if bank.is_first {
            let tag = bank.window.tag(peer, bank.lane, bank.parity());
            if tag != self.tag {
                return Err(tag_mismatch(&self.tag, &tag, self.rank, peer));
            }
        }
        Ok(StepPoll::Done)
    }

    /// Bytes that a step between these places moves: the caller's buffers decide, else scratch.
    fn bytes_of<'p>(&self, places: impl IntoIterator<Item = &'p ChunkRef> + Clone) -> Result<usize> {
        let length = |chunk: Chunk| self.memory.bytes(chunk);
        let mut callers = places.clone().into_iter().filter(|place| StepMemory::is_user_buffer(place.chunk));
        if let Some(place) = callers.next() {
            return Ok(length(place.chunk));
        }
        let mut scratch = places.into_iter().filter(|place| place.chunk.space == Space::Scratch);
        scratch.next().map(|place| length(place.chunk)).ok_or_else(|| {
            Error::new(ErrorKind::Bug("a step between windows alone has no length".to_owned()))
        })
    }
}

impl WindowView<'_> {
    fn parity(&self) -> usize {
        (self.sequence & 1) as usize
    }

    fn source(&self, place: &ChunkRef, bytes: usize, slice_bytes: usize) -> Source<'_> {
        self.window.source(place.rank, self.base + place.chunk.index as usize * slice_bytes, bytes)
    }

    fn target(&self, place: &ChunkRef, bytes: usize, slice_bytes: usize) -> Target<'_> {
        self.window.target(place.rank, self.base + place.chunk.index as usize * slice_bytes, bytes)
    }
}

/// The link to `peer`.
pub(in crate::engine) fn link(links: &mut [Option<Box<dyn Link>>], peer: Rank) -> Result<&mut dyn Link> {
    match links.get_mut(peer) {
        Some(Some(link)) => Ok(&mut **link),
        _ => Err(Error::new(ErrorKind::Unsupported(format!("there is no link to rank {peer}")))),
    }
}

/// Bytes of the message that is next, once it is here and is the one expected.
pub(in crate::engine) fn match_head(
    link: &mut dyn Link,
    lane: usize,
    expected: &Tag,
    rank: Rank,
    peer: Rank,
) -> Result<Option<usize>> {
    match link.header(lane)? {
        None => Ok(None),
        Some(head) if head.tag == *expected => Ok(Some(head.bytes)),
        Some(head) => Err(tag_mismatch(expected, &head.tag, rank, peer)),
    }
}

/// What it means that `peer` tagged something otherwise than this rank expected.
pub(in crate::engine) fn tag_mismatch(ours: &Tag, theirs: &Tag, rank: Rank, peer: Rank) -> Error {
    let (call, other_call) = (OpDesc::from_tag(ours), OpDesc::from_tag(theirs));
    Error::new(if call == other_call {
        let what = format!("slice {:#x} of {call} where {:#x} was expected", theirs.0[3], ours.0[3]);
        ErrorKind::ProtocolViolation { peer, what }
    } else {
        ErrorKind::Mismatch { rank, op: call, other: peer, other_op: other_call }
    })
}

fn require_window<'b, 'e>(bank: Option<&'b WindowView<'e>>) -> Result<&'b WindowView<'e>> {
    bank.ok_or_else(no_window)
}

fn no_window() -> Error {
    Error::new(ErrorKind::Unsupported("this algorithm needs memory that all ranks share".to_owned()))
}

/// Operands folded in one pass over memory.
pub(in crate::engine) const OPERANDS_MAX: usize = 64;
/// Low bits of a signal that count within an instance.
const SIGNAL_BITS: u32 = 16;
