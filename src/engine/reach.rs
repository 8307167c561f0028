//! Carries out schedules that reach the buffers of peers.
//!
//! Only the ranks together know whether all of them called with memory of
//! their heaps. So, once memory has been lent at all, every large operation
//! begins with a post of where its buffers are; that post is the schedule's
//! first signal. If somebody's buffers are elsewhere, all take the ordinary way.

use super::layout::Layout;
use super::operand::Arithmetic;
use super::plan::Plan;
use super::stage::OPERANDS_MAX;
use super::traffic::foreign;
use super::{Engine, Job};
use crate::call::Call;
use crate::error::{Error, ErrorKind, Result};
use crate::schedule::{Algorithm, Place, Rank, Reach, Space, Step};
use unisono_cuda::{Finish, Op, Source, Store, Target, copy_into, reduce_into};
use unisono_transports::{HeapBlock, Window};

/// Where a rank's buffers are in its heap: [`ELSEWHERE`] if they are not.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Offsets {
    input: u64,
    output: u64,
}

/// What the steps of one operation share.
struct Grasp<'e> {
    window: &'e Window,
    offsets: &'e [Offsets],
    input: &'e Layout<'e>,
    output: &'e Layout<'e>,
    arithmetic: Arithmetic,
}

impl Engine {
    /// Memory that peers reach; all ranks ask for some at the same time. `None`: there is no such memory here.
    pub(crate) fn lend(&mut self, bytes: usize) -> Result<Option<HeapBlock>> {
        self.sound()?;
        let Some(window) = &self.mesh.window else {
            return Ok(None);
        };
        self.lent = true;
        window.heap().take(bytes).map(Some).map_err(|error| Error::misuse(error.to_string()))
    }

    /// The algorithm for `job` if its buffers can be reached. All ranks find the same.
    pub(super) fn reaching(&self, job: &Job<'_>) -> Option<&'static Algorithm> {
        if !self.lent || job.share_bytes_max < REACH_FROM_BYTES {
            return None;
        }
        let bids =
            self.chosen[job.collective as usize].is_some() || self.config.algorithm(job.collective).is_some();
        let premultiplied = job.reduction.is_some_and(|reduction| reduction.op() == Op::PreMulSum);
        if bids || premultiplied || !job.is_even() || self.mesh.ranks > OPERANDS_MAX {
            return None;
        }
        Algorithm::ALL.iter().find(|row| row.reach == Reach::Buffers && row.collective == job.collective)
    }

    /// Tells all ranks where this one's buffers are, and learns where theirs are: whether all can be reached.
    pub(super) fn exchange_offsets(&mut self, job: &Job<'_>, call: Call) -> Result<bool> {
        self.watch.begin(call);
        let own = self.own_offsets(job);
        let tag = call.tag(0);
        let number = self.post(&tag, &[own.input, own.output])?;
        self.offsets.resize(self.mesh.ranks, Offsets::default());
        self.offsets[self.mesh.rank] = own;
        let (rank, ranks) = (self.mesh.rank, self.mesh.ranks);
        for peer in (0..ranks).filter(|&peer| peer != rank) {
            let [input, output] = self.words_of_post(peer, number, &tag)?;
            self.offsets[peer] = Offsets { input, output };
        }
        self.end_post(number);
        Ok(self.offsets.iter().all(|offsets| offsets.input != ELSEWHERE && offsets.output != ELSEWHERE))
    }

    fn own_offsets(&self, job: &Job<'_>) -> Offsets {
        let offset = |buffer: &[u8]| match &self.mesh.window {
            // A buffer that this rank does not have is at hand anywhere.
            _ if buffer.is_empty() => 0,
            Some(window) => {
                let found = window.heap().offset_of(buffer.as_ptr().addr(), buffer.len());
                found.map_or(ELSEWHERE, |offset| offset as u64)
            }
            None => ELSEWHERE,
        };
        let (input, output) = job.buffers.views();
        Offsets { input: offset(input), output: offset(output) }
    }

    /// Runs a program whose first signal has been given and seen.
    pub(super) fn run_reaching(&mut self, plan: &Plan, job: &Job<'_>, call: Call) -> Result<()> {
        let arithmetic = self.arithmetic(job, true);
        let element = job.dtype.size();
        let input = &Layout::new(job.input.clone(), plan.parts, element);
        let output = &Layout::new(job.output.clone(), plan.parts, element);
        let tag = call.tag(1);
        let mut ended = None;
        for strand in &plan.program.strands {
            let mut signals = 0;
            let mut steps = &strand.steps[..];
            while let Some((step, rest)) = steps.split_first() {
                steps = rest;
                match step {
                    Step::Signal => {
                        signals += 1;
                        if signals > 1 {
                            ended = Some(self.post(&tag, &[])?);
                        }
                    }
                    Step::Wait { peer, signals: 2.. } => {
                        if let Some(number) = ended {
                            let [] = self.words_of_post(*peer, number, &tag)?;
                        }
                    }
                    Step::Wait { .. } => {}
                    Step::Copy { from: value, .. } | Step::Reduce { into: value, .. } => {
                        let again = |step: &&Step| matches!(step, Step::Copy { from, .. } if from == value);
                        let (copies, rest) = rest.split_at(rest.iter().take_while(again).count());
                        steps = rest;
                        let window = self.mesh.window.as_ref().ok_or_else(no_window)?;
                        let grasp = Grasp { window, offsets: &self.offsets, input, output, arithmetic };
                        grasp.write(step, copies)?;
                        let moved = grasp.foreign_bytes(self.mesh.rank, step, copies);
                        self.traffic.moved(moved);
                    }
                    Step::Send { .. } | Step::Recv { .. } | Step::RecvReduce { .. } => {
                        return Err(Error::new(ErrorKind::Bug("messages between buffers".to_owned())));
                    }
                }
            }
        }
        if let Some(number) = ended {
            self.end_post(number);
        }
        Ok(())
    }
}

impl Grasp<'_> {
    /// Carries out `step` and the copies after it that write the same value: one pass over memory.
    fn write(&self, step: &Step, copies: &[Step]) -> Result<()> {
        let Arithmetic { dtype, op, finish: finished, store, .. } = self.arithmetic;
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
            // In place, an input is kept where it is.
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
                let finish = if *finish { finished } else { Finish::Keep };
                reduce_into(dtype, op, finish, targets, sources);
            }
            _ => copy_into(targets, sources[0]),
        }
        Ok(())
    }

    /// Bytes that `step` and `copies` move between `rank` and others.
    fn foreign_bytes(&self, rank: Rank, step: &Step, copies: &[Step]) -> usize {
        let of = |step: &Step| match step {
            Step::Copy { from, into } => foreign(rank, [from, into]).min(1) * self.find(into).1,
            Step::Reduce { from, into, .. } => foreign(rank, from) * self.find(into).1,
            _ => 0,
        };
        std::iter::once(step).chain(copies).map(of).sum()
    }

    fn source(&self, place: &Place) -> Result<Source<'_>> {
        let (offset, bytes) = self.find(place);
        self.window.heap_source(place.rank, offset, bytes).ok_or_else(|| outside(place.rank, offset, bytes))
    }

    fn target(&self, place: &Place) -> Result<Target<'_>> {
        let (offset, bytes) = self.find(place);
        self.window.heap_target(place.rank, offset, bytes).ok_or_else(|| outside(place.rank, offset, bytes))
    }

    fn find(&self, place: &Place) -> (usize, usize) {
        let index = place.block.index as usize;
        let offsets = self.offsets[place.rank];
        let (block, offset) = match place.block.space {
            Space::Input => (self.input.block(index), offsets.input),
            _ => (self.output.block(index), offsets.output),
        };
        // The offset is a peer's word: whatever it is, the heap checks the sum.
        ((offset as usize).saturating_add(block.start), block.len())
    }
}

fn outside(peer: Rank, offset: usize, bytes: usize) -> Error {
    let what = format!("a buffer of {bytes} bytes at {offset}, outside of its heap");
    Error::new(ErrorKind::Corrupt { peer, what })
}

fn no_window() -> Error {
    Error::new(ErrorKind::Bug("buffers of peers without a window".to_owned()))
}

/// In place of an offset: the buffer is not in the heap.
const ELSEWHERE: u64 = u64::MAX;
/// Below, staging in caches costs less than one more hand-over.
const REACH_FROM_BYTES: usize = 64 << 10;
