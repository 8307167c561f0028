//! Prints a schedule as a table: the steps of each rank in each round, and its chunks after it.

use super::{Drawing, list_chunks, summary, title};
use crate::schedule::check::{Event, Trace};
use crate::schedule::{Chunk, ChunkRef, Rank, Schedule, Space, Step};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Returns a text that shows step by step how `schedule` works on small numbers.
///
/// Element i of the input of rank k is i + k. A message appears in the round of its arrival. A
/// wrong schedule is shown up to the step that cannot be carried out, followed by the violation.
pub fn explain(schedule: &Schedule) -> String {
    Drawing::new(schedule).explain()
}

impl Drawing<'_> {
    /// Returns the text of [`explain()`].
    pub fn explain(&self) -> String {
        let mut text = format!("{}\n", title(self.schedule));
        if let Some(trace) = &self.trace {
            let _ = writeln!(text, "{}\n", summary(self.schedule, trace));
            Explanation::new(self.schedule).write_trace(trace, &mut text);
        }
        if let Err(violation) = &self.proof {
            let _ = writeln!(text, "wrong: {violation}");
        }
        text
    }
}

/// The values that each rank holds so far.
struct Explanation<'s> {
    schedule: &'s Schedule,
    values: BTreeMap<(Rank, Chunk), i64>,
    /// The spaces that any rank has, with the chunks of each rank.
    columns: Vec<(Space, Vec<usize>)>,
}

impl<'s> Explanation<'s> {
    fn new(schedule: &'s Schedule) -> Self {
        let spec = &schedule.spec;
        let outputs =
            |rank| schedule.collective.shares(spec.ranks, spec.root, rank).1 * schedule.chunks_per_share;
        let columns = vec![
            (Space::Output, (0..spec.ranks).map(outputs).collect::<Vec<_>>()),
            (Space::Scratch, schedule.programs.iter().map(|program| program.scratch).collect()),
            (Space::Window, schedule.programs.iter().map(|program| program.window).collect()),
        ];
        let is_used = |(_, chunks): &(Space, Vec<usize>)| chunks.iter().any(|&chunks| chunks > 0);
        Self { schedule, values: BTreeMap::new(), columns: columns.into_iter().filter(is_used).collect() }
    }

    fn write_trace(&mut self, trace: &Trace, text: &mut String) {
        self.write_inputs(text);
        let mut events: Vec<&Event> = trace.events.iter().collect();
        // Stable: what a lane program did in one round stays in its order.
        events.sort_by_key(|event| (event.end, event.at.rank));
        for round in events.chunk_by(|event, next| event.end == next.end) {
            let _ = match round[0].end {
                0 => writeln!(text, "before the first round"),
                number => writeln!(text, "round {number}"),
            };
            self.write_round(round, text);
        }
    }

    fn write_inputs(&self, text: &mut String) {
        let spec = &self.schedule.spec;
        for rank in 0..spec.ranks {
            let shares = self.schedule.collective.shares(spec.ranks, spec.root, rank).0;
            let numbers: Vec<_> =
                (0..shares * self.schedule.chunks_per_share).map(|i| (i + rank).to_string()).collect();
            if !numbers.is_empty() {
                let _ = writeln!(text, "  {rank:>3}  in {}", numbers.join(" "));
            }
        }
        text.push('\n');
    }

    fn write_round(&mut self, events: &[&Event], text: &mut String) {
        for write in events.iter().flat_map(|event| &event.writes) {
            let value = write.values.first().copied().unwrap_or_default();
            self.values.insert((write.target.rank, write.target.chunk), value);
        }
        let mut rows = Vec::new();
        for rank in 0..self.schedule.spec.ranks {
            let done: Vec<_> = events
                .iter()
                .filter(|event| event.at.rank == rank)
                .map(|event| self.describe(event))
                .collect();
            let mut row = vec![done.join("; ")];
            row.extend(self.columns.iter().map(|(space, chunks)| self.contents(rank, *space, chunks[rank])));
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

    fn contents(&self, rank: Rank, space: Space, chunks: usize) -> String {
        let value = |index| self.values.get(&(rank, Chunk { space, index }));
        let values = (0..chunks as u32).map(|index| value(index).map_or(".".to_owned(), i64::to_string));
        let name = match space {
            Space::Input => "in",
            Space::Output => "out",
            Space::Scratch => "tmp",
            Space::Window => "win",
        };
        if chunks == 0 { String::new() } else { format!("{name} {}", values.collect::<Vec<_>>().join(" ")) }
    }

    fn describe(&self, event: &Event) -> String {
        let rank = event.at.rank;
        match &self.schedule.programs[rank].lane_programs[event.at.lane_program].steps[event.at.step] {
            Step::Send { peer, chunks } => {
                format!("{} to {peer}", list_chunks(chunks, CHUNKS_LISTED_MAX))
            }
            Step::Recv { peer, into } => format!("{} from {peer}", list_chunks(into, CHUNKS_LISTED_MAX)),
            Step::RecvReduce { peer, with, into, .. } => {
                format!(
                    "{} = {} + from {peer}",
                    list_chunks(into, CHUNKS_LISTED_MAX),
                    list_chunks(with, CHUNKS_LISTED_MAX)
                )
            }
            Step::Copy { from, into } => {
                format!("{} = {}", format_chunk_ref(into, rank), format_chunk_ref(from, rank))
            }
            Step::Reduce { from, into, .. } => {
                let operands: Vec<_> = from.iter().map(|operand| format_chunk_ref(operand, rank)).collect();
                format!("{} = {}", format_chunk_ref(into, rank), operands.join(" + "))
            }
            Step::Signal => "signals".to_owned(),
            Step::Wait { peer, .. } => format!("sees {peer}"),
        }
    }
}

fn format_chunk_ref(place: &ChunkRef, rank: Rank) -> String {
    if place.rank == rank { place.chunk.to_string() } else { format!("{} of {}", place.chunk, place.rank) }
}

/// The most chunks of one message that are named.
const CHUNKS_LISTED_MAX: usize = 8;
