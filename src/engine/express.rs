//! Runs sheets: small operations whose data travels behind the flag.

use super::ledger::{CELLS, Kind};
use super::plan::window_blocks;
use super::ride::{Ride, keep_vigil, no_window, show_seen};
use super::sheet::{Act, Fit, Key, Sheet};
use super::stage::OPERANDS_MAX;
use super::staging::{Choice, Staging, Timed};
use super::{Engine, Job};
use crate::call::{Call, Digest};
use crate::error::Result;
use crate::reduction::Reduction;
use crate::schedule::{Algorithm, Collective, Rank, Reach};
use unisono_cuda::{Finish, Store, copy_to};
use unisono_transports::{Cell, Tag};

/// What the engine keeps for small operations.
#[derive(Default)]
pub(super) struct Express {
    /// Posts so far, on all ranks: those that this rank only read included.
    number: u64,
    /// Those of them in cells of four pages.
    four_pages: u64,
    /// For each rank, how many posts it has surely seen; and the least of these.
    seen: Vec<u64>,
    seen_by_all: u64,
    /// How many this rank has shown to have seen; so many at most it keeps to itself.
    shown: u64,
    unshown_max: u64,
    sheets: Vec<(Sheet, &'static Algorithm)>,
    /// The keys for which there are none, a ring of as many.
    refused: Vec<Key>,
    oldest_refused: usize,
    /// The sheet found last: mostly the one that is looked for.
    last: usize,
    /// Which sheet is replaced next when there are too many.
    oldest: usize,
}

impl Express {
    pub(super) fn new(ranks: usize) -> Self {
        let unshown_max = Cell::Short.count(ranks) / SHOWS_PER_LAP;
        Self { seen: vec![0; ranks], unshown_max, ..Self::default() }
    }

    /// Bytes of all sheets.
    pub(super) fn bytes(&self) -> usize {
        let entry = size_of::<(Sheet, &'static Algorithm)>();
        let lists = self.sheets.capacity() * entry + self.refused.capacity() * size_of::<Key>();
        lists + self.sheets.iter().map(|(sheet, _)| sheet.bytes()).sum::<usize>()
    }

    /// Forgets all sheets: another algorithm may be wanted now.
    pub(super) fn forget(&mut self) {
        self.sheets.clear();
        self.refused.clear();
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

    fn refuse(&mut self, key: Key) {
        if self.refused.len() < SHEETS_MAX {
            return self.refused.push(key);
        }
        self.oldest_refused = (self.oldest_refused + 1) % SHEETS_MAX;
        self.refused[self.oldest_refused] = key;
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
            None if self.express.refused.contains(&key) => Ok(None),
            None => self.new_sheet(key, job),
        }
    }

    fn new_sheet(&mut self, key: Key, job: &Job<'_>) -> Result<Option<usize>> {
        let algorithm = self.algorithm(job.collective, job.root, job.share_bytes_max, job.is_narrow())?;
        let Some(sheet) = self.translate(key, job, algorithm) else {
            self.express.refuse(key);
            return Ok(None);
        };
        let shown_after = sheet.cell.count(self.mesh.ranks) / SHOWS_PER_LAP;
        self.express.unshown_max = self.express.unshown_max.min(shown_after);
        if let Some(window) = self.mesh.window.as_mut().filter(|_| sheet.acts.contains(&Act::Post)) {
            window.prepare_cells(sheet.cell);
        }
        Ok(Some(self.express.keep(sheet, algorithm)))
    }

    fn translate(&self, key: Key, job: &Job<'_>, algorithm: &'static Algorithm) -> Option<Sheet> {
        let spec = self.spec(job.collective, job.root, job.share_bytes_max);
        if algorithm.reach != Reach::Windows || (algorithm.parts)(&spec) != 1 || spec.ranks > OPERANDS_MAX {
            return None;
        }
        let blocks = window_blocks(algorithm, &spec);
        let is_plain = job.reduction.and_then(Reduction::factor).is_none();
        let fit = Fit::new(blocks, job.share_bytes_max, !is_plain, spec.ranks)?;
        let program = (algorithm.build)(&spec, self.mesh.rank);
        Sheet::new((key, key.call.by(Digest::of(algorithm))), &program, fit, is_plain, self.mesh.rank)
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
        let Sheet { cell, foreign_bytes, .. } = self.express.sheets[index].0;
        self.free_cell(cell)?;
        let account = self.account(index, job.collective, job.share_bytes_max);
        let (store, timed) = match account {
            Some((account, choice)) => self.way(account, choice, foreign_bytes == 0),
            None => (Store::Cached, Timed::No),
        };
        let (number, tag, ranks) = (self.express.number, call.tag(0), self.mesh.ranks);
        let Express { sheets, seen, shown, .. } = &mut self.express;
        let sheet = &sheets[index].0;
        let (window, vigil) = keep_vigil(&mut self.mesh, &mut self.watch, seen, shown)?;
        let mut ride = Ride {
            window,
            cell,
            number,
            spot: sheet.spots.of(number),
            stamp: stamp(number, &tag),
            tag,
            dtype: job.dtype,
            reduction: job.reduction,
            finish: job.reduction.map_or(Finish::Keep, |reduction| reduction.finish(ranks)),
            own: sheet.own,
            store,
            vigil,
        };
        match account {
            Some((account, _)) if timed != Timed::No => {
                let trial = ride.try_out(&sheet.acts, &sheet.operands, &mut job.buffers)?;
                let hint = self.ledger.at_mut(account).end(timed, store, trial);
                hint.into_iter().for_each(|hint| ride.window.hint(hint));
            }
            _ => {
                for act in &sheet.acts {
                    ride.act(act, &sheet.operands, &mut job.buffers)?;
                }
            }
        }
        self.end_post(number);
        self.traffic.moved(foreign_bytes);
        self.express.four_pages += u64::from(cell == Cell::Pages4);
        Ok(())
    }

    /// Where is kept what the two ways into the cells of this sheet cost, and what is chosen now; `None`: they are too short for
    /// a choice.
    fn account(
        &mut self,
        index: usize,
        collective: Collective,
        share_bytes: usize,
    ) -> Option<(usize, Choice)> {
        let (sheet, algorithm) = &self.express.sheets[index];
        let count = sheet.cell.count(self.mesh.ranks);
        match sheet.cell {
            Cell::Short | Cell::Medium => None,
            Cell::Pages4 => Some((CELLS, Staging::trial_in_turn(self.express.four_pages % count))),
            Cell::Pages8 | Cell::Pages16 | Cell::Pages32 => {
                let kind = Kind::new(collective, Digest::of(algorithm), share_bytes).in_cells(sheet.cell);
                let place = self.ledger.place(kind);
                Some((place, self.ledger.at_mut(place).next(0, count)))
            }
        }
    }

    /// Posts `words`, up to seven, to everybody under `tag`; the number of the post.
    pub(super) fn post(&mut self, tag: &Tag, words: &[u64]) -> Result<u64> {
        self.free_cell(Cell::Short)?;
        let number = self.express.number;
        let window = self.mesh.window.as_mut().ok_or_else(no_window)?;
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
        let Express { seen, shown, .. } = &mut self.express;
        let (window, mut vigil) = keep_vigil(&mut self.mesh, &mut self.watch, seen, shown)?;
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

    /// This rank is through with post `number`. It does not show that each time: whoever writes faster than this rank reads would
    /// look at the count as often as it changes.
    #[inline]
    pub(super) fn end_post(&mut self, number: u64) {
        self.express.number = number + 1;
        if number + 1 - self.express.shown >= self.express.unshown_max {
            self.show_seen();
        }
    }

    /// Shows all posts that this rank has seen, before it waits, for whatever it is.
    pub(super) fn show_seen(&mut self) {
        if let Some(window) = self.mesh.window.as_mut() {
            show_seen(window, &mut self.express.shown, self.express.number);
        }
    }

    /// Waits until everybody has seen what this rank's next cell of this kind holds.
    #[inline(always)]
    fn free_cell(&mut self, cell: Cell) -> Result<()> {
        let cells = cell.count(self.mesh.ranks);
        let free = self.express.seen_by_all + cells > self.express.number;
        if free { Ok(()) } else { self.wait_for_readers(cells) }
    }

    fn wait_for_readers(&mut self, cells: u64) -> Result<()> {
        self.show_seen();
        let number = self.express.number;
        for peer in (0..self.mesh.ranks).filter(|&peer| peer != self.mesh.rank) {
            while self.express.seen[peer].saturating_add(cells) <= number {
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

/// Number of the post above, a digest of the operation below: equal when both ranks do the same.
fn stamp(number: u64, tag: &Tag) -> u64 {
    let [sequence, what, count, _] = tag.0;
    let mixed = (sequence ^ what.rotate_left(32)).wrapping_mul(MIX) ^ count;
    ((number + 1) << DIGEST_BITS) | mixed.wrapping_mul(MIX) >> DIGEST_BITS
}

/// How often a rank shows what it has seen while it reads all cells once, of the kind in use that has the fewest.
const SHOWS_PER_LAP: u64 = 4;
/// A large odd number without a pattern: the golden ratio in 64 bits.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
pub(super) const DIGEST_BITS: u32 = 32;
/// Sheets kept; a program that alternates between more operations than that translates anew.
const SHEETS_MAX: usize = 64;
