//! Shows what a schedule does: as a table of rounds, or as a picture.
//!
//! Both replay it first, on inputs of 0, 1, 2, … plus the rank, one number a chunk.

mod explain;
mod svg;

pub use explain::explain;
pub use svg::svg;

use super::check::{Replayer, Trace, Violation};
use super::{Algorithm, Chunk, ChunkRef, Rank, Schedule, Step};

fn replay(schedule: &Schedule) -> Result<Trace, Violation> {
    let player = Replayer { fifo_slots: FIFO_SLOTS, ..Replayer::default() };
    player.replay(schedule, |rank, index| (index + rank) as i64)
}

/// The collective, the algorithm if it is one of the table, and the group.
fn title(schedule: &Schedule) -> String {
    let spec = &schedule.spec;
    let is_built_by = |row: &&Algorithm| {
        let same = |rank: Rank| schedule.programs.get(rank) == Some(&(row.build)(spec, rank));
        row.collective == schedule.collective
            && (row.supports)(spec)
            && (row.chunks_per_share)(spec) == schedule.chunks_per_share
            && (0..spec.ranks).all(same)
    };
    let name = Algorithm::ALL.iter().find(is_built_by).map_or(String::new(), |row| format!(" {}", row.name));
    let root = if schedule.collective.has_root() { format!(", root {}", spec.root) } else { String::new() };
    let ranks = if spec.ranks == 1 { "1 rank".to_owned() } else { format!("{} ranks", spec.ranks) };
    format!("{}{name}, {ranks}{root}", schedule.collective)
}

/// Chunks that reach another rank in this step.
fn chunks_moved(step: &Step, rank: Rank) -> usize {
    let remote = |places: &[&ChunkRef]| places.iter().filter(|place| place.rank != rank).count();
    match step {
        Step::Send { chunks, .. } => chunks.len(),
        Step::Copy { from, into } => remote(&[from, into]),
        Step::Reduce { from, into, .. } => remote(&from.iter().chain([into]).collect::<Vec<_>>()),
        Step::Recv { .. } | Step::RecvReduce { .. } | Step::Signal | Step::Wait { .. } => 0,
    }
}

/// Chunks moved in all, and rounds.
fn summary(schedule: &Schedule, trace: &Trace) -> String {
    let programs = schedule.programs.iter().enumerate();
    let chunks: usize = programs
        .flat_map(|(rank, program)| {
            program.lane_programs.iter().map(move |lane_program| (rank, lane_program))
        })
        .flat_map(|(rank, lane_program)| lane_program.steps.iter().map(move |step| chunks_moved(step, rank)))
        .sum();
    let plural = |count: u64| if count == 1 { "" } else { "s" };
    let (rounds, chunks) = (trace.rounds, chunks as u64);
    format!("{rounds} round{}, {chunks} chunk{} moved", plural(rounds), plural(chunks))
}

/// Names of chunks, at most `most` of them.
fn list_chunks(chunks: &[Chunk], most: usize) -> String {
    let shown: Vec<_> = chunks.iter().take(most).map(ToString::to_string).collect();
    match chunks.len() {
        0 => "nothing".to_owned(),
        length if length > most => format!("{} and {} more", shown.join(" "), length - most),
        _ => shown.join(" "),
    }
}

/// Messages that a link holds: as many as any schedule of the table needs, and two more.
const FIFO_SLOTS: usize = 4;

#[cfg(test)]
mod tests {
    use super::super::{Collective, GroupSpec, find};
    use super::*;

    fn ring() -> Schedule {
        let ring = find(Collective::AllReduce, "ring").unwrap();
        ring.schedule(&GroupSpec { ranks: 4, root: 0, aggregation: 1 })
    }

    #[test]
    fn explain_ring_shows_each_step() {
        let text = explain(&ring());
        assert!(text.starts_with("all_reduce ring, 4 ranks\n6 rounds, 24 chunks moved\n"), "{text}");
        let last = text.split("round 6").nth(1).unwrap();
        assert_eq!(last.matches("6 10 14 18").count(), 4, "{text}");
        let before = text.split("round 5").nth(1).unwrap().split("round 6").next().unwrap();
        assert!(before.matches("6 10 14 18").count() < 4, "{text}");
    }

    #[test]
    fn explain_reports_violations() {
        let mut broken = ring();
        broken.programs[2].lane_programs[0].steps.remove(0);
        for shown in [explain(&broken), svg(&broken)] {
            assert!(shown.contains("deadlock"), "{shown}");
        }
    }

    #[test]
    fn svg_has_one_arrow_per_message() {
        let picture = svg(&ring());
        assert!(picture.starts_with("<svg ") && picture.trim_end().ends_with("</svg>"));
        assert_eq!(picture.matches("class=\"message").count(), 24);
        assert_eq!(picture.matches("<text").count() - picture.matches("</text>").count(), 0);
    }

    #[test]
    fn svg_renders_every_algorithm() {
        for row in Algorithm::ALL {
            for ranks in [1, 2, 5, 8] {
                let spec = GroupSpec { ranks, root: ranks - 1, aggregation: 1 };
                if (row.supports)(&spec) {
                    let schedule = row.schedule(&spec);
                    // With few ranks, several algorithms are the same.
                    let named = if ranks < 5 { row.collective.name() } else { row.name };
                    assert!(explain(&schedule).contains(named), "{} {}", row.collective, row.name);
                    assert!(svg(&schedule).contains(named) && !svg(&schedule).contains("deadlock"));
                }
            }
        }
    }
}
