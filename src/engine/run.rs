//! The loop that advances all channels of one collective.

use super::layout::Layout;
use super::ledger::Kind;
use super::memory::Memory;
use super::operand::Arithmetic;
use super::plan::{Plan, SLICE_UNIT_BYTES};
use super::rotation::Rotation;
use super::stage::{Bank, Outcome, Stage};
use super::staging::{Choice, Margin, Staging, Timed};
use super::{Channel, Engine, Job, LANES_PER_CHANNEL};
use crate::call::Call;
use crate::error::Result;
use crate::schedule::Rank;
use std::mem::take;
use unisono_cuda::{Finish, Op, Store};

/// Where a channel is in its pieces.
#[derive(Default)]
pub(super) struct Progress {
    /// The piece being run; past the last one when the channel is done.
    piece: usize,
    cursors: Vec<Cursor>,
    /// Whether the channel is inside a piece: the bank is reclaimed, the cursors are set.
    begun: bool,
}

/// Where a strand is in its steps.
#[derive(Clone, Copy, Default)]
struct Cursor {
    step: usize,
    signals: u64,
    /// Whom it waits for, when it does.
    blocked: Option<Rank>,
}

/// What all channels share during one operation.
struct Operation<'o> {
    plan: &'o Plan,
    call: Call,
    arithmetic: Arithmetic,
    input: Layout<'o>,
    output: Layout<'o>,
    slice_bytes: usize,
    pieces: usize,
    /// Channels that take part.
    channels: usize,
    rotation: Rotation,
    /// Where it is learned how this is best written to windows, if that is worth it.
    account: Option<usize>,
}

impl Engine {
    pub(super) fn run(&mut self, plan: &Plan, job: &mut Job<'_>, call: Call) -> Result<()> {
        let operation = self.operation(plan, job, call);
        let active = operation.channels;
        self.prepare_window(plan, active);
        for (index, channel) in self.channels[..active].iter_mut().enumerate() {
            channel.scratch.prepare(plan.program.scratch, operation.slice_bytes);
            channel.run.begin(index, plan.program.strands.len());
        }
        self.watch.begin(call);
        loop {
            let (mut moved, mut unfinished) = (false, false);
            for index in 0..active {
                moved |= self.advance(&operation, job, index)?;
                unfinished |= self.channels[index].run.piece < operation.pieces;
            }
            if !unfinished {
                return Ok(());
            }
            match moved {
                true => self.watch.moved(),
                false => self.wait(active)?,
            }
        }
    }

    /// Sees to the memory that this rank is about to stage in, on so many channels: of large windows instances use only what the
    /// cache holds.
    fn prepare_window(&mut self, plan: &Plan, channels: usize) {
        if plan.program.window == 0 {
            return;
        }
        let bytes = (2 * self.bank_bytes() * channels).min(self.config.cache_bytes);
        if let Some(window) = &mut self.mesh.window {
            window.prepare(bytes);
        }
    }

    fn operation<'o>(&mut self, plan: &'o Plan, job: &Job<'o>, call: Call) -> Operation<'o> {
        let element = job.dtype.size();
        let input = Layout::new(job.input.clone(), plan.parts, element);
        let output = Layout::new(job.output.clone(), plan.parts, element);
        let longest = Layout::new(super::Shares::Even { bytes: job.share_bytes_max }, plan.parts, element);
        let longest = longest.longest_block(1);
        let (slice_bytes, channels) = self.cut(plan, longest);
        let pieces = longest.div_ceil(slice_bytes).max(1);
        let chosen = plan.uses_window && Staging::is_for(longest.min(slice_bytes));
        let kind = Kind::new(job.collective, plan.digest, longest);
        Operation {
            plan,
            call,
            arithmetic: self.arithmetic(job, plan.uses_window),
            input,
            output,
            slice_bytes,
            pieces,
            channels: pieces.min(channels),
            rotation: self.rotation(plan, slice_bytes, self.touched(job)),
            account: chosen.then(|| self.ledger.place(kind)),
        }
    }

    /// What `job` computes; `direct`: large outputs are written once, and past the cache.
    pub(super) fn arithmetic(&self, job: &Job<'_>, direct: bool) -> Arithmetic {
        let (ranks, reduction) = (self.mesh.ranks, job.reduction);
        let large = direct && self.touched(job) >= self.config.stream_from_bytes;
        Arithmetic {
            dtype: job.dtype,
            op: reduction.map_or(Op::Sum, |reduction| reduction.op()),
            factor: reduction.and_then(|reduction| reduction.factor()),
            finish: reduction.map_or(Finish::Keep, |reduction| reduction.finish(ranks)),
            store: if large { Store::Stream } else { Store::Cached },
        }
    }

    /// Bytes that all ranks read and write, at most.
    fn touched(&self, job: &Job<'_>) -> usize {
        let ranks = self.mesh.ranks;
        let (given, gotten) = job.collective.shares(ranks, job.root, job.root);
        ranks * (given + gotten) * job.share_bytes_max
    }

    /// Bytes of a slice, and the channels that take part: all get work, and no slice is too small to be worth
    /// its hand-over. What is staged is to stay in the cache: few long slices, one after the other in memory, before
    /// many at once. Where ranks share a core, one that waits gives it away, and more at once are only more turns, unless one
    /// rank that waits for nobody writes for all.
    fn cut(&self, plan: &Plan, longest_block: usize) -> (usize, usize) {
        let (mut most, mut least) = (plan.slice_bytes_max, MESSAGE_BYTES_MIN);
        let runs_ahead = plan.uses_window && plan.staged_blocks < self.mesh.ranks;
        let channels = if self.mesh.crowded && !runs_ahead { 1 } else { self.channels.len() };
        if plan.uses_window {
            let fit = self.config.cache_bytes / (2 * plan.staged_blocks.max(1) * channels);
            most = most.min(fit / SLICE_UNIT_BYTES * SLICE_UNIT_BYTES).min(SLICE_BYTES_STAGED_MAX);
            least = longest_block.div_ceil(channels).min(SLICE_BYTES_LONG).min(most).max(SLICE_BYTES_MIN);
        }
        let least = least.next_multiple_of(SLICE_UNIT_BYTES).min(plan.slice_bytes_max);
        let spread = longest_block.div_ceil(channels).next_multiple_of(SLICE_UNIT_BYTES);
        (spread.clamp(least, most.max(least)), channels)
    }

    /// What all ranks have staged is to stay in the cache that they have in common, beside what they read and write: who
    /// goes through much of that needs less room to go round.
    fn rotation(&self, plan: &Plan, slice_bytes: usize, touched: usize) -> Rotation {
        let cache = self.config.cache_bytes;
        let cached = cache.saturating_sub(touched).max(cache / 2);
        let own = cached / plan.staged_blocks.max(1) * plan.window_blocks;
        Rotation::new(self.bank_bytes(), own / (2 * self.channels.len()), plan.window_blocks * slice_bytes)
    }

    /// Goes on with one channel as far as possible; says whether anything moved.
    fn advance(&mut self, operation: &Operation<'_>, job: &mut Job<'_>, index: usize) -> Result<bool> {
        let mut moved = false;
        while self.channels[index].run.piece < operation.pieces {
            if !self.enter(operation, index) {
                break;
            }
            let finished = self.piece(operation, job, index, &mut moved)?;
            if !finished {
                break;
            }
            self.leave(operation, index);
            moved = true;
        }
        Ok(moved)
    }

    /// Begins a piece once the window bank it will use is free: every rank has finished the
    /// instance before the last.
    fn enter(&mut self, operation: &Operation<'_>, index: usize) -> bool {
        let channel = &mut self.channels[index];
        if channel.run.begun {
            return true;
        }
        if operation.plan.uses_window
            && let Some(window) = &self.mesh.window
        {
            let needed = channel.instance.saturating_sub(1);
            for (rank, finished) in channel.finished.iter_mut().enumerate() {
                if *finished < needed && rank != self.mesh.rank {
                    *finished = window.dones(rank, index * LANES_PER_CHANNEL).max(*finished);
                    if *finished < needed {
                        channel.run.cursors.iter_mut().for_each(|cursor| cursor.blocked = Some(rank));
                        return false;
                    }
                }
            }
        }
        channel.run.begun = true;
        channel.run.cursors.fill(Cursor::default());
        self.channels[index].way = operation.account.map_or_else(Default::default, |account| {
            let choice = self.ledger.at_mut(account).next(index, operation.rotation.lap());
            self.way(account, choice, operation.plan.only_writes)
        });
        true
    }

    /// How an instance writes to memory that peers read, and whether it is timed.
    pub(super) fn way(&self, account: usize, choice: Choice, only_writes: bool) -> (Store, Timed) {
        let account = self.ledger.at(account);
        let margin = if self.mesh.crowded { Margin::CROWDED } else { Margin::ROOMY };
        match (choice, &self.mesh.window) {
            (Choice::Made(store), _) => (store, Timed::No),
            (Choice::Trial(store), _) => (store, Timed::All),
            (Choice::Watched | Choice::Free, Some(window)) if only_writes => {
                let peers = (0..self.mesh.ranks).filter(|&rank| rank != self.mesh.rank);
                (account.cheaper_for(peers.map(|peer| window.hint_of(peer)), margin), Timed::No)
            }
            (Choice::Watched, _) => (account.cheaper(margin), Timed::Own),
            (Choice::Free, _) => (account.cheaper(margin), Timed::No),
        }
    }

    /// Runs every strand of the current piece as far as it goes; true when all are through.
    fn piece(
        &mut self,
        operation: &Operation<'_>,
        job: &mut Job<'_>,
        index: usize,
        moved: &mut bool,
    ) -> Result<bool> {
        let Engine { mesh, channels, traffic, .. } = self;
        let Channel { instance, finished, way: (store, timed), trial, scratch, run, .. } =
            &mut channels[index];
        let base = operation.rotation.base(index, *instance);
        let units = (operation.slice_bytes / SLICE_UNIT_BYTES) as u64;
        let piece = run.piece as u64 | (units * PIECES_MAX);
        let tag = operation.call.tag(piece);
        let first = run.piece == index;
        let mut through = true;
        let strands = operation.plan.program.strands.iter().zip(&operation.plan.fused);
        for ((strand, fused), cursor) in strands.zip(&mut run.cursors) {
            let lane = index * LANES_PER_CHANNEL + strand.lane;
            let window = if operation.plan.uses_window { mesh.window.as_mut() } else { None };
            let bank = window.map(|window| Bank {
                window,
                line: lane,
                instance: *instance,
                first,
                signals: &mut cursor.signals,
                finished,
                base,
                store: *store,
                trial: (*timed != Timed::No).then_some(&mut *trial),
            });
            let memory = Memory {
                buffers: &mut job.buffers,
                scratch,
                input: &operation.input,
                output: &operation.output,
                piece: run.piece,
                slice_bytes: operation.slice_bytes,
            };
            let mut stage = Stage {
                rank: mesh.rank,
                links: &mut mesh.links,
                bank,
                memory,
                arithmetic: operation.arithmetic,
                lane,
                tag,
                traffic: &mut *traffic,
            };
            cursor.blocked = None;
            while let Some(step) = strand.steps.get(cursor.step) {
                if let Outcome::Blocked(peer) = stage.run(step, fused[cursor.step])? {
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

    fn leave(&mut self, operation: &Operation<'_>, index: usize) {
        let channel = &mut self.channels[index];
        channel.run.piece += operation.channels;
        channel.run.begun = false;
        if operation.plan.uses_window
            && let Some(window) = &mut self.mesh.window
        {
            let (store, timed) = channel.way;
            if let Some(account) = operation.account.map(|account| self.ledger.at_mut(account)) {
                let hint = account.end(timed, store, take(&mut channel.trial));
                hint.into_iter().for_each(|hint| window.hint(hint));
            }
            channel.instance += 1;
            window.done(index * LANES_PER_CHANNEL, channel.instance);
        }
    }

    /// Nothing moved: lets time pass, within bounds.
    fn wait(&mut self, active: usize) -> Result<()> {
        self.show_seen();
        if self.watch.is_time_for_others() {
            for link in self.mesh.links.iter_mut().flatten() {
                link.progress()?;
            }
        }
        let channels = &self.channels[..active];
        let cursors = channels.iter().flat_map(|channel| &channel.run.cursors);
        let blocked = cursors.filter_map(|cursor| cursor.blocked);
        self.watch.waited(&mut *self.mesh.control, &mut *self.mesh.pace, blocked)
    }
}

impl Progress {
    fn begin(&mut self, piece: usize, strands: usize) {
        self.piece = piece;
        self.begun = false;
        self.cursors.clear();
        self.cursors.resize(strands, Cursor::default());
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
const PIECES_MAX: u64 = 1 << 32;
