//! Shows a schedule in time, as text or as a picture.

mod svg;

pub use svg::svg;

use crate::pipeline::player::{Span, Timeline};
use crate::pipeline::{Op, Schedule};

/// Most columns of a text, of one short pass each.
const COLUMNS_MAX: f64 = 1000.0;

/// Returns one line per rank, in which the place of a pass shows its time: `F0 F1 .  B0 - `. A dot
/// is idle time, a dash the rest of a long pass. With several chunks, `F0.1` is micro-batch 0 of
/// chunk 1.
pub fn text(schedule: &Schedule, timeline: &Timeline) -> String {
    let unit = shortest_pass(timeline).max(timeline.makespan / COLUMNS_MAX);
    let labels = schedule.rows.iter().flatten().filter_map(|op| op.label(schedule.chunks));
    let width = labels.map(|label| label.len()).max().unwrap_or(0);
    let line = |(rank, row): (usize, &Vec<Span>)| {
        let cells = cells(row, unit, schedule.chunks);
        let padded = cells.iter().map(|cell| format!("{cell:<width$}"));
        let line = padded.collect::<Vec<_>>().join(" ");
        format!("rank {rank:<3} {}\n", line.trim_end())
    };
    timeline.rows.iter().enumerate().map(line).collect()
}

/// Returns the texts of a row's columns, one per unit of time.
fn cells(row: &[Span], unit: f64, chunks: usize) -> Vec<String> {
    let column = |time: f64| (time / unit).round() as usize;
    let mut cells = Vec::new();
    for span in passes(row) {
        // Passes shorter than a unit move those behind them.
        cells.resize(cells.len().max(column(span.start)), ".".to_owned());
        cells.extend(span.op.label(chunks));
        cells.resize(cells.len().max(column(span.end)), "-".to_owned());
    }
    cells
}

/// Returns the spans of passes.
fn passes(row: &[Span]) -> impl Iterator<Item = &Span> {
    row.iter().filter(|span| span.op.computes())
}

/// Returns the time of the shortest pass that takes any.
fn shortest_pass(timeline: &Timeline) -> f64 {
    let times = timeline.rows.iter().flat_map(|row| passes(row)).map(|span| span.end - span.start);
    let shortest = times.filter(|&time| time > 0.0).fold(f64::INFINITY, f64::min);
    if shortest.is_finite() { shortest } else { 1.0 }
}

/// Names of the passes in a schedule, by letter.
fn kinds(schedule: &Schedule) -> Vec<(char, &'static str)> {
    let names = [
        ('F', "forward"),
        ('B', "backward"),
        ('I', "gradient of the input"),
        ('W', "gradients of the weights"),
    ];
    let has = |letter| schedule.rows.iter().flatten().any(|op: &Op| op.letter() == Some(letter));
    names.into_iter().filter(|&(letter, _)| has(letter)).collect()
}

/// Returns the meaning of the letters in a text.
pub fn legend(schedule: &Schedule) -> String {
    let kinds = kinds(schedule);
    let mut parts: Vec<_> = kinds.iter().map(|(letter, name)| format!("{letter} {name}")).collect();
    if schedule.chunks > 1 {
        parts.push("F0.1 micro-batch 0 of chunk 1".to_owned());
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::{Order, StageCosts, play};

    fn drawn(name: &str, chunks: usize, backward_input: f64) -> (Schedule, Timeline) {
        let schedule = Order::find(name).unwrap().schedule(2, 3, chunks).unwrap();
        let costs = StageCosts::new([1.0, backward_input, 1.0], 1, 0.0);
        let timeline = play(&schedule, &vec![costs; schedule.stages()]).unwrap();
        (schedule, timeline)
    }

    #[test]
    fn pipeline_text_shows_passes_at_their_times() {
        let (schedule, timeline) = drawn("1f1b", 1, 1.0);
        assert_eq!(
            text(&schedule, &timeline),
            "rank 0   F0 F1 .  .  B0 -  F2 B1 -  .  B2 -\n\
             rank 1   .  F0 B0 -  F1 B1 -  F2 B2 -\n"
        );
        assert_eq!(legend(&schedule), "F forward, B backward");
        let (schedule, timeline) = drawn("zb-v", 2, 1.0);
        let shown = text(&schedule, &timeline);
        assert!(shown.starts_with("rank 0   F0.0 F1.0 F2.0 F0.1 I0.1 W0.1 "), "{shown}");
        assert!(legend(&schedule).ends_with("F0.1 micro-batch 0 of chunk 1"));
    }

    #[test]
    fn pipeline_text_and_picture_are_bounded() {
        let (schedule, timeline) = drawn("zb-h1", 1, 1e9);
        assert!(text(&schedule, &timeline).lines().all(|line| line.len() < 4000));
        let picture = svg("a title", &schedule, &timeline);
        assert!(picture.contains("width=\"12100\""), "{}", &picture[..200]);
    }

    #[test]
    fn pipeline_picture_has_one_box_per_pass() {
        let (schedule, timeline) = drawn("zb-v", 2, 1.0);
        let picture = svg("zb-v of 2 ranks", &schedule, &timeline);
        assert!(picture.starts_with("<svg ") && picture.trim_end().ends_with("</svg>"));
        // Forward and two halves of backward, of 3 micro-batches in 4 stages.
        assert_eq!(picture.matches("<title>").count() - 1, 3 * 3 * 4);
        for class in ["F", "I", "W"] {
            // One more in the legend.
            assert_eq!(picture.matches(&format!("class=\"{class}\"")).count(), 3 * 4 + 1);
        }
        assert_eq!(picture.matches("class=\"lane\"").count(), 2);
        assert!(picture.contains("<title>F0 of chunk 1: 3 to 4</title>"), "{picture}");
    }
}
