//! One step of a program, carried out as far as it goes without waiting.

use super::memory::Memory;
use super::operand::{
    Arithmetic, combine, copy_local, message_lengths, stage_operands, stage_scaled, wrong_length,
};
use super::plan::Fused;
use super::staging::Trial;
use super::traffic::{Traffic, foreign};
use crate::call::Call;
use crate::error::{Error, ErrorKind, Result};
use crate::schedule::{Block, Place, Rank, Space, Step};
use std::time::Instant;
use unisono_cuda::{
    Finish, Source, Store, Target, copy_into, copy_to, reduce_assign, reduce_into, reduce_to, scale,
};
use unisono_transports::{Link, Tag, Window};

/// What became of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is done.
    Done,
    /// It needs something from this rank first.
    Blocked(Rank),
}

/// A window as one instance of a program sees it.
pub(crate) struct Bank<'e> {
    pub(crate) window: &'e mut Window,
    /// Line of the strand's signals.
    pub(crate) line: usize,
    /// Instances run on this channel before this one.
    pub(crate) instance: u64,
    /// Whether this is the operation's first instance on this channel: there, tags are compared.
    pub(crate) first: bool,
    /// Signals given in this instance so far.
    pub(crate) signals: &'e mut u64,
    /// For each rank, how many instances it has surely finished.
    pub(crate) finished: &'e mut [u64],
    /// Where the blocks of this instance begin.
    pub(crate) base: usize,
    /// How they are written.
    pub(crate) store: Store,
    /// Counts what that takes, if it is timed.
    pub(crate) trial: Option<&'e mut Trial>,
}

/// Everything a step of one strand touches.
pub(crate) struct Stage<'e, 'm, 'a> {
    pub(crate) rank: Rank,
    pub(crate) links: &'e mut [Option<Box<dyn Link>>],
    pub(crate) bank: Option<Bank<'e>>,
    pub(crate) memory: Memory<'m, 'a>,
    pub(crate) arithmetic: Arithmetic,
    pub(crate) lane: usize,
    pub(crate) tag: Tag,
    pub(crate) traffic: &'e mut Traffic,
}

impl Stage<'_, '_, '_> {
    /// Carries out `step`, or finds out whom it waits for.
    pub(crate) fn run(&mut self, step: &Step, fused: Fused) -> Result<Outcome> {
        match step {
            Step::Copy { from, into } if fused == Fused::Done => self.copied(from, into),
            Step::Send { peer, blocks } => self.send(*peer, blocks),
            Step::Recv { peer, into } => self.recv(*peer, into),
            Step::RecvReduce { peer, with, into, finish } => self.recv_reduce(*peer, with, into, *finish),
            Step::Copy { from, into } => {
                self.tried(std::slice::from_ref(from), into, |stage| stage.copy(from, into, fused))
            }
            Step::Reduce { from, into, finish } => {
                self.tried(from, into, |stage| stage.reduce(from, into, *finish, fused))
            }
            Step::Signal => self.signal(),
            Step::Wait { peer, signals } => self.wait(*peer, *signals),
        }
    }

    /// Does `work`, which fills `into`, and counts what it takes if this instance is timed.
    fn tried(
        &mut self,
        from: &[Place],
        into: &Place,
        work: impl FnOnce(&mut Self) -> Result<Outcome>,
    ) -> Result<Outcome> {
        if self.bank.as_ref().is_none_or(|bank| bank.trial.is_none()) {
            return work(self);
        }
        let begun = Instant::now();
        let outcome = work(self)?;
        let time = begun.elapsed();
        let gotten = if Memory::is_callers(into.block) { self.memory.bytes(into.block) } else { 0 };
        let to_window = into.block.space == Space::Window;
        let written = if to_window { self.bytes_of(from.iter().chain([into]))? } else { 0 };
        let read = from.iter().any(|place| place.block.space == Space::Window && place.rank != self.rank);
        if let Some(trial) = self.bank.as_mut().and_then(|bank| bank.trial.as_deref_mut()) {
            trial.add(written, gotten, read, time);
        }
        Ok(outcome)
    }

    fn send(&mut self, peer: Rank, blocks: &[Block]) -> Result<Outcome> {
        let bytes = blocks.iter().map(|&block| self.memory.bytes(block)).sum();
        let scaled =
            self.arithmetic.factor.is_some() && blocks.iter().any(|block| block.space == Space::Input);
        let link = link(self.links, peer)?;
        let sent = if scaled {
            // A send that had to wait finds its message still there, unless another strand was here.
            if self.memory.scratch.staged_for != Some(self.lane) {
                stage_scaled(&mut self.memory, &self.arithmetic, blocks, bytes);
                self.memory.scratch.staged_for = Some(self.lane);
            }
            let staging = Source::from(&self.memory.scratch.staging[..bytes]);
            link.try_send(self.lane, &self.tag, bytes, &mut std::iter::once(staging))?
        } else {
            let mut parts = blocks.iter().map(|&block| self.memory.source(block));
            link.try_send(self.lane, &self.tag, bytes, &mut parts)?
        };
        if !sent {
            return Ok(Outcome::Blocked(peer));
        }
        self.memory.scratch.staged_for = None;
        Ok(Outcome::Done)
    }

    fn recv(&mut self, peer: Rank, into: &[Block]) -> Result<Outcome> {
        let link = link(self.links, peer)?;
        let Some(bytes) = head(link, self.lane, &self.tag, self.rank, peer)? else {
            return Ok(Outcome::Blocked(peer));
        };
        let unknown = message_lengths(&self.memory, into, bytes, peer, self.rank)?;
        if let [block] = into {
            let target = self.memory.target(*block, bytes);
            if !link.take(self.lane, target)? {
                return Ok(Outcome::Blocked(peer));
            }
            self.traffic.moved(bytes);
            return Ok(Outcome::Done);
        }
        let Some(body) = link.body(self.lane)? else {
            return Ok(Outcome::Blocked(peer));
        };
        let mut offset = 0;
        for &block in into {
            let bytes = if Memory::is_callers(block) { self.memory.bytes(block) } else { unknown };
            copy_to(Store::Cached, self.memory.target(block, bytes), body.slice(offset..offset + bytes));
            offset += bytes;
        }
        link.release(self.lane);
        self.traffic.moved(offset);
        Ok(Outcome::Done)
    }

    fn recv_reduce(&mut self, peer: Rank, with: &[Block], into: &[Block], finish: bool) -> Result<Outcome> {
        let link = link(self.links, peer)?;
        let Some(bytes) = head(link, self.lane, &self.tag, self.rank, peer)? else {
            return Ok(Outcome::Blocked(peer));
        };
        let expected = with.iter().map(|&block| self.memory.bytes(block)).sum();
        if bytes != expected {
            return Err(wrong_length(peer, bytes, self.rank, expected));
        }
        let Some(body) = link.body(self.lane)? else {
            return Ok(Outcome::Blocked(peer));
        };
        let mut offset = 0;
        for (&with, &into) in with.iter().zip(into) {
            let bytes = self.memory.bytes(with);
            let arrived = body.slice(offset..offset + bytes);
            combine(&mut self.memory, &self.arithmetic, with, into, arrived, finish);
            offset += bytes;
        }
        link.release(self.lane);
        self.traffic.moved(offset);
        Ok(Outcome::Done)
    }

    /// What an earlier step has copied counts as if it were copied here.
    fn copied(&mut self, from: &Place, into: &Place) -> Result<Outcome> {
        self.count_copy(from, into)?;
        Ok(Outcome::Done)
    }

    /// Bytes of a copy, which are counted.
    fn count_copy(&mut self, from: &Place, into: &Place) -> Result<usize> {
        let bytes = self.bytes_of([from, into])?;
        self.traffic.moved(bytes * foreign(self.rank, [from, into]).min(1));
        Ok(bytes)
    }

    fn copy(&mut self, from: &Place, into: &Place, fused: Fused) -> Result<Outcome> {
        let bytes = self.count_copy(from, into)?;
        let slice_bytes = self.memory.slice_bytes;
        match (from.block.space, into.block.space) {
            (Space::Window, Space::Window) => {
                let bank = need(self.bank.as_ref())?;
                copy_to(
                    Store::Cached,
                    bank.target(into, bytes, slice_bytes),
                    bank.source(from, bytes, slice_bytes),
                );
            }
            (Space::Window, _) => {
                let store = self.arithmetic.store_into(into.block);
                let source = need(self.bank.as_ref())?.source(from, bytes, slice_bytes);
                copy_to(store, self.memory.target(into.block, bytes), source);
            }
            (_, Space::Window) => self.lay(from, into, fused, bytes)?,
            _ => copy_local(&mut self.memory, &self.arithmetic, from.block, into.block, bytes),
        }
        Ok(Outcome::Done)
    }

    /// Copies a block of this rank's into a window, and into the output if it goes there, too.
    fn lay(&mut self, from: &Place, into: &Place, fused: Fused, bytes: usize) -> Result<()> {
        let bank = need(self.bank.as_ref())?;
        let target = bank.target(into, bytes, self.memory.slice_bytes);
        let Arithmetic { dtype, .. } = self.arithmetic;
        let factor = self.arithmetic.factor_of(from.block);
        if let (Fused::Also(own), None) = (fused, factor)
            && let Some((output, source)) = self.memory.target_and_source(own, from.block)
        {
            copy_into(&mut [(bank.store, target), (self.arithmetic.store_into(own), output)], source);
            return Ok(());
        }
        let source = self.memory.source(from.block);
        match factor {
            Some(scalar) => scale(dtype, scalar, target, Some(source)),
            None => copy_to(bank.store, target, source),
        }
        if let Fused::Also(own) = fused {
            copy_local(&mut self.memory, &self.arithmetic, from.block, own, bytes);
        }
        Ok(())
    }

    /// Folds `from` into `into`, [`OPERANDS_MAX`] operands in one pass over memory.
    fn reduce(&mut self, from: &[Place], into: &Place, finish: bool, fused: Fused) -> Result<Outcome> {
        let bytes = self.bytes_of(from.iter().chain([into]))?;
        // What is added to where it lies is moved once.
        let elsewhere = Some(into).filter(|&into| from.first() != Some(into));
        self.traffic.moved(bytes * foreign(self.rank, from.iter().chain(elsewhere)));
        stage_operands(&mut self.memory, &self.arithmetic, from, fused.own(into), bytes);
        let passes = from.len().div_ceil(OPERANDS_MAX);
        let mut staged = 0;
        for (pass, operands) in from.chunks(OPERANDS_MAX).enumerate() {
            let finish = if finish && pass + 1 == passes { self.arithmetic.finish } else { Finish::Keep };
            match operands.len() {
                0..=8 => self.fold::<8>(operands, into, bytes, (pass == 0, finish, fused), &mut staged)?,
                _ => {
                    self.fold::<OPERANDS_MAX>(operands, into, bytes, (pass == 0, finish, fused), &mut staged)?
                }
            }
        }
        Ok(Outcome::Done)
    }

    /// One pass of a reduction; `MAX` operands at most.
    fn fold<const MAX: usize>(
        &mut self,
        operands: &[Place],
        into: &Place,
        bytes: usize,
        (first, finish, fused): (bool, Finish, Fused),
        staged: &mut usize,
    ) -> Result<()> {
        let Arithmetic { dtype, op, store, .. } = self.arithmetic;
        let slice_bytes = self.memory.slice_bytes;
        let bank = self.bank.as_ref();
        let own = fused.own(into);
        let store_own = self.arithmetic.store_into(own);
        let open = self.memory.open(own, bytes);
        let mut sources = [Source::from(&[][..]); MAX];
        for (source, place) in sources.iter_mut().zip(operands) {
            *source = match (place.block.space, open.input) {
                (Space::Window, _) => need(bank)?.source(place, bytes, slice_bytes),
                (Space::Input, Some(input)) if self.arithmetic.factor.is_none() => {
                    let slice = open.input_layout.slice(place.block.index as usize, open.piece, slice_bytes);
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
            (Some(target), Fused::Also(_)) => {
                let bank = need(bank)?;
                let window = bank.target(into, bytes, slice_bytes);
                reduce_into(dtype, op, finish, &mut [(bank.store, window), (store, target)], sources);
            }
            (Some(target), _) if first => reduce_to(store_own, dtype, op, finish, target, sources),
            (Some(target), _) => reduce_assign(dtype, op, finish, target, sources),
            (None, _) => {
                let bank = need(bank)?;
                let target = bank.target(into, bytes, slice_bytes);
                match first {
                    true => reduce_to(bank.store, dtype, op, finish, target, sources),
                    false => reduce_assign(dtype, op, finish, target, sources),
                }
            }
        }
        Ok(())
    }

    fn signal(&mut self) -> Result<Outcome> {
        let bank = self.bank.as_mut().ok_or_else(no_window)?;
        if *bank.signals == 0 && bank.first {
            bank.window.set_tag(bank.line, bank.parity(), &self.tag);
        }
        *bank.signals += 1;
        bank.window.signal(bank.line, bank.instance << SIGNAL_BITS | *bank.signals);
        Ok(Outcome::Done)
    }

    fn wait(&mut self, peer: Rank, signals: u32) -> Result<Outcome> {
        let bank = self.bank.as_mut().ok_or_else(no_window)?;
        if bank.window.signals(peer, bank.line) < bank.instance << SIGNAL_BITS | u64::from(signals) {
            return Ok(Outcome::Blocked(peer));
        }
        // Having begun this instance, the peer has finished those before it.
        bank.finished[peer] = bank.instance;
        if bank.first {
            let tag = bank.window.tag(peer, bank.line, bank.parity());
            if tag != self.tag {
                return Err(disagreement(&self.tag, &tag, self.rank, peer));
            }
        }
        Ok(Outcome::Done)
    }

    /// Bytes that a step between these places moves: the caller's buffers decide, else scratch.
    fn bytes_of<'p>(&self, places: impl IntoIterator<Item = &'p Place> + Clone) -> Result<usize> {
        let length = |block: Block| self.memory.bytes(block);
        let mut callers = places.clone().into_iter().filter(|place| Memory::is_callers(place.block));
        if let Some(place) = callers.next() {
            return Ok(length(place.block));
        }
        let mut scratch = places.into_iter().filter(|place| place.block.space == Space::Scratch);
        scratch.next().map(|place| length(place.block)).ok_or_else(|| {
            Error::new(ErrorKind::Bug("a step between windows alone has no length".to_owned()))
        })
    }
}

impl Bank<'_> {
    fn parity(&self) -> usize {
        (self.instance & 1) as usize
    }

    fn source(&self, place: &Place, bytes: usize, slice_bytes: usize) -> Source<'_> {
        self.window.source(place.rank, self.base + place.block.index as usize * slice_bytes, bytes)
    }

    fn target(&self, place: &Place, bytes: usize, slice_bytes: usize) -> Target<'_> {
        self.window.target(place.rank, self.base + place.block.index as usize * slice_bytes, bytes)
    }
}

/// The link to `peer`.
pub(crate) fn link(links: &mut [Option<Box<dyn Link>>], peer: Rank) -> Result<&mut dyn Link> {
    match links.get_mut(peer) {
        Some(Some(link)) => Ok(&mut **link),
        _ => Err(Error::new(ErrorKind::Unavailable(format!("there is no link to rank {peer}")))),
    }
}

/// Bytes of the message that is next, once it is here and is the one expected.
pub(crate) fn head(
    link: &mut dyn Link,
    lane: usize,
    expected: &Tag,
    rank: Rank,
    peer: Rank,
) -> Result<Option<usize>> {
    match link.head(lane)? {
        None => Ok(None),
        Some(head) if head.tag == *expected => Ok(Some(head.bytes)),
        Some(head) => Err(disagreement(expected, &head.tag, rank, peer)),
    }
}

/// What it means that `peer` tagged something otherwise than this rank expected.
pub(crate) fn disagreement(ours: &Tag, theirs: &Tag, rank: Rank, peer: Rank) -> Error {
    let (call, other_call) = (Call::from_tag(ours), Call::from_tag(theirs));
    Error::new(if call == other_call {
        let what = format!("piece {:#x} of {call} where {:#x} was due", theirs.0[3], ours.0[3]);
        ErrorKind::Corrupt { peer, what }
    } else {
        ErrorKind::Mismatch { rank, call, other: peer, other_call }
    })
}

fn need<'b, 'e>(bank: Option<&'b Bank<'e>>) -> Result<&'b Bank<'e>> {
    bank.ok_or_else(no_window)
}

fn no_window() -> Error {
    Error::new(ErrorKind::Unavailable("this algorithm needs memory that all ranks share".to_owned()))
}

/// Operands folded in one pass over memory.
pub(crate) const OPERANDS_MAX: usize = 64;
/// Low bits of a signal that count within an instance.
const SIGNAL_BITS: u32 = 16;
