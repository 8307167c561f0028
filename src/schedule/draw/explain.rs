//! A schedule as a table: what each rank does in each round, and what it holds then.

use super::{names, play, summary, title};
use crate::schedule::check::{Event, Trace};
use crate::schedule::{Block, Place, Rank, Schedule, Space, Step};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Tells step by step what `schedule` does to small numbers.
///
/// Element i of the input of rank k is i + k. A message is told in the round in which it arrives.
pub fn explain(schedule: &Schedule) -> String {
    let mut text = format!("{}\n", title(schedule));
    match play(schedule) {
        Ok(trace) => {
            let _ = writeln!(text, "{}\n", summary(schedule, &trace));
            Telling::new(schedule).tell(&trace, &mut text);
        }
        Err(violation) => {
            let _ = writeln!(text, "{violation}");
        }
    }
    text
}

/// What is held where, so far.
struct Telling<'s> {
    schedule: &'s Schedule,
    held: BTreeMap<(Rank, Block), i64>,
    /// Spaces that any rank has, with the blocks of each rank.
    columns: Vec<(Space, Vec<usize>)>,
}

impl<'s> Telling<'s> {
    fn new(schedule: &'s Schedule) -> Self {
        let spec = &schedule.spec;
        let outputs = |rank| schedule.collective.shares(spec.ranks, spec.root, rank).1 * schedule.parts;
        let columns = vec![
            (Space::Output, (0..spec.ranks).map(outputs).collect::<Vec<_>>()),
            (Space::Scratch, schedule.programs.iter().map(|program| program.scratch).collect()),
            (Space::Window, schedule.programs.iter().map(|program| program.window).collect()),
        ];
        let is_used = |(_, blocks): &(Space, Vec<usize>)| blocks.iter().any(|&blocks| blocks > 0);
        Self { schedule, held: BTreeMap::new(), columns: columns.into_iter().filter(is_used).collect() }
    }

    fn tell(&mut self, trace: &Trace, text: &mut String) {
        self.inputs(text);
        let mut events: Vec<&Event> = trace.events.iter().collect();
        // Stable: what a strand did in one round stays in its order.
        events.sort_by_key(|event| (event.ended, event.at.rank));
        for round in events.chunk_by(|one, next| one.ended == next.ended) {
            let _ = match round[0].ended {
                0 => writeln!(text, "before the first round"),
                number => writeln!(text, "round {number}"),
            };
            self.round(round, text);
        }
    }

    fn inputs(&self, text: &mut String) {
        let spec = &self.schedule.spec;
        for rank in 0..spec.ranks {
            let shares = self.schedule.collective.shares(spec.ranks, spec.root, rank).0;
            let numbers: Vec<_> = (0..shares * self.schedule.parts).map(|i| (i + rank).to_string()).collect();
            if !numbers.is_empty() {
                let _ = writeln!(text, "  {rank:>3}  in {}", numbers.join(" "));
            }
        }
        text.push('\n');
    }

    fn round(&mut self, events: &[&Event], text: &mut String) {
        for write in events.iter().flat_map(|event| &event.writes) {
            let value = write.values.first().copied().unwrap_or_default();
            self.held.insert((write.place.rank, write.place.block), value);
        }
        let mut rows = Vec::new();
        for rank in 0..self.schedule.spec.ranks {
            let done: Vec<_> =
                events.iter().filter(|event| event.at.rank == rank).map(|event| self.does(event)).collect();
            let mut row = vec![done.join("; ")];
            row.extend(self.columns.iter().map(|(space, blocks)| self.contents(rank, *space, blocks[rank])));
            rows.push(row);
        }
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<_> = (0..=self.columns.len()).map(width).collect();
        for (rank, row) in rows.iter().enumerate() {
            let cells: Vec<_> =
                row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}")).collect();
            let _ = writeln!(text, "  {rank:>3}  {}", cells.join("   ").trim_end());
        }
        text.push('\n');
    }

    fn contents(&self, rank: Rank, space: Space, blocks: usize) -> String {
        let value = |index| self.held.get(&(rank, Block { space, index }));
        let values = (0..blocks as u32).map(|index| value(index).map_or(".".to_owned(), i64::to_string));
        let name = match space {
            Space::Input => "in",
            Space::Output => "out",
            Space::Scratch => "tmp",
            Space::Window => "win",
        };
        if blocks == 0 { String::new() } else { format!("{name} {}", values.collect::<Vec<_>>().join(" ")) }
    }

    fn does(&self, event: &Event) -> String {
        let rank = event.at.rank;
        match &self.schedule.programs[rank].strands[event.at.strand].steps[event.at.step] {
            Step::Send { peer, blocks } => format!("{} to {peer}", names(blocks, NAMES_MAX)),
            Step::Recv { peer, into } => format!("{} from {peer}", names(into, NAMES_MAX)),
            Step::RecvReduce { peer, with, into, .. } => {
                format!("{} = {} + from {peer}", names(into, NAMES_MAX), names(with, NAMES_MAX))
            }
            Step::Copy { from, into } => format!("{} = {}", place(into, rank), place(from, rank)),
            Step::Reduce { from, into, .. } => {
                let operands: Vec<_> = from.iter().map(|operand| place(operand, rank)).collect();
                format!("{} = {}", place(into, rank), operands.join(" + "))
            }
            Step::Signal => "signals".to_owned(),
            Step::Wait { peer, .. } => format!("sees {peer}"),
        }
    }
}

fn place(place: &Place, rank: Rank) -> String {
    if place.rank == rank { place.block.to_string() } else { format!("{} of {}", place.block, place.rank) }
}

/// Most blocks of one message that are named.
const NAMES_MAX: usize = 8;
