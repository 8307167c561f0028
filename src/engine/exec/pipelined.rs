//! The loop that advances all channels of one collective.

use crate::config::LANES_PER_CHANNEL;
use crate::engine::bounce_ring::BounceRing;
use crate::engine::buffers::StepMemory;
use crate::engine::exec::arith::Arithmetic;
use crate::engine::exec::step::{StepExec, StepPoll, WindowView};
use crate::engine::layout::Layout;
use crate::engine::plan::{Plan, SLICE_ALIGN_BYTES};
use crate::engine::store_tuner::{Decision, Hysteresis, StoreTuner, Timed};
use crate::engine::tuner_table::OpClass;
use crate::engine::{Channel, Engine, Job};
use crate::error::Result;
use crate::op_desc::OpDesc;
use crate::schedule::Rank;
use std::mem::take;
use unisono_cuda::{PostOp, ReduceKind, Store};

/// Where a channel is in its slices.
#[derive(Default)]
pub(in crate::engine) struct ChannelProgress {
    /// The slice being run; past the last one when the channel is done.
    slice: usize,
    cursors: Vec<Cursor>,
    /// Whether the channel is inside a slice: the bank is reclaimed, the cursors are set.
    in_slice: bool,
}

/// Where a lane_program is in its steps.
#[derive(Clone, Copy, Default)]
struct Cursor {
    step: usize,
    signals: u64,
    /// Whom it waits for, when it does.
    blocked: Option<Rank>,
}

/// What all channels share during one operation.
struct PipelineOp<'o> {
    plan: &'o Plan,
    op: OpDesc,
    arithmetic: Arithmetic,
    input: Layout<'o>,
    output: Layout<'o>,
    slice_bytes: usize,
    slices: usize,
    /// Channels that take part.
    channels: usize,
    bounce_ring: BounceRing,
    /// Where it is learned how this is best written to windows, if that is worth it.
    tuner: Option<usize>,
}

impl Engine {
    pub(in crate::engine) fn run_pipelined(
        &mut self,
        plan: &Plan,
        job: &mut Job<'_>,
        call: OpDesc,
    ) -> Result<()> {
        let operation = self.pipeline_op(plan, job, call);
        let active = operation.channels;
        self.prepare_window(plan, active)?;
        for (index, channel) in self.channels[..active].iter_mut().enumerate() {
            channel.scratch.prepare(plan.program.scratch, operation.slice_bytes);
            channel.progress.begin(index, plan.program.lane_programs.len());
        }
        self.watchdog.begin_op(call);
        loop {
            let (mut moved, mut unfinished) = (false, false);
            for index in 0..active {
                moved |= self.advance_channel(&operation, job, index)?;
                unfinished |= self.channels[index].progress.slice < operation.slices;
            }
            if !unfinished {
                return Ok(());
            }
            match moved {
                true => self.watchdog.progressed(),
                false => self.wait_for_peers(active)?,
            }
        }
    }

    /// Sees to the memory that this rank is about to stage in, on so many channels: of large windows instances use only what the
    /// cache holds.
    fn prepare_window(&mut self, plan: &Plan, channels: usize) -> Result<()> {
        if plan.program.window == 0 {
            return Ok(());
        }
        let bytes = (2 * self.half_window_bytes() * channels).min(self.config.cache_bytes);
        if let Some(window) = &mut self.fabric.window {
            window.prepare(bytes)?;
        }
        Ok(())
    }

    fn pipeline_op<'o>(&mut self, plan: &'o Plan, job: &Job<'o>, call: OpDesc) -> PipelineOp<'o> {
        let element = job.dtype.size();
        let input = Layout::new(job.input.clone(), plan.chunks_per_share, element);
        let output = Layout::new(job.output.clone(), plan.chunks_per_share, element);
        let longest = Layout::new(
            crate::engine::Shares::Even { bytes: job.share_bytes_max },
            plan.chunks_per_share,
            element,
        );
        let longest = longest.longest_chunk(1);
        let (slice_bytes, channels) = self.slice_size(plan, longest);
        let slices = longest.div_ceil(slice_bytes).max(1);
        let chosen = plan.uses_window && StoreTuner::applies_to(longest.min(slice_bytes));
        let kind = OpClass::new(job.collective, plan.digest, longest);
        PipelineOp {
            plan,
            op: call,
            arithmetic: self.arithmetic(job, plan.uses_window),
            input,
            output,
            slice_bytes,
            slices,
            channels: slices.min(channels),
            bounce_ring: self.bounce_ring(plan, slice_bytes, self.footprint(job)),
            tuner: chosen.then(|| self.tuners.entry(kind)),
        }
    }

    /// What `job` computes; `direct`: large outputs are written once, and past the cache.
    pub(in crate::engine) fn arithmetic(&self, job: &Job<'_>, direct: bool) -> Arithmetic {
        let (ranks, reduction) = (self.fabric.ranks, job.reduction);
        let large = direct && self.footprint(job) >= self.config.nontemporal_min_bytes;
        Arithmetic {
            dtype: job.dtype,
            op: reduction.map_or(ReduceKind::Sum, |reduction| reduction.kind()),
            factor: reduction.and_then(|reduction| reduction.factor()),
            finish: reduction.map_or(PostOp::Identity, |reduction| reduction.post_op(ranks)),
            store: if large { Store::Stream } else { Store::Cached },
        }
    }

    /// Bytes that all ranks read and write, at most.
    fn footprint(&self, job: &Job<'_>) -> usize {
        let ranks = self.fabric.ranks;
        let (given, received) = job.collective.shares(ranks, job.root, job.root);
        ranks * (given + received) * job.share_bytes_max
    }

    /// Bytes of a slice, and the channels that take part: all get work, and no slice is too small to be worth
    /// its hand-over. What is staged is to stay in the cache: few long slices, one after the other in memory, before
    /// many at once. Where ranks share a core, one that waits gives it away, and more at once are only more turns, unless one
    /// rank that waits for nobody writes for all.
    fn slice_size(&self, plan: &Plan, longest_chunk: usize) -> (usize, usize) {
        let (mut most, mut least) = (plan.slice_bytes_max, MESSAGE_BYTES_MIN);
        let runs_ahead = plan.uses_window && plan.staged_chunks < self.fabric.ranks;
        let channels = if self.fabric.oversubscribed && !runs_ahead { 1 } else { self.channels.len() };
        if plan.uses_window {
            let fit = self.config.cache_bytes / (2 * plan.staged_chunks.max(1) * channels);
            most = most.min(fit / SLICE_ALIGN_BYTES * SLICE_ALIGN_BYTES).min(SLICE_BYTES_STAGED_MAX);
            least = longest_chunk.div_ceil(channels).min(SLICE_BYTES_LONG).min(most).max(SLICE_BYTES_MIN);
        }
        let least = least.next_multiple_of(SLICE_ALIGN_BYTES).min(plan.slice_bytes_max);
        let spread = longest_chunk.div_ceil(channels).next_multiple_of(SLICE_ALIGN_BYTES);
        (spread.clamp(least, most.max(least)), channels)
    }

    /// What all ranks have staged is to stay in the cache that they have in common, beside what they read and write: who
    /// goes through much of that needs less room to go round.
    fn bounce_ring(&self, plan: &Plan, slice_bytes: usize, touched: usize) -> BounceRing {
        let cache = self.config.cache_bytes;
        let cached = cache.saturating_sub(touched).max(cache / 2);
        let own = cached / plan.staged_chunks.max(1) * plan.window_chunks;
        BounceRing::new(
            self.half_window_bytes(),
            own / (2 * self.channels.len()),
            plan.window_chunks * slice_bytes,
        )
    }

    /// Goes on with one channel as far as possible; says whether anything moved.
    fn advance_channel(
        &mut self,
        operation: &PipelineOp<'_>,
        job: &mut Job<'_>,
        index: usize,
    ) -> Result<bool> {
        let mut moved = false;
        while self.channels[index].progress.slice < operation.slices {
            if !self.begin_slice(operation, index) {
                break;
            }
            let finished = self.run_slice(operation, job, index, &mut moved)?;
            if !finished {
                break;
            }
            self.end_slice(operation, index);
            moved = true;
        }
        Ok(moved)
    }

    /// Begins a slice once the window bank it will use is free: every rank has finished the
    /// instance before the last.
    fn begin_slice(&mut self, operation: &PipelineOp<'_>, index: usize) -> bool {
        let channel = &mut self.channels[index];
        if channel.progress.in_slice {
            return true;
        }
        if operation.plan.uses_window
            && let Some(window) = &self.fabric.window
        {
            let needed = channel.sequence.saturating_sub(1);
            for (rank, finished) in channel.completed.iter_mut().enumerate() {
                if *finished < needed && rank != self.fabric.rank {
                    *finished = window.completions(rank, index * LANES_PER_CHANNEL).max(*finished);
                    if *finished < needed {
                        channel.progress.cursors.iter_mut().for_each(|cursor| cursor.blocked = Some(rank));
                        return false;
                    }
                }
            }
        }
        channel.progress.in_slice = true;
        channel.progress.cursors.fill(Cursor::default());
        self.channels[index].store_choice = operation.tuner.map_or_else(Default::default, |account| {
            let choice = self.tuners.tuner_mut(account).next_decision(index, operation.bounce_ring.period());
            self.store_decision(account, choice, operation.plan.only_writes)
        });
        true
    }

    /// How an instance writes to memory that peers read, and whether it is timed.
    pub(in crate::engine) fn store_decision(
        &self,
        account: usize,
        choice: Decision,
        only_writes: bool,
    ) -> (Store, Timed) {
        let account = self.tuners.tuner(account);
        let margin =
            if self.fabric.oversubscribed { Hysteresis::OVERSUBSCRIBED } else { Hysteresis::DEDICATED_CORES };
        match (choice, &self.fabric.window) {
            (Decision::Fixed(store), _) => (store, Timed::No),
            (Decision::Explore(store), _) => (store, Timed::All),
            (Decision::Probe | Decision::Exploit, Some(window)) if only_writes => {
                let peers = (0..self.fabric.ranks).filter(|&rank| rank != self.fabric.rank);
                (account.best_store_for_readers(peers.map(|peer| window.hint(peer)), margin), Timed::No)
            }
            (Decision::Probe, _) => (account.best_store(margin), Timed::Own),
            (Decision::Exploit, _) => (account.best_store(margin), Timed::No),
        }
    }

    /// Runs every lane_program of the current slice as far as it goes; true when all are through.
    fn run_slice(
        &mut self,
        operation: &PipelineOp<'_>,
        job: &mut Job<'_>,
        index: usize,
        moved: &mut bool,
    ) -> Result<bool> {
        let Engine { fabric, channels, traffic, .. } = self;
        let Channel {
            sequence: instance,
            completed: finished,
            store_choice: (store, timed),
            sample: trial,
            scratch,
            progress: run,
            ..
        } = &mut channels[index];
        let base = operation.bounce_ring.offset(index, *instance);
        let units = (operation.slice_bytes / SLICE_ALIGN_BYTES) as u64;
        let slice = run.slice as u64 | (units * SLICES_MAX);
        let tag = operation.op.tag(slice);
        let first = run.slice == index;
        let mut through = true;
        let lane_programs = operation.plan.program.lane_programs.iter().zip(&operation.plan.fusions);
        for ((lane_program, fused), cursor) in lane_programs.zip(&mut run.cursors) {
            let lane = index * LANES_PER_CHANNEL + lane_program.lane;
            let window = if operation.plan.uses_window { fabric.window.as_mut() } else { None };
            let bank = window.map(|window| WindowView {
                window,
                lane,
                sequence: *instance,
                is_first: first,
                signals: &mut cursor.signals,
                completed: finished,
                base,
                store: *store,
                sample: (*timed != Timed::No).then_some(&mut *trial),
            });
            let memory = StepMemory {
                buffers: &mut job.buffers,
                scratch,
                input: &operation.input,
                output: &operation.output,
                slice_index: run.slice,
                slice_bytes: operation.slice_bytes,
            };
            let mut stage = StepExec {
                rank: fabric.rank,
                links: &mut fabric.links,
                window_view: bank,
                memory,
                arithmetic: operation.arithmetic,
                lane,
                tag,
                traffic: &mut *traffic,
            };
            cursor.blocked = None;
            while let Some(step) = lane_program.steps.get(cursor.step) {
                if let StepPoll::Blocked(peer) = stage.run(step, fused[cursor.step])? {
                    cursor.blocked = Some(peer);
                    through = false;
                    break;
                }
                cursor.step += 1;
                *moved = true;
            }
        }
        Ok(through)
    }

    fn end_slice(&mut self, operation: &PipelineOp<'_>, index: usize) {
        let channel = &mut self.channels[index];
        channel.progress.slice += operation.channels;
        channel.progress.in_slice = false;
        if operation.plan.uses_window
            && let Some(window) = &mut self.fabric.window
        {
            let (store, timed) = channel.store_choice;
            if let Some(account) = operation.tuner.map(|account| self.tuners.tuner_mut(account)) {
                let hint = account.record(timed, store, take(&mut channel.sample));
                hint.into_iter().for_each(|hint| window.set_hint(hint));
            }
            channel.sequence += 1;
            window.complete(index * LANES_PER_CHANNEL, channel.sequence);
        }
    }

    /// Nothing moved: lets time pass, within bounds.
    fn wait_for_peers(&mut self, active: usize) -> Result<()> {
        self.send_acks();
        if self.watchdog.should_progress_idle_links() {
            for link in self.fabric.links.iter_mut().flatten() {
                link.progress()?;
            }
        }
        let channels = &self.channels[..active];
        let cursors = channels.iter().flat_map(|channel| &channel.progress.cursors);
        let blocked = cursors.filter_map(|cursor| cursor.blocked);
        self.watchdog.wait_round(&mut *self.fabric.control, &mut *self.fabric.wait, blocked)
    }
}

impl ChannelProgress {
    fn begin(&mut self, slice: usize, lane_programs: usize) {
        self.slice = slice;
        self.in_slice = false;
        self.cursors.clear();
        self.cursors.resize(lane_programs, Cursor::default());
    }
}

/// A message shorter than this is not cut for the sake of it: the kernel hands it over bit by bit.
const MESSAGE_BYTES_MIN: usize = 512 << 10;
/// A staged slice of this length is still in the cache of the core that wrote it when the next one is.
const SLICE_BYTES_STAGED_MAX: usize = 256 << 10;
/// Slices are this long before another channel has any.
const SLICE_BYTES_LONG: usize = 128 << 10;
/// Below this a slice costs more in hand-overs than it gains in overlap.
const SLICE_BYTES_MIN: usize = 16 << 10;
/// Pieces are counted in the low half of a tag's last word.
const SLICES_MAX: u64 = 1 << 32;
