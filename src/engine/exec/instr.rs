//! Execution of one instruction over links or a window, as far as it goes without waiting.

use crate::engine::buffers::StepMemory;
use crate::engine::exec::arith::Arithmetic;
use crate::engine::exec::no_window;
use crate::engine::mismatch::tag_mismatch;
use crate::engine::store_tuner::Sample;
use crate::engine::telemetry::traffic::TrafficStats;
use crate::error::Result;
use crate::schedule::lower::Instr;
use crate::schedule::{ChunkRef, Rank};
use unisono_reducers::{Source, Store, Target};
use unisono_transports::{Link, Tag, Window};

/// The result of an attempt to run an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum InstrPoll {
    /// The instruction is done.
    Done,
    /// The instruction waits for this rank.
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

/// The context of all instructions of one lane program.
pub(in crate::engine) struct InstrExec<'e, 'm, 'a> {
    pub(in crate::engine) rank: Rank,
    pub(in crate::engine) links: &'e mut [Option<Box<dyn Link>>],
    pub(in crate::engine) window_view: Option<WindowView<'e>>,
    pub(in crate::engine) memory: StepMemory<'m, 'a>,
    pub(in crate::engine) arithmetic: Arithmetic,
    pub(in crate::engine) lane: usize,
    pub(in crate::engine) tag: Tag,
    pub(in crate::engine) traffic: &'e mut TrafficStats,
}

impl InstrExec<'_, '_, '_> {
    /// Runs `instr`, or returns the rank that it waits for.
    ///
    /// An instruction that is blocked is tried again. A part of its message may have moved.
    pub(in crate::engine) fn run(&mut self, instr: &Instr) -> Result<InstrPoll> {
        match instr {
            Instr::Send { peer, chunks } => self.send(*peer, chunks),
            Instr::Recv { peer, into } => self.recv(*peer, into),
            Instr::RecvReduce { peer, with, into, finish } => self.recv_reduce(*peer, with, into, *finish),
            Instr::Transfer(transfer) => self.transfer(transfer),
            Instr::Signal => self.signal(),
            Instr::Wait { peer, signals } => self.wait(*peer, *signals),
        }
    }

    fn signal(&mut self) -> Result<InstrPoll> {
        let view = self.window_view.as_mut().ok_or_else(no_window)?;
        // Peers read the tag after they have seen the first signal, so it is written before that
        // signal.
        if *view.signals == 0 && view.is_first {
            view.window.set_tag(view.lane, view.parity(), &self.tag);
        }
        *view.signals += 1;
        // The number grows from run to run, so nobody has to reset the signal between operations.
        view.window.signal(view.lane, view.sequence << SIGNAL_BITS | *view.signals);
        Ok(InstrPoll::Done)
    }

    fn wait(&mut self, peer: Rank, signals: u32) -> Result<InstrPoll> {
        let view = self.window_view.as_mut().ok_or_else(no_window)?;
        if view.window.last_signal(peer, view.lane) < view.sequence << SIGNAL_BITS | u64::from(signals) {
            return Ok(InstrPoll::Blocked(peer));
        }
        // A peer that has begun this run has completed those before it.
        view.completed[peer] = view.sequence;
        if view.is_first {
            let tag = view.window.tag(peer, view.lane, view.parity());
            if tag != self.tag {
                return Err(tag_mismatch(&self.tag, &tag, self.rank, peer));
            }
        }
        Ok(InstrPoll::Done)
    }
}

impl WindowView<'_> {
    fn parity(&self) -> usize {
        (self.sequence & 1) as usize
    }

    pub(super) fn source(&self, place: &ChunkRef, bytes: usize, slice_bytes: usize) -> Source<'_> {
        self.window.source(place.rank, self.base + place.chunk.index as usize * slice_bytes, bytes)
    }

    pub(super) fn target(&self, place: &ChunkRef, bytes: usize, slice_bytes: usize) -> Target<'_> {
        self.window.target(place.rank, self.base + place.chunk.index as usize * slice_bytes, bytes)
    }
}

/// Low bits of a signal, which count the signals of a run. The upper bits count runs.
const SIGNAL_BITS: u32 = 16;
