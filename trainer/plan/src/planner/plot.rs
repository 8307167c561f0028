//! Picture of a plan: the predicted step time of each mesh, divided by what takes it.

use crate::cost::StepTime;
use crate::cost::format::time;
use crate::planner::report::PlanReport;
use crate::planner::search::Candidate;
use crate::planner::tables::mesh;
use std::fmt::Write;
use unisono_nn::counted;

/// Parts of a step with their colors, from the left.
const PARTS: [(&str, &str); 7] = [
    ("forward", "#4477aa"),
    ("backward", "#66ccee"),
    ("in layers", "#ee6677"),
    ("exposed data", "#ccbb44"),
    ("on cores", "#aa3377"),
    ("bubble", "#bbbbbb"),
    ("optimizer", "#228833"),
];

const ROWS: usize = 24;
const LABELS: f64 = 360.0;
const BARS: f64 = 520.0;
const ROW: f64 = 22.0;
const TOP: f64 = 64.0;

/// Returns the picture as SVG.
pub(super) fn svg(answer: &PlanReport) -> String {
    let rows: Vec<&Candidate> = answer.ranked().take(ROWS).collect();
    let longest = rows.iter().map(|row| row.seconds()).fold(f64::MIN_POSITIVE, f64::max);
    let mut body = legend();
    for (number, candidate) in rows.iter().enumerate() {
        body += &bar(candidate, TOP + ROW * number as f64, BARS / longest);
    }
    let (width, height) = (LABELS + BARS + NUMBERS, TOP + ROW * rows.len() as f64 + 16.0);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"16\" y=\"24\" font-size=\"15\">Predicted step time on {}; the first mesh is chosen</text>\n\
         {body}</svg>\n",
        counted(answer.hardware.ranks, "rank")
    )
}

/// Space to the right of the bars, for their numbers.
const NUMBERS: f64 = 120.0;

fn legend() -> String {
    let each = (BARS + NUMBERS) / PARTS.len() as f64;
    let entry = |(number, (name, color)): (usize, &(&str, &str))| {
        let x = LABELS + each * number as f64;
        format!(
            "<rect x=\"{x:.0}\" y=\"38\" width=\"10\" height=\"10\" fill=\"{color}\"/>\
             <text x=\"{:.0}\" y=\"47\">{name}</text>\n",
            x + 14.0
        )
    };
    PARTS.iter().enumerate().map(entry).collect()
}

/// Draws a mesh at this height, with this many pixels per second.
fn bar(candidate: &Candidate, y: f64, scale: f64) -> String {
    let step = &candidate.step_time;
    let exposed = (step.communication - step.hidden).max(0.0);
    let StepTime { forward, backward, in_layers, on_cores, bubble, optimizer, .. } = *step;
    let seconds = [forward, backward, in_layers, exposed, on_cores, bubble, optimizer];
    let mut text = format!(
        "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">{}</text>",
        LABELS - 8.0,
        y + 13.0,
        mesh(&candidate.parallel)
    );
    let mut x = LABELS;
    for ((_, color), seconds) in PARTS.iter().zip(seconds) {
        let width = seconds * scale;
        // Writing to a string does not fail.
        let _ = write!(
            text,
            "<rect x=\"{x:.1}\" y=\"{y:.0}\" width=\"{width:.1}\" height=\"16\" fill=\"{color}\"/>"
        );
        x += width;
    }
    format!("{text}<text x=\"{:.1}\" y=\"{:.0}\">{}</text>\n", x + 6.0, y + 13.0, time(candidate.seconds()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Letters are at most 8 pixels wide in this size.
    #[test]
    fn legend_ends_within_the_picture() {
        let (text, width) = (legend(), LABELS + BARS + NUMBERS);
        let entries: Vec<(f64, &str)> = text
            .split("<text x=\"")
            .skip(1)
            .map(|entry| {
                let (x, tail) = entry.split_once('"').unwrap();
                (x.parse().unwrap(), tail.split_once('>').unwrap().1.split_once('<').unwrap().0)
            })
            .collect();
        assert_eq!(entries.len(), PARTS.len());
        let ends = entries.iter().map(|(x, name)| x + 6.5 * name.len() as f64);
        let starts = entries.iter().skip(1).map(|(x, _)| x - 14.0).chain([width]);
        assert!(ends.zip(starts).all(|(end, start)| end <= start), "{entries:?}");
    }
}
