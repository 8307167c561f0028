//! The pipelined executor, which advances all channels of one collective, slice by slice.

use crate::config::LANES_PER_CHANNEL;
use crate::engine::bounce_ring::BounceRing;
use crate::engine::buffers::{Scratch, StepMemory};
use crate::engine::exec::arith::Arithmetic;
use crate::engine::exec::instr::{InstrExec, InstrPoll, WindowView};
use crate::engine::layout::Layout;
use crate::engine::plan::{Plan, SLICE_ALIGN_BYTES};
use crate::engine::store_tuner::{Decision, Hysteresis, OpClass, Sample, StoreTuner, Timed};
use crate::engine::wait::wait_round;
use crate::engine::{Engine, Job, Shares};
use crate::error::Result;
use crate::op_desc::OpDesc;
use crate::reduce_op::ReduceOp;
use crate::schedule::Rank;
use std::mem::take;
use unisono_reducers::{PostOp, ReduceKind, Store};
use unisono_transports::Fabric;

/// The state that a channel keeps from operation to operation.
#[derive(Default)]
pub(in crate::engine) struct Channel {
    /// Number of runs of window programs so far.
    sequence: u64,
    /// For each rank, a number of runs that it has completed at least.
    completed: Vec<u64>,
    /// Store and timing of the current run.
    store_choice: (Store, Timed),
    /// Measurement of the current run.
    sample: Sample,
    pub(in crate::engine) scratch: Scratch,
    progress: ChannelProgress,
}

impl Channel {
    pub(in crate::engine) fn new(ranks: usize) -> Self {
        Self { completed: vec![0; ranks], ..Self::default() }
    }
}

/// The progress of a channel through the slices of an operation.
#[derive(Default)]
struct ChannelProgress {
    /// The current slice. It is past the last slice when the channel is done.
    slice: usize,
    cursors: Vec<Cursor>,
    /// True if the channel is inside a slice. Then its half of the window is free and the cursors
    /// are set.
    in_slice: bool,
}

/// The progress of a lane program through its instructions.
#[derive(Clone, Copy, Default)]
struct Cursor {
    instr: usize,
    signals: u64,
    /// The rank that the current instruction waits for.
    blocked: Option<Rank>,
}

/// The properties of one operation that all channels share.
struct PipelineOp<'o> {
    plan: &'o Plan,
    op: OpDesc,
    arithmetic: Arithmetic,
    input: Layout<'o>,
    output: Layout<'o>,
    slice_bytes: usize,
    slices: usize,
    /// Number of channels that take part.
    channels: usize,
    /// The use of the window. `None` if all goes in messages.
    window_use: Option<WindowUse>,
}

/// The way in which one operation uses the window.
struct WindowUse {
    bounce_ring: BounceRing,
    /// Index of the store tuner, if slices are long enough for the store to matter.
    tuner: Option<usize>,
}

impl Engine {
    /// Runs `plan` for `job`, and waits for peers whenever no channel makes progress.
    pub(in crate::engine) fn run_pipelined(
        &mut self,
        plan: &Plan,
        job: &mut Job<'_>,
        op: OpDesc,
    ) -> Result<()> {
        let operation = self.pipeline_op(plan, job, op);
        let active = operation.channels;
        self.prepare_window(plan, active)?;
        for (index, channel) in self.channels[..active].iter_mut().enumerate() {
            channel.scratch.prepare(plan.scratch_chunks, operation.slice_bytes)?;
            channel.progress.begin(index, plan.lanes.len());
        }
        self.watchdog.begin_op(op);
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

    /// Prepares the part of the own window that `channels` channels use.
    ///
    /// If the window is large, runs use only a part of it that fits into the cache.
    fn prepare_window(&mut self, plan: &Plan, channels: usize) -> Result<()> {
        if plan.own_window_chunks == 0 {
            return Ok(());
        }
        let bytes = (2 * self.half_window_bytes() * channels).min(self.config.cache_bytes);
        if let Some(window) = &mut self.fabric.window {
            window.prepare(bytes)?;
        }
        Ok(())
    }

    fn pipeline_op<'o>(&mut self, plan: &'o Plan, job: &Job<'o>, op: OpDesc) -> PipelineOp<'o> {
        let element = job.dtype.size();
        let input = Layout::new(job.input.clone(), plan.chunks_per_share, element);
        let output = Layout::new(job.output.clone(), plan.chunks_per_share, element);
        let longest_share = Shares::Even { bytes: job.share_bytes_max };
        let longest = Layout::new(longest_share, plan.chunks_per_share, element).longest_chunk(1);
        let (slice_bytes, channels) = self.slice_size(plan, longest);
        let slices = longest.div_ceil(slice_bytes).max(1);
        PipelineOp {
            plan,
            op,
            arithmetic: self.arithmetic(job, plan.uses_window, plan.rounds_once),
            input,
            output,
            slice_bytes,
            slices,
            channels: slices.min(channels),
            // An operation over messages uses neither ring nor tuner, so it does not compute them
            // either.
            window_use: plan.uses_window.then(|| self.window_use(plan, job, longest, slice_bytes)),
        }
    }

    /// Returns the use of the window by `plan`, whose longest chunk has `longest` bytes.
    fn window_use(&mut self, plan: &Plan, job: &Job<'_>, longest: usize, slice_bytes: usize) -> WindowUse {
        let tuned = StoreTuner::applies_to(longest.min(slice_bytes));
        let class = OpClass::new(job.collective, plan.digest, longest);
        WindowUse {
            bounce_ring: self.bounce_ring(plan, slice_bytes, self.footprint(job)),
            tuner: tuned.then(|| self.tuners.entry(class)),
        }
    }

    /// Returns the arithmetic of `job`. If `direct` is true, large outputs are written once and
    /// bypass the cache. If `rounds_once` is true, no sum is stored before it is complete.
    pub(in crate::engine) fn arithmetic(&self, job: &Job<'_>, direct: bool, rounds_once: bool) -> Arithmetic {
        let (dtype, ranks, reduction) = (job.dtype, self.fabric.ranks, job.reduction);
        let post_ops = reduction.map(|reduction| reduction.post_ops(dtype, ranks, rounds_once));
        let [partial, finish] = post_ops.unwrap_or([PostOp::Identity; 2]);
        let large = direct && self.footprint(job) >= self.config.nontemporal_min_bytes;
        Arithmetic {
            dtype,
            op: reduction.map_or(ReduceKind::Sum, |reduction| reduction.kind()),
            custom: reduction.and_then(ReduceOp::custom),
            factor: reduction.and_then(|reduction| reduction.factor(dtype, ranks, rounds_once)),
            partial,
            finish,
            store: if large { Store::Stream } else { Store::Cached },
        }
    }

    /// Returns the bytes that all ranks read and write, at most.
    fn footprint(&self, job: &Job<'_>) -> usize {
        let ranks = self.fabric.ranks;
        let (given, received) = job.collective.shares(ranks, job.root, job.root);
        ranks * (given + received) * job.share_bytes_max
    }

    /// Returns the size of a slice in bytes and the number of channels that take part.
    ///
    /// All channels get work, and no slice is so small that its synchronization takes most of the
    /// time. Staged data has to stay in the cache, so a few long slices one after the other are
    /// better than many at once.
    ///
    /// Ranks that share a core use one channel, because a waiting rank yields the core, and more
    /// channels would only cause more switches. If a single rank writes for all others, it waits
    /// for no rank, so it uses all channels.
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

    /// Returns the ring of buffers in the window.
    ///
    /// The staged data of all ranks, and the `footprint` bytes that they read and write, have to
    /// fit into their shared cache. So a larger footprint leaves fewer buffers.
    fn bounce_ring(&self, plan: &Plan, slice_bytes: usize, footprint: usize) -> BounceRing {
        let cache = self.config.cache_bytes;
        let cached = cache.saturating_sub(footprint).max(cache / 2);
        let own_bytes = cached / plan.staged_chunks.max(1) * plan.window_chunks;
        BounceRing::new(
            self.half_window_bytes(),
            own_bytes / (2 * self.channels.len()),
            plan.window_chunks * slice_bytes,
        )
    }

    /// Advances one channel as far as possible. Returns whether it made progress.
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

    /// Begins a slice if the half of the window that it uses is free.
    ///
    /// The half is free when every rank has completed the run before the last.
    fn begin_slice(&mut self, operation: &PipelineOp<'_>, index: usize) -> bool {
        let channel = &mut self.channels[index];
        if channel.progress.in_slice {
            return true;
        }
        if operation.window_use.is_some()
            && let Some(window) = &self.fabric.window
        {
            let needed = channel.sequence.saturating_sub(1);
            for (rank, completed) in channel.completed.iter_mut().enumerate() {
                // The number of a peer only grows. A rank that was once far enough is not read
                // again, because reading its counter fetches a cache line of another core.
                if *completed < needed && rank != self.fabric.rank {
                    *completed = window.completions(rank, index * LANES_PER_CHANNEL).max(*completed);
                    if *completed < needed {
                        channel.progress.cursors.iter_mut().for_each(|cursor| cursor.blocked = Some(rank));
                        return false;
                    }
                }
            }
        }
        // A slice that is blocked is resumed many times. All its parts have to use one store, or
        // its measurement says nothing, so the store is chosen here.
        channel.progress.in_slice = true;
        channel.progress.cursors.fill(Cursor::default());
        self.channels[index].store_choice = match &operation.window_use {
            Some(WindowUse { bounce_ring, tuner: Some(tuner) }) => {
                let decision = self.tuners.tuner_mut(*tuner).next_decision(index, bounce_ring.period());
                self.store_decision(*tuner, decision, operation.plan.only_writes)
            }
            _ => Default::default(),
        };
        true
    }

    /// Returns the store for memory that peers read, and the timing of the run.
    pub(in crate::engine) fn store_decision(
        &self,
        tuner: usize,
        decision: Decision,
        only_writes: bool,
    ) -> (Store, Timed) {
        let tuner = self.tuners.tuner(tuner);
        let hysteresis =
            if self.fabric.oversubscribed { Hysteresis::OVERSUBSCRIBED } else { Hysteresis::DEDICATED_CORES };
        match (decision, &self.fabric.window) {
            (Decision::Fixed(store), _) => (store, Timed::No),
            (Decision::Explore(store), _) => (store, Timed::All),
            (Decision::Probe | Decision::Exploit, Some(window)) if only_writes => {
                let peers = (0..self.fabric.ranks).filter(|&rank| rank != self.fabric.rank);
                let hints = peers.map(|peer| window.hint(peer));
                (tuner.best_store_for_readers(hints, hysteresis), Timed::No)
            }
            (Decision::Probe, _) => (tuner.best_store(hysteresis), Timed::Own),
            (Decision::Exploit, _) => (tuner.best_store(hysteresis), Timed::No),
        }
    }

    /// Runs every lane program of the current slice as far as it goes. Returns whether all are
    /// done.
    fn run_slice(
        &mut self,
        operation: &PipelineOp<'_>,
        job: &mut Job<'_>,
        index: usize,
        moved: &mut bool,
    ) -> Result<bool> {
        let Engine { fabric, channels, traffic, .. } = self;
        let Channel { sequence, completed, store_choice: (store, timed), sample, scratch, progress } =
            &mut channels[index];
        // The length of slices is a part of the tag. So ranks that cut chunks in different ways get
        // an error and not wrong data.
        let units = (operation.slice_bytes / SLICE_ALIGN_BYTES) as u64;
        let slice = progress.slice as u64 | (units * SLICES_MAX);
        let tag = operation.op.tag(slice);
        let is_first = progress.slice == index;
        let mut done = true;
        for (lane_instrs, cursor) in operation.plan.lanes.iter().zip(&mut progress.cursors) {
            let lane = index * LANES_PER_CHANNEL + lane_instrs.lane;
            let window_use = operation.window_use.as_ref();
            let window_view = window_use.zip(fabric.window.as_mut()).map(|(window_use, window)| WindowView {
                window,
                lane,
                sequence: *sequence,
                is_first,
                signals: &mut cursor.signals,
                completed,
                base: window_use.bounce_ring.offset(index, *sequence),
                store: *store,
                sample: (*timed != Timed::No).then_some(&mut *sample),
            });
            let memory = StepMemory {
                buffers: &mut job.buffers,
                scratch,
                input: &operation.input,
                output: &operation.output,
                slice_index: progress.slice,
                slice_bytes: operation.slice_bytes,
            };
            let mut exec = InstrExec {
                rank: fabric.rank,
                links: &mut fabric.links,
                window_view,
                memory,
                arithmetic: operation.arithmetic,
                lane,
                tag,
                traffic: &mut *traffic,
            };
            cursor.blocked = None;
            while let Some(instr) = lane_instrs.instrs.get(cursor.instr) {
                if let InstrPoll::Blocked(peer) = exec.run(instr)? {
                    // Only this lane program stops. The others go on, because the peer may wait for
                    // one of them.
                    cursor.blocked = Some(peer);
                    done = false;
                    break;
                }
                cursor.instr += 1;
                *moved = true;
            }
        }
        Ok(done)
    }

    /// Ends a slice, and tells the peers that the run is complete.
    fn end_slice(&mut self, operation: &PipelineOp<'_>, index: usize) {
        let channel = &mut self.channels[index];
        channel.progress.slice += operation.channels;
        channel.progress.in_slice = false;
        if let Some(window_use) = &operation.window_use
            && let Some(window) = &mut self.fabric.window
        {
            let (store, timed) = channel.store_choice;
            if let Some(tuner) = window_use.tuner.map(|tuner| self.tuners.tuner_mut(tuner)) {
                let hint = tuner.record(timed, store, take(&mut channel.sample));
                hint.into_iter().for_each(|hint| window.set_hint(hint));
            }
            // Peers may write to this part of the window again once the run is complete. So this
            // comes after everything that the run has read there.
            channel.sequence += 1;
            window.complete(index * LANES_PER_CHANNEL, channel.sequence);
        }
    }

    /// Pauses for a moment, because no channel made progress.
    fn wait_for_peers(&mut self, active: usize) -> Result<()> {
        self.send_acks();
        if self.watchdog.should_progress_idle_links() {
            for link in self.fabric.links.iter_mut().flatten() {
                // A peer may be stuck in an earlier send, for which there is no room until this
                // rank reads. Only then does the peer get to what this rank waits for.
                link.progress()?;
            }
        }
        let channels = &self.channels[..active];
        let cursors = channels.iter().flat_map(|channel| &channel.progress.cursors);
        let blocked = cursors.filter_map(|cursor| cursor.blocked);
        let Fabric { links, control, wait, .. } = &mut self.fabric;
        wait_round((&mut self.messages, links), &mut self.watchdog, &mut **control, &mut **wait, blocked)
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

/// Smallest slice of a message. The kernel delivers a message in pieces, so shorter messages would
/// not be faster.
const MESSAGE_BYTES_MIN: usize = 512 << 10;
/// Longest staged slice. Two of them fit into the cache of the core that wrote them.
const SLICE_BYTES_STAGED_MAX: usize = 256 << 10;
/// Size up to which slices grow before another channel is used.
const SLICE_BYTES_LONG: usize = 128 << 10;
/// Smallest staged slice. A shorter one costs more synchronization than it gains in overlap.
const SLICE_BYTES_MIN: usize = 16 << 10;
/// Slices are counted in the low half of the last word of a tag.
const SLICES_MAX: u64 = 1 << 32;
