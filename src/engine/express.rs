//! Runs sheets: small operations whose data travels behind the flag.

use super::memory::Buffers;
use super::plan::window_blocks;
use super::sheet::{Act, Fit, Key, Sheet};
use super::stage::{OPERANDS_MAX, disagreement};
use super::watch::Watch;
use super::{Engine, Job};
use crate::call::{Call, Digest};
use crate::error::{Error, ErrorKind, Result};
use crate::reduction::Reduction;
use crate::schedule::{Algorithm, Rank, Reach};
use std::ops::Range;
use unisono_cuda::{DType, Finish, Op, Scalar, Source, Store, Target, copy_to, reduce_to, scale};
use unisono_transports::{Cell, Control, Mesh, Pace, Tag, Window};

/// What the engine keeps for small operations.
#[derive(Default)]
pub(super) struct Express {
    /// Posts so far, on all ranks: those that this rank only read included.
    number: u64,
    /// For each rank, how many posts it has surely seen; and the least of these.
    seen: Vec<u64>,
    seen_by_all: u64,
    sheets: Vec<(Sheet, &'static Algorithm)>,
    /// The sheet found last: mostly the one that is looked for.
    last: usize,
    /// Which sheet is replaced next when there are too many.
    oldest: usize,
}

/// What the acts of one operation share.
struct Ride<'e> {
    window: &'e mut dyn Window,
    cell: Cell,
    number: u64,
    stamp: u64,
    tag: Tag,
    dtype: DType,
    reduction: Option<Reduction>,
    finish: Finish,
    vigil: Vigil<'e>,
}

/// How posts of peers are waited for.
struct Vigil<'e> {
    rank: Rank,
    control: &'e mut Box<dyn Control>,
    pace: &'e mut Box<dyn Pace>,
    watch: &'e mut Watch,
    seen: &'e mut [u64],
}

impl Express {
    pub(super) fn new(ranks: usize) -> Self {
        Self { seen: vec![0; ranks], ..Self::default() }
    }

    /// Bytes of all sheets.
    pub(super) fn bytes(&self) -> usize {
        let entry = size_of::<(Sheet, &'static Algorithm)>();
        self.sheets.capacity() * entry + self.sheets.iter().map(|(sheet, _)| sheet.bytes()).sum::<usize>()
    }

    /// Forgets all sheets: another algorithm may be wanted now.
    pub(super) fn forget(&mut self) {
        self.sheets.clear();
    }

    #[inline]
    fn find(&mut self, key: &Key) -> Option<usize> {
        match self.sheets.get(self.last) {
            Some((sheet, _)) if sheet.key == *key => Some(self.last),
            _ => self.search(key),
        }
    }

    fn search(&mut self, key: &Key) -> Option<usize> {
        let found = self.sheets.iter().position(|(sheet, _)| sheet.key == *key)?;
        self.last = found;
        Some(found)
    }

    fn keep(&mut self, sheet: Sheet, algorithm: &'static Algorithm) -> usize {
        let entry = (sheet, algorithm);
        if self.sheets.len() < SHEETS_MAX {
            self.sheets.push(entry);
            return self.sheets.len() - 1;
        }
        self.oldest = (self.oldest + 1) % SHEETS_MAX;
        self.sheets[self.oldest] = entry;
        self.oldest
    }
}

impl Engine {
    /// The sheet for `job`, if it can be done with one. All ranks find the same.
    pub(super) fn sheet(&mut self, job: &Job<'_>) -> Result<Option<usize>> {
        let Some(key) = self.mesh.window.as_ref().and_then(|_| Key::of(job)) else {
            return Ok(None);
        };
        match self.express.find(&key) {
            Some(index) => Ok(Some(index)),
            None => self.new_sheet(key, job),
        }
    }

    fn new_sheet(&mut self, key: Key, job: &Job<'_>) -> Result<Option<usize>> {
        let algorithm = self.algorithm(job.collective, job.root, job.share_bytes_max)?;
        let spec = self.spec(job.collective, job.root, job.share_bytes_max);
        if algorithm.reach != Reach::Windows || (algorithm.parts)(&spec) != 1 || spec.ranks > OPERANDS_MAX {
            return Ok(None);
        }
        let blocks = window_blocks(algorithm, &spec);
        let fit = Fit::new(blocks, job.share_bytes_max, job.collective.reduces());
        let program = (algorithm.build)(&spec, self.mesh.rank);
        let call = key.call.by(Digest::of(algorithm));
        let sheet = fit.and_then(|fit| Sheet::new(key, call, &program, fit, self.mesh.rank));
        Ok(sheet.map(|sheet| self.express.keep(sheet, algorithm)))
    }

    /// Describes `job`, whose sheet has this index.
    pub(super) fn call_of(&mut self, index: usize) -> Call {
        let sequence = self.number_all();
        let (sheet, algorithm) = &self.express.sheets[index];
        self.last = Some(algorithm);
        sheet.call.numbered(sequence)
    }

    /// Carries out `job` with the sheet of this index.
    pub(super) fn ride(&mut self, index: usize, job: &mut Job<'_>, call: Call) -> Result<()> {
        self.watch.begin(call);
        let cell = self.express.sheets[index].0.cell;
        self.free_cell(cell)?;
        let (number, tag, ranks) = (self.express.number, call.tag(0), self.mesh.ranks);
        let Express { sheets, seen, .. } = &mut self.express;
        let sheet = &sheets[index].0;
        let (window, vigil) = keep_vigil(&mut self.mesh, &mut self.watch, seen)?;
        let mut ride = Ride {
            window,
            cell,
            number,
            stamp: stamp(number, &tag),
            tag,
            dtype: job.dtype,
            reduction: job.reduction,
            finish: job.reduction.map_or(Finish::Keep, |reduction| reduction.finish(ranks)),
            vigil,
        };
        for act in &sheet.acts {
            ride.act(act, &sheet.operands, &mut job.buffers)?;
        }
        ride.window.set_seen(number + 1);
        self.express.number = number + 1;
        Ok(())
    }

    /// Posts `words`, up to seven, to everybody under `tag`; the number of the post.
    pub(super) fn post(&mut self, tag: &Tag, words: &[u64]) -> Result<u64> {
        self.free_cell(Cell::Short)?;
        let number = self.express.number;
        let window = self.mesh.window.as_deref_mut().ok_or_else(no_window)?;
        for (index, word) in words.iter().enumerate() {
            let target = window.own_cell(Cell::Short, number, index * 8, 8);
            copy_to(Store::Cached, target, word.to_ne_bytes()[..].into());
        }
        window.post(Cell::Short, number, stamp(number, tag), tag);
        Ok(number)
    }

    /// Waits for post `number` of `peer`; the words in it.
    pub(super) fn words_of_post<const WORDS: usize>(
        &mut self,
        peer: Rank,
        number: u64,
        tag: &Tag,
    ) -> Result<[u64; WORDS]> {
        let (window, mut vigil) = keep_vigil(&mut self.mesh, &mut self.watch, &mut self.express.seen)?;
        vigil.wait(window, peer, Cell::Short, number, stamp(number, tag), tag)?;
        let mut words = [0; WORDS];
        for (index, word) in words.iter_mut().enumerate() {
            let mut bytes = [0; 8];
            copy_to(
                Store::Cached,
                bytes[..].as_mut().into(),
                window.cell(peer, Cell::Short, number, index * 8, 8),
            );
            *word = u64::from_ne_bytes(bytes);
        }
        Ok(words)
    }

    /// This rank is through with post `number`.
    pub(super) fn end_post(&mut self, number: u64) {
        self.express.number = number + 1;
        if let Some(window) = &mut self.mesh.window {
            window.set_seen(number + 1);
        }
    }

    /// Waits until everybody has seen what this rank's next cell of this kind holds.
    #[inline(always)]
    fn free_cell(&mut self, cell: Cell) -> Result<()> {
        let free = self.express.seen_by_all + cell.count() > self.express.number;
        if free { Ok(()) } else { self.wait_for_readers(cell) }
    }

    fn wait_for_readers(&mut self, cell: Cell) -> Result<()> {
        let (number, cells) = (self.express.number, cell.count());
        for peer in (0..self.mesh.ranks).filter(|&peer| peer != self.mesh.rank) {
            while self.express.seen[peer] + cells <= number {
                let seen = self.mesh.window.as_ref().map_or(u64::MAX, |window| window.seen(peer));
                self.express.seen[peer] = seen.max(self.express.seen[peer]);
                if seen.saturating_add(cells) <= number {
                    self.watch.waited(
                        &mut *self.mesh.control,
                        &mut *self.mesh.pace,
                        std::iter::once(peer),
                    )?;
                }
            }
        }
        self.express.seen[self.mesh.rank] = number;
        self.express.seen_by_all = self.express.seen.iter().copied().min().unwrap_or(number);
        self.watch.moved();
        Ok(())
    }
}

/// The window of `mesh`, and what waiting for posts in it takes.
#[inline]
fn keep_vigil<'e>(
    mesh: &'e mut Mesh,
    watch: &'e mut Watch,
    seen: &'e mut [u64],
) -> Result<(&'e mut dyn Window, Vigil<'e>)> {
    let Mesh { rank, window, control, pace, .. } = mesh;
    let window = window.as_deref_mut().ok_or_else(no_window)?;
    Ok((window, Vigil { rank: *rank, control, pace, watch, seen }))
}

impl Vigil<'_> {
    /// Waits for post `number` of `peer`.
    fn wait(
        &mut self,
        window: &dyn Window,
        peer: Rank,
        cell: Cell,
        number: u64,
        stamp: u64,
        tag: &Tag,
    ) -> Result<()> {
        // Having come to this post, the peer is through with those before it.
        self.seen[peer] = number;
        if window.posted(peer, cell, number) == stamp {
            return Ok(());
        }
        loop {
            for _ in 0..POLLS_PER_ROUND {
                std::hint::spin_loop();
                if window.posted(peer, cell, number) == stamp {
                    self.watch.moved();
                    return Ok(());
                }
            }
            // Whatever the peer did instead, its stamp is here.
            let other = window.posted(peer, Cell::Short, number);
            if other >> DIGEST_BITS == stamp >> DIGEST_BITS && other != stamp {
                return Err(disagreement(tag, &window.post_tag(peer, number), self.rank, peer));
            }
            self.watch.waited(&mut **self.control, &mut **self.pace, std::iter::once(peer))?;
        }
    }
}

impl Ride<'_> {
    #[inline]
    fn act(&mut self, act: &Act, operands: &[(Rank, usize)], buffers: &mut Buffers<'_>) -> Result<()> {
        match act {
            Act::Post => self.window.post(self.cell, self.number, self.stamp, &self.tag),
            &Act::Wait { peer } => {
                self.vigil.wait(self.window, peer, self.cell, self.number, self.stamp, &self.tag)?;
            }
            Act::Lay { from, at } => {
                let target = self.window.own_cell(self.cell, self.number, *at, from.len());
                self.read(buffers.input(from.clone()).into(), target);
            }
            Act::Keep { from, into } => self.keep(from, into, buffers),
            Act::Get { from, at, into } => {
                let source = self.window.cell(*from, self.cell, self.number, *at, into.len());
                copy_to(Store::Cached, buffers.output(into.clone()).into(), source);
            }
            Act::Reduce { into, finish } => {
                let finish = if *finish { self.finish } else { Finish::Keep };
                let output = buffers.output(into.clone());
                match operands {
                    [one] => self.reduce([one], output, finish),
                    [one, other] => self.reduce([one, other], output, finish),
                    _ => self.reduce_many(operands, output, finish),
                }
            }
        }
        Ok(())
    }

    fn keep(&self, from: &Range<usize>, into: &Range<usize>, buffers: &mut Buffers<'_>) {
        match buffers.input_and_output(from.clone(), into.clone()) {
            Some((input, output)) => self.read(input.into(), output.into()),
            None => {
                buffers.keep(from.clone(), into.clone());
                if let Some(factor) = self.factor() {
                    scale(self.dtype, factor, buffers.output(into.clone()).into(), None);
                }
            }
        }
    }

    fn factor(&self) -> Option<Scalar> {
        self.reduction.and_then(|reduction| reduction.factor())
    }

    /// Reads a block of the input: what is multiplied beforehand, is so here.
    fn read(&self, source: Source<'_>, target: Target<'_>) {
        match self.factor() {
            Some(factor) => scale(self.dtype, factor, target, Some(source)),
            None => copy_to(Store::Cached, target, source),
        }
    }

    fn operand(&self, &(rank, at): &(Rank, usize), bytes: usize) -> Source<'_> {
        self.window.cell(rank, self.cell, self.number, at, bytes)
    }

    #[inline]
    fn reduce<const COUNT: usize>(
        &self,
        operands: [&(Rank, usize); COUNT],
        output: &mut [u8],
        finish: Finish,
    ) {
        let sources = operands.map(|operand| self.operand(operand, output.len()));
        let op = self.reduction.map_or(Op::Sum, |reduction| reduction.op());
        reduce_to(Store::Cached, self.dtype, op, finish, output.into(), &sources);
    }

    fn reduce_many(&self, operands: &[(Rank, usize)], output: &mut [u8], finish: Finish) {
        let mut sources = [Source::from(&[][..]); OPERANDS_MAX];
        for (source, operand) in sources.iter_mut().zip(operands) {
            *source = self.operand(operand, output.len());
        }
        let op = self.reduction.map_or(Op::Sum, |reduction| reduction.op());
        let sources = &sources[..operands.len()];
        reduce_to(Store::Cached, self.dtype, op, finish, output.into(), sources);
    }
}

/// Number of the post above, a digest of the operation below: equal when both ranks do the same.
fn stamp(number: u64, tag: &Tag) -> u64 {
    let [sequence, what, count, _] = tag.0;
    let mixed = (sequence ^ what.rotate_left(32)).wrapping_mul(MIX) ^ count;
    ((number + 1) << DIGEST_BITS) | mixed.wrapping_mul(MIX) >> DIGEST_BITS
}

fn no_window() -> Error {
    Error::new(ErrorKind::Bug("a sheet without a window".to_owned()))
}

/// A large odd number without a pattern: the golden ratio in 64 bits.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
const DIGEST_BITS: u32 = 32;
/// Sheets kept; a program that alternates between more operations than that translates anew.
const SHEETS_MAX: usize = 64;
/// Looks at a stamp between two looks at the clock, the abort flag and the pace.
const POLLS_PER_ROUND: u32 = 2;
