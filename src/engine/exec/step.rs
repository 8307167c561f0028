//! Execution of one step of a program, as far as it goes without waiting.

use crate::engine::buffers::StepMemory;
use crate::engine::exec::arith::{
    Arithmetic, copy_local, message_lengths, pack_scaled, reduce_received, stage_operands,
};
use crate::engine::exec::no_window;
use crate::engine::mismatch::{count_mismatch, tag_mismatch};
use crate::engine::plan::Fusion;
use crate::engine::store_tuner::Sample;
use crate::engine::telemetry::traffic::{TrafficStats, count_remote};
use crate::error::{Error, ErrorKind, Result};
use crate::schedule::{Chunk, ChunkRef, Rank, Space, Step};
use std::time::Instant;
use unisono_cuda::{
    PostOp, Source, Store, Target, copy_into, copy_to, reduce_assign, reduce_into, reduce_to, scale,
};
use unisono_transports::{Link, Tag, Window};

/// The result of an attempt to run a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum StepPoll {
    /// The step is done.
    Done,
    /// The step waits for this rank.
    Blocked(Rank),
}

/// The window as one run of a lane program sees it.
pub(in crate::engine) struct WindowView<'e> {
    pub(in crate::engine) window: &'e mut Window,
    /// Index of the signals of the lane program.
    pub(in crate::engine) lane: usize,
    /// Number of runs of this channel before this one.
    pub(in crate::engine) sequence: u64,
    /// True if this is the first run of the operation on this channel, in which tags are compared.
    pub(in crate::engine) is_first: bool,
    /// Signals sent in this run so far.
    pub(in crate::engine) signals: &'e mut u64,
    /// For each rank, a number of runs that it has completed at least.
    pub(in crate::engine) completed: &'e mut [u64],
    /// Offset of the chunks of this run.
    pub(in crate::engine) base: usize,
    /// Store kind for the chunks.
    pub(in crate::engine) store: Store,
    /// Measurement of this run, if it is timed.
    pub(in crate::engine) sample: Option<&'e mut Sample>,
}

/// The operands of all steps of one lane program.
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
    /// Runs `step`, or returns the rank that it waits for.
    ///
    /// A step that is blocked has no effect and is tried again.
    pub(in crate::engine) fn run(&mut self, step: &Step, fusion: Fusion) -> Result<StepPoll> {
        match step {
            Step::Copy { from, into } if fusion == Fusion::Elided => self.elided_copy(from, into),
            Step::Send { peer, chunks } => self.send(*peer, chunks),
            Step::Recv { peer, into } => self.recv(*peer, into),
            Step::RecvReduce { peer, with, into, finish } => self.recv_reduce(*peer, with, into, *finish),
            Step::Copy { from, into } => {
                self.timed(std::slice::from_ref(from), into, |exec| exec.copy(from, into, fusion))
            }
            Step::Reduce { from, into, finish } => {
                self.timed(from, into, |exec| exec.reduce(from, into, *finish, fusion))
            }
            Step::Signal => self.signal(),
            Step::Wait { peer, signals } => self.wait(*peer, *signals),
        }
    }

    /// Runs `work`, which writes `into`, and measures it if this run is timed.
    fn timed(
        &mut self,
        from: &[ChunkRef],
        into: &ChunkRef,
        work: impl FnOnce(&mut Self) -> Result<StepPoll>,
    ) -> Result<StepPoll> {
        if self.window_view.as_ref().is_none_or(|view| view.sample.is_none()) {
            return work(self);
        }
        let begun = Instant::now();
        let poll = work(self)?;
        let time = begun.elapsed();
        let received = if StepMemory::is_user_buffer(into.chunk) { self.memory.bytes(into.chunk) } else { 0 };
        let to_window = into.chunk.space == Space::Window;
        let written = if to_window { self.bytes_of(from.iter().chain([into]))? } else { 0 };
        let read = from.iter().any(|place| place.chunk.space == Space::Window && place.rank != self.rank);
        if let Some(sample) = self.window_view.as_mut().and_then(|view| view.sample.as_deref_mut()) {
            sample.add(written, received, read, time);
        }
        Ok(poll)
    }

    fn send(&mut self, peer: Rank, chunks: &[Chunk]) -> Result<StepPoll> {
        let bytes = chunks.iter().map(|&chunk| self.memory.bytes(chunk)).sum();
        let scaled =
            self.arithmetic.factor.is_some() && chunks.iter().any(|chunk| chunk.space == Space::Input);
        let link = link(self.links, peer)?;
        let sent = if scaled {
            // A send that was blocked finds its message still staged, unless another lane program
            // staged one.
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

    /// Counts a copy that an earlier step has done.
    fn elided_copy(&mut self, from: &ChunkRef, into: &ChunkRef) -> Result<StepPoll> {
        self.count_copy(from, into)?;
        Ok(StepPoll::Done)
    }

    /// Counts the traffic of a copy and returns its bytes.
    fn count_copy(&mut self, from: &ChunkRef, into: &ChunkRef) -> Result<usize> {
        let bytes = self.bytes_of([from, into])?;
        self.traffic.add_bytes(bytes * count_remote(self.rank, [from, into]).min(1));
        Ok(bytes)
    }

    fn copy(&mut self, from: &ChunkRef, into: &ChunkRef, fusion: Fusion) -> Result<StepPoll> {
        let bytes = self.count_copy(from, into)?;
        let slice_bytes = self.memory.slice_bytes;
        match (from.chunk.space, into.chunk.space) {
            (Space::Window, Space::Window) => {
                let view = require_window(self.window_view.as_ref())?;
                copy_to(
                    Store::Cached,
                    view.target(into, bytes, slice_bytes),
                    view.source(from, bytes, slice_bytes),
                );
            }
            (Space::Window, _) => {
                let store = self.arithmetic.store_into(into.chunk);
                let source = require_window(self.window_view.as_ref())?.source(from, bytes, slice_bytes);
                copy_to(store, self.memory.target(into.chunk, bytes), source);
            }
            (_, Space::Window) => self.pack(from, into, fusion, bytes)?,
            _ => copy_local(&mut self.memory, &self.arithmetic, from.chunk, into.chunk, bytes),
        }
        Ok(StepPoll::Done)
    }

    /// Copies a chunk of this rank into a window, and into the output if the step is fused.
    fn pack(&mut self, from: &ChunkRef, into: &ChunkRef, fusion: Fusion, bytes: usize) -> Result<()> {
        let view = require_window(self.window_view.as_ref())?;
        let target = view.target(into, bytes, self.memory.slice_bytes);
        let Arithmetic { dtype, .. } = self.arithmetic;
        let factor = self.arithmetic.factor_of(from.chunk);
        if let (Fusion::AlsoInto(own), None) = (fusion, factor)
            && let Some((output, source)) = self.memory.target_and_source(own, from.chunk)
        {
            copy_into(&mut [(view.store, target), (self.arithmetic.store_into(own), output)], source);
            return Ok(());
        }
        let source = self.memory.source(from.chunk);
        match factor {
            Some(scalar) => scale(dtype, scalar, target, Some(source)),
            None => copy_to(view.store, target, source),
        }
        if let Fusion::AlsoInto(own) = fusion {
            copy_local(&mut self.memory, &self.arithmetic, from.chunk, own, bytes);
        }
        Ok(())
    }

    /// Combines `from` into `into`, [`OPERANDS_MAX`] operands in one pass over memory.
    fn reduce(
        &mut self,
        from: &[ChunkRef],
        into: &ChunkRef,
        finish: bool,
        fusion: Fusion,
    ) -> Result<StepPoll> {
        let bytes = self.bytes_of(from.iter().chain([into]))?;
        // A first operand that is also the target is moved once.
        let elsewhere = Some(into).filter(|&into| from.first() != Some(into));
        self.traffic.add_bytes(bytes * count_remote(self.rank, from.iter().chain(elsewhere)));
        stage_operands(&mut self.memory, &self.arithmetic, from, fusion.user_target(into), bytes);
        let passes = from.len().div_ceil(OPERANDS_MAX);
        let mut staged = 0;
        for (pass, operands) in from.chunks(OPERANDS_MAX).enumerate() {
            let finish = if finish && pass + 1 == passes { self.arithmetic.finish } else { PostOp::Identity };
            match operands.len() {
                0..=8 => {
                    self.reduce_pass::<8>(operands, into, bytes, (pass == 0, finish, fusion), &mut staged)?
                }
                _ => self.reduce_pass::<OPERANDS_MAX>(
                    operands,
                    into,
                    bytes,
                    (pass == 0, finish, fusion),
                    &mut staged,
                )?,
            }
        }
        Ok(StepPoll::Done)
    }

    /// Runs one pass of a reduction of at most `MAX` operands.
    fn reduce_pass<const MAX: usize>(
        &mut self,
        operands: &[ChunkRef],
        into: &ChunkRef,
        bytes: usize,
        (first, finish, fusion): (bool, PostOp, Fusion),
        staged: &mut usize,
    ) -> Result<()> {
        let Arithmetic { dtype, op, store, .. } = self.arithmetic;
        let slice_bytes = self.memory.slice_bytes;
        let view = self.window_view.as_ref();
        let own = fusion.user_target(into);
        let store_own = self.arithmetic.store_into(own);
        let open = self.memory.open_target(own, bytes);
        let mut sources = [Source::from(&[][..]); MAX];
        for (source, place) in sources.iter_mut().zip(operands) {
            *source = match (place.chunk.space, open.input) {
                (Space::Window, _) => require_window(view)?.source(place, bytes, slice_bytes),
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
        match (open.target, fusion) {
            (Some(target), Fusion::AlsoInto(_)) => {
                let view = require_window(view)?;
                let window = view.target(into, bytes, slice_bytes);
                reduce_into(dtype, op, finish, &mut [(view.store, window), (store, target)], sources);
            }
            (Some(target), _) if first => reduce_to(store_own, dtype, op, finish, target, sources),
            (Some(target), _) => reduce_assign(dtype, op, finish, target, sources),
            (None, _) => {
                let view = require_window(view)?;
                let target = view.target(into, bytes, slice_bytes);
                match first {
                    true => reduce_to(view.store, dtype, op, finish, target, sources),
                    false => reduce_assign(dtype, op, finish, target, sources),
                }
            }
        }
        Ok(())
    }

    fn signal(&mut self) -> Result<StepPoll> {
        let view = self.window_view.as_mut().ok_or_else(no_window)?;
        if *view.signals == 0 && view.is_first {
            view.window.set_tag(view.lane, view.parity(), &self.tag);
        }
        *view.signals += 1;
        view.window.signal(view.lane, view.sequence << SIGNAL_BITS | *view.signals);
        Ok(StepPoll::Done)
    }

    fn wait(&mut self, peer: Rank, signals: u32) -> Result<StepPoll> {
        let view = self.window_view.as_mut().ok_or_else(no_window)?;
        if view.window.last_signal(peer, view.lane) < view.sequence << SIGNAL_BITS | u64::from(signals) {
            return Ok(StepPoll::Blocked(peer));
        }
        // A peer that has begun this run has completed those before it.
        view.completed[peer] = view.sequence;
        if view.is_first {
            let tag = view.window.tag(peer, view.lane, view.parity());
            if tag != self.tag {
                return Err(tag_mismatch(&self.tag, &tag, self.rank, peer));
            }
        }
        Ok(StepPoll::Done)
    }

    /// Returns the bytes that a step between these places moves. User buffers define the length,
    /// else scratch.
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

/// Returns the link to `peer`.
pub(in crate::engine) fn link(links: &mut [Option<Box<dyn Link>>], peer: Rank) -> Result<&mut dyn Link> {
    match links.get_mut(peer) {
        Some(Some(link)) => Ok(&mut **link),
        _ => Err(Error::new(ErrorKind::Unsupported(format!("there is no link to rank {peer}")))),
    }
}

/// Returns the bytes of the next message once it has arrived. Fails if its tag is not the expected
/// one.
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

fn require_window<'b, 'e>(view: Option<&'b WindowView<'e>>) -> Result<&'b WindowView<'e>> {
    view.ok_or_else(no_window)
}

/// Operands combined in one pass over memory.
pub(in crate::engine) const OPERANDS_MAX: usize = 64;
/// Low bits of a signal, which count the signals of a run. The upper bits count runs.
const SIGNAL_BITS: u32 = 16;
