//! Shows a schedule as a table of rounds, or as a picture.
//!
//! Both forms replay the schedule first. Each chunk holds one number, and the inputs are 0, 1, 2, …
//! plus the rank. [`Drawing`] replays and proves a schedule once for both forms.

mod explain;
mod legend;
mod svg;

pub use explain::explain;
pub use svg::svg;

use super::check::{Options, Replayer, Report, Trace, Violation, check_schedule};
use super::{Chunk, ChunkRef, Rank, Schedule, Step};

/// A schedule that has been replayed and proved, to be shown in any form.
///
/// ```
/// use unisono::schedule::draw::Drawing;
/// use unisono::schedule::{Collective, GroupSpec, find};
///
/// let ring = find(Collective::AllReduce, "ring").unwrap().schedule(&GroupSpec::new(4));
/// let drawing = Drawing::new(&ring);
/// assert_eq!(drawing.proof().unwrap().steps, 6);
/// assert!(drawing.explain().contains("6 rounds") && drawing.svg().starts_with("<svg "));
/// ```
#[derive(Debug)]
pub struct Drawing<'s> {
    schedule: &'s Schedule,
    /// The replay up to the first step that cannot be carried out. There is none if the numbers of
    /// the schedule do not fit together.
    trace: Option<Trace>,
    proof: Result<Report, Violation>,
}

impl<'s> Drawing<'s> {
    /// Replays and proves a schedule, in place if its collective has an in-place form.
    pub fn new(schedule: &'s Schedule) -> Self {
        let replayer = Replayer { fifo_slots: FIFO_SLOTS, ..Replayer::default() };
        match replayer.replay_until_violation(schedule, |rank, index| (index + rank) as i64) {
            Err(violation) => Self { schedule, trace: None, proof: Err(violation) },
            Ok((trace, Some(violation))) => Self { schedule, trace: Some(trace), proof: Err(violation) },
            // A run that ends can have wrong outputs, can be wrong in place only, and can need
            // longer queues than links have. The proof finds such errors.
            Ok((trace, None)) => {
                let proof = check_schedule(schedule, &Options { in_place: true, ..Options::default() });
                Self { schedule, trace: Some(trace), proof }
            }
        }
    }

    /// Returns the costs of the schedule.
    ///
    /// # Errors
    /// The first thing that is wrong with the schedule.
    pub fn proof(&self) -> Result<&Report, &Violation> {
        self.proof.as_ref()
    }
}

/// The collective, the algorithm if it has a name, and the group.
fn title(schedule: &Schedule) -> String {
    let spec = &schedule.spec;
    let name = &schedule.algorithm;
    let name = if name.is_empty() { String::new() } else { format!(" {}", name.escape_debug()) };
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

/// Number of messages that a link holds in a replay. It is two more than a proof allows, so that no
/// sender waits for a slot and the rounds are those of the longest chain.
const FIFO_SLOTS: usize = 4;

#[cfg(test)]
mod tests {
    use super::super::{Algorithm, Collective, GroupSpec, ProgramBuilder, find, input, output};
    use super::*;

    fn ring() -> Schedule {
        let ring = find(Collective::AllReduce, "ring").unwrap();
        ring.schedule(&GroupSpec::new(4))
    }

    #[test]
    fn explain_ring_shows_each_step() {
        let text = explain(&ring());
        assert!(text.starts_with("all_reduce ring, 4 ranks\n6 rounds, 24 chunks moved\n"), "{text}");
        let last = text.split("round 6").nth(1).unwrap();
        assert_eq!(last.matches("6 10 14 18").count(), 4, "{text}");
        let earlier = text.split("round 5").nth(1).unwrap().split("round 6").next().unwrap();
        assert!(earlier.matches("6 10 14 18").count() < 4, "{text}");
    }

    #[test]
    fn explain_reports_violations() {
        let mut broken = ring();
        broken.programs[2].lane_programs[0].steps.remove(0);
        for shown in [explain(&broken), svg(&broken)] {
            assert!(shown.contains("deadlock"), "{shown}");
        }
        // Rank 3 waits for the step that is missing, so it has a mark after the steps before.
        let picture = svg(&broken);
        assert_eq!(picture.matches("r=\"9\"").count(), 1, "{picture}");
        assert!(picture.contains("class=\"message") && explain(&broken).contains("round 1"));
    }

    #[test]
    fn drawing_has_the_proof_of_its_schedule() {
        let schedule = ring();
        let drawing = Drawing::new(&schedule);
        let report = drawing.proof().unwrap();
        assert_eq!((report.steps, report.chunks), (6, 24));
        assert!(!drawing.explain().contains("wrong: "));
        let mut broken = ring();
        broken.programs.pop();
        let drawing = Drawing::new(&broken);
        let wrong = format!("wrong: {}", drawing.proof().unwrap_err());
        assert!(drawing.explain().contains(&wrong) && drawing.svg().ends_with("</svg>\n"), "{wrong}");
    }

    #[test]
    fn drawing_shows_that_links_hold_too_few_messages() {
        // Both ranks send three messages before they receive one, and a link holds two.
        let eager = |_: &GroupSpec, rank: Rank| {
            let (peer, mut program) = (1 - rank, ProgramBuilder::new(rank));
            for part in 0..3 {
                program.copy(input(rank * 3 + part), output(rank * 3 + part));
                program.send(peer, [input(peer * 3 + part)]);
            }
            (0..3).for_each(|part| _ = program.recv(peer, [output(peer * 3 + part)]));
            program.finish(0, 0)
        };
        let eager = Algorithm::new("eager", Collective::AllToAll, eager).with_chunks_per_share(|_| 3);
        let schedule = eager.schedule(&GroupSpec::new(2));
        let drawing = Drawing::new(&schedule);
        assert!(matches!(drawing.proof(), Err(Violation::Deadlock { .. })));
        assert!(drawing.explain().contains("wrong: "));
    }

    #[test]
    fn drawings_mark_the_step_that_loses_an_input() {
        // Rank 1 stores its sum where nothing reads it, and sends its plain input on.
        let mut broken = ring();
        let steps = &mut broken.programs[1].lane_programs[0].steps;
        let Step::RecvReduce { into, .. } = &mut steps[1] else { panic!("a ring adds in its second step") };
        *into = vec![super::super::scratch(0)];
        let Step::Send { chunks, .. } = &mut steps[2] else { panic!("a ring passes the sum on") };
        chunks[0].space = super::super::Space::Input;
        broken.programs[1].scratch = 1;
        let lost = "rank 1 lane program 0 step 1 stored that input in tmp0 of rank 1";
        assert!(explain(&broken).contains(lost), "{}", explain(&broken));
        assert_eq!(svg(&broken).matches("r=\"9\"").count(), 1);
    }

    #[test]
    fn names_from_files_are_escaped() {
        let named = svg(&Schedule { algorithm: "<script>&\"".to_owned(), ..ring() });
        assert!(named.contains("&lt;script&gt;&amp;") && !named.contains("<script"));
    }

    #[test]
    fn svg_has_one_arrow_per_message() {
        let picture = svg(&ring());
        assert!(picture.starts_with("<svg ") && picture.trim_end().ends_with("</svg>"));
        assert_eq!(picture.matches("marker-end=\"url(#message").count(), 24);
        assert_eq!(picture.matches("<text").count() - picture.matches("</text>").count(), 0);
    }

    #[test]
    fn svg_renders_every_algorithm() {
        for row in Algorithm::ALL {
            for ranks in [1, 2, 5, 8] {
                let spec = GroupSpec::new(ranks).with_root(ranks - 1);
                if (row.supports)(&spec) {
                    let schedule = row.schedule(&spec);
                    let title = format!("{} {}, {ranks} rank", row.collective, row.name);
                    assert!(explain(&schedule).starts_with(&title), "{title}");
                    assert!(svg(&schedule).contains(&title) && !svg(&schedule).contains("deadlock"));
                }
            }
        }
    }
}
