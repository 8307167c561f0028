//! Finds out where an input went that an output lacks, so that an error names the step to look at.

use super::executor::Executor;
use super::expression::{ExprId, UNINITIALIZED};
use super::vector_clock::Access;
use super::violation::{InputFate, OutputError, StepLocation, Violation};
use crate::schedule::{ChunkRef, Rank, Schedule, Space, input};
use std::collections::HashMap;

/// The reads and writes of a run, in order.
#[derive(Default)]
pub(super) struct History(Vec<Entry>);

struct Entry {
    by: Access,
    place: ChunkRef,
    /// Cell of the place in the memory of its rank.
    cell: usize,
    /// The value that was stored; none for a read.
    stored: Option<ExprId>,
}

impl History {
    pub(super) fn add(&mut self, access: Access, place: ChunkRef, cell: usize, stored: Option<ExprId>) {
        self.0.push(Entry { by: access, place, cell, stored });
    }
}

/// A chunk that holds the lost input.
struct Holder {
    place: ChunkRef,
    /// The step that stored it; none for the input itself.
    stored_by: Option<StepLocation>,
    is_read: bool,
}

/// Runs a schedule again whose output is wrong, and adds what became of the input that it lacks.
pub(super) fn with_fate(
    schedule: &Schedule,
    in_place: bool,
    slots: usize,
    violation: Violation,
) -> Violation {
    let Violation::Output { rank, index, error, fate: None } = violation else { return violation };
    let fate = fate(schedule, in_place, slots, rank, index, error);
    Violation::Output { rank, index, error, fate }
}

fn fate(
    schedule: &Schedule,
    in_place: bool,
    slots: usize,
    rank: Rank,
    index: usize,
    error: OutputError,
) -> Option<InputFate> {
    let mut executor = Executor::new(schedule, in_place, slots).ok()?;
    executor.history = Some(History::default());
    executor.run().ok()?;
    let (owner, chunk) = executor.lacking(rank, index, error)?;
    let leaf = executor.values.leaf(owner, chunk);
    let holds_leaf = executor.values.containing(leaf);
    let origin = ChunkRef { rank: owner, chunk: input(chunk) };
    let cell = executor.memories[owner].address_space.address(origin.chunk)?;
    let mut holders =
        HashMap::from([((owner, cell), Holder { place: origin, stored_by: None, is_read: false })]);
    let mut overwritten = None;
    let history = executor.history.take()?;
    for Entry { by, place, cell, stored } in history.0 {
        let key = (place.rank, cell);
        let Some(value) = stored else {
            if let Some(holder) = holders.get_mut(&key) {
                holder.is_read = true;
            }
            continue;
        };
        let location = executor.location(by.lane_program, by.tick as usize - 1);
        if let Some(lost) = holders.remove(&key)
            && !lost.is_read
        {
            overwritten.get_or_insert((lost, location));
        }
        if value != UNINITIALIZED && holds_leaf(value) {
            holders.insert(key, Holder { place, stored_by: Some(location), is_read: false });
        }
    }
    if let Some((lost, location)) = overwritten {
        return Some(InputFate::Overwritten { place: lost.place, stored_by: lost.stored_by, by: location });
    }
    // An input that ends in an output has arrived there. It is lost in any other chunk that no step
    // reads, and the first step that stored such a chunk is the one to look at.
    let is_lost = |holder: &&Holder| !holder.is_read && holder.place.chunk.space != Space::Output;
    let key = |holder: &&Holder| {
        (
            holder.stored_by.map(|location| (location.step, location.rank, location.lane_program)),
            holder.place.rank,
        )
    };
    if let Some(lost) = holders.values().filter(is_lost).min_by_key(key) {
        return Some(InputFate::NeverRead { place: lost.place, stored_by: lost.stored_by });
    }
    let mut ranks: Vec<Rank> = holders.values().map(|holder| holder.place.rank).collect();
    ranks.sort_unstable();
    ranks.dedup();
    Some(InputFate::ReachesOnly(ranks))
}
