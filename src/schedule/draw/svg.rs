//! Draws a schedule as a space-time diagram, with a line for each rank and an arrow for each
//! message.

use super::legend::{self, Entry};
use super::{Drawing, list_chunks, summary, title};
use crate::schedule::check::{Event, StepLocation, Trace, Violation};
use crate::schedule::{Rank, Schedule, Step};
use std::fmt::Write;

/// Draws `schedule` as an SVG file without fonts, scripts or style sheets.
///
/// A wrong schedule is drawn up to the step that cannot be carried out. The steps to look at are
/// marked, and the violation stands below the drawing.
pub fn svg(schedule: &Schedule) -> String {
    Drawing::new(schedule).svg()
}

impl Drawing<'_> {
    /// Returns the picture of [`svg()`].
    pub fn svg(&self) -> String {
        let violation = self.proof.as_ref().err();
        match &self.trace {
            Some(trace) => Diagram::new(self.schedule, trace).draw(violation),
            None => {
                let (text, height) = legend::draw(&[], violation, WIDTH_MIN, TOP);
                frame(WIDTH_MIN, height, &title(self.schedule), "", &text)
            }
        }
    }
}

struct Diagram<'s> {
    schedule: &'s Schedule,
    trace: &'s Trace,
    /// True if there is room for the names of chunks.
    labels: bool,
    /// Width of a round.
    column: f64,
    body: String,
}

impl<'s> Diagram<'s> {
    fn new(schedule: &'s Schedule, trace: &'s Trace) -> Self {
        let arrows = trace.events.iter().filter(|event| event.cause.is_some()).count() as u64;
        let labels = arrows <= LABELS_MAX * trace.rounds.max(1);
        let steps = schedule
            .programs
            .iter()
            .flat_map(|program| &program.lane_programs)
            .flat_map(|lane_program| &lane_program.steps);
        let label = |step: &Step| match step {
            Step::Send { chunks, .. } => list_chunks(chunks, CHUNKS_LISTED_MAX).len(),
            _ => 0,
        };
        let longest = steps.map(label).max().filter(|_| labels).unwrap_or(0);
        let column = COLUMN_MIN.max(longest as f64 * CHAR_WIDTH / (2.0 * LABEL_POSITION));
        Self { schedule, trace, labels, column, body: String::new() }
    }

    fn draw(mut self, violation: Option<&Violation>) -> String {
        self.grid();
        for event in &self.trace.events {
            self.arrow(event);
        }
        for event in &self.trace.events {
            self.mark(event);
        }
        for step in violation.iter().flat_map(|violation| violation.steps()) {
            self.mark_fault(step);
        }
        self.results();
        let width = (self.x(self.trace.rounds) + self.column * ARROW_SLANT + RIGHT).max(WIDTH_MIN);
        let entries: Vec<Entry> = Entry::ALL.into_iter().filter(|entry| self.has(entry)).collect();
        let (text, height) =
            legend::draw(&entries, violation, width, self.y(self.schedule.spec.ranks) + LEGEND_GAP);
        self.body.push_str(&text);
        frame(width, height, &title(self.schedule), &summary(self.schedule, self.trace), &self.body)
    }

    /// The lines of the ranks and the rounds.
    fn grid(&mut self) {
        let ranks = self.schedule.spec.ranks;
        let (left, right) = (self.x(0), self.x(self.trace.rounds));
        for round in 0..=self.trace.rounds {
            let (x, top, bottom) =
                (self.x(round), self.y(0) - ROW_HEIGHT / 2.5, self.y(ranks - 1) + ROW_HEIGHT / 2.5);
            let _ = writeln!(self.body, r#"<path class="round" d="M{x:.0} {top:.0}V{bottom:.0}"/>"#);
            if round > 0 {
                let (middle, y) = (x - self.column / 2.0, bottom + 18.0);
                let _ =
                    writeln!(self.body, r#"<text class="time" x="{middle:.0}" y="{y:.0}">{round}</text>"#);
            }
        }
        for rank in 0..ranks {
            let y = self.y(rank);
            let _ = writeln!(self.body, r#"<path class="rank" d="M{left:.0} {y:.0}H{right:.0}"/>"#);
            let (x, base) = (left - 14.0, y + 4.0);
            let _ = writeln!(self.body, r#"<text class="name" x="{x:.0}" y="{base:.0}">rank {rank}</text>"#);
        }
    }

    /// The arrow of a step, from the sender or from the owner of the window that it read.
    fn arrow(&mut self, event: &Event) {
        if let Some(sent) = event.cause.map(|cause| &self.trace.events[cause]) {
            let class = match self.step(event) {
                Step::Wait { .. } => "signal".to_owned(),
                _ => format!("message lane{}", self.lane(event)),
            };
            let start = (self.x(sent.start), self.y(sent.at.rank));
            let end = (self.x(event.end), self.y(event.at.rank));
            let label = match self.step(sent) {
                Step::Send { chunks, .. } if !chunks.is_empty() => list_chunks(chunks, CHUNKS_LISTED_MAX),
                _ => String::new(),
            };
            self.line(&class, start, end, &label);
        }
        let places = match self.step(event) {
            Step::Copy { from, into } => vec![*from, *into],
            Step::Reduce { from, into, .. } => from.iter().chain([into]).copied().collect(),
            _ => Vec::new(),
        };
        for place in places.into_iter().filter(|place| place.rank != event.at.rank) {
            let x = self.x(event.end);
            let (there, here) =
                ((x, self.y(place.rank)), (x + self.column * ARROW_SLANT, self.y(event.at.rank)));
            let label = place.chunk.to_string();
            self.line("window", there, here, &label);
        }
    }

    fn line(&mut self, class: &str, start: (f64, f64), end: (f64, f64), label: &str) {
        let (dx, dy) = (end.0 - start.0, end.1 - start.1);
        let length = dx.hypot(dy).max(1.0);
        // The head ends at the rim of the mark.
        let (x, y) = (end.0 - dx / length * MARKER_RADIUS, end.1 - dy / length * MARKER_RADIUS);
        let head = class.replace(' ', "-");
        let _ = writeln!(
            self.body,
            r#"<path class="{class}" marker-end="url(#{head})" d="M{:.1} {:.1}L{x:.1} {y:.1}"/>"#,
            start.0, start.1
        );
        if self.labels && !label.is_empty() {
            let (x, y) = (start.0 + dx * LABEL_POSITION, start.1 + dy * LABEL_POSITION + 3.5);
            let _ = writeln!(self.body, r#"<text class="label" x="{x:.1}" y="{y:.1}">{label}</text>"#);
        }
    }

    /// A dot where something was stored: hollow if moved, full if combined.
    fn mark(&mut self, event: &Event) {
        let class = match self.step(event) {
            Step::Recv { .. } | Step::Copy { .. } => "moved",
            Step::RecvReduce { .. } | Step::Reduce { .. } => "combined",
            Step::Send { .. } | Step::Signal | Step::Wait { .. } => return,
        };
        let leans = matches!(self.step(event), Step::Copy { .. } | Step::Reduce { .. });
        let reaches_out = super::chunks_moved(self.step(event), event.at.rank) > 0;
        let lean = if leans && reaches_out { self.column * ARROW_SLANT } else { 0.0 };
        let (x, y) = (self.x(event.end) + lean, self.y(event.at.rank));
        let stored: Vec<_> = event.writes.iter().map(|write| write.target.chunk).collect();
        let values: Vec<_> =
            event.writes.iter().flat_map(|write| &write.values).map(i64::to_string).collect();
        let _ = writeln!(
            self.body,
            r#"<circle class="{class}" cx="{x:.1}" cy="{y:.1}" r="{MARKER_RADIUS}"><title>{} = {}</title></circle>"#,
            list_chunks(&stored, CHUNKS_LISTED_MAX),
            values.join(" ")
        );
    }

    /// A ring around a step to look at, or at the end of a lane program that cannot begin it.
    fn mark_fault(&mut self, location: StepLocation) {
        let is_before =
            |event: &&Event| (event.at.rank, event.at.lane_program) == (location.rank, location.lane_program);
        let last = self.trace.events.iter().filter(is_before).filter(|event| event.at.step <= location.step);
        let round = last.max_by_key(|event| event.at.step).map_or(0, |event| event.end);
        let (x, y, radius) = (self.x(round), self.y(location.rank), FAULT_RADIUS);
        let _ = writeln!(
            self.body,
            r#"<circle class="fault" cx="{x:.1}" cy="{y:.1}" r="{radius}"><title>{location}</title></circle>"#
        );
    }

    /// Returns whether something is drawn that an entry of the legend explains.
    fn has(&self, entry: &Entry) -> bool {
        self.body.contains(&format!("class=\"{}\"", entry.class))
    }

    /// The values that each rank ends with.
    fn results(&mut self) {
        for (rank, output) in self.trace.outputs.iter().enumerate() {
            let (x, y) = (self.x(self.trace.rounds) + 26.0 + self.column * ARROW_SLANT, self.y(rank) + 4.0);
            let shown: Vec<_> = output.iter().take(NUMBERS_MAX).map(i64::to_string).collect();
            let more = if output.len() > NUMBERS_MAX { " …" } else { "" };
            let _ = writeln!(
                self.body,
                r#"<text class="result" x="{x:.0}" y="{y:.0}">{}{more}</text>"#,
                shown.join(" ")
            );
        }
    }

    fn step(&self, event: &Event) -> &'s Step {
        &self.schedule.programs[event.at.rank].lane_programs[event.at.lane_program].steps[event.at.step]
    }

    fn lane(&self, event: &Event) -> usize {
        self.schedule.programs[event.at.rank].lane_programs[event.at.lane_program].lane.min(1)
    }

    fn x(&self, round: u64) -> f64 {
        LEFT + round as f64 * self.column
    }

    fn y(&self, rank: Rank) -> f64 {
        TOP + (rank as f64 + 0.5) * ROW_HEIGHT
    }
}

fn frame(width: f64, height: f64, title: &str, subtitle: &str, body: &str) -> String {
    let (title, subtitle) = (legend::escaped(title), legend::escaped(subtitle));
    let heads: String = [("message-lane0", LANE_0_COLOR), ("message-lane1", LANE_1_COLOR), ("signal", GRID_COLOR), ("window", WINDOW_COLOR)]
        .map(|(name, color)| {
            format!(
                "<marker id=\"{name}\" markerWidth=\"8\" markerHeight=\"8\" refX=\"7\" refY=\"4\" orient=\"auto\" \
                 markerUnits=\"userSpaceOnUse\"><path d=\"M0 0.8L8 4L0 7.2z\" fill=\"{color}\"/></marker>\n"
            )
        })
        .concat();
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {width:.0} {height:.0}\">\n<title>{title}</title>\n<style>{}</style>\n<defs>\n{heads}</defs>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text class=\"title\" x=\"24\" y=\"34\">{title}</text>\n\
         <text class=\"subtitle\" x=\"24\" y=\"54\">{subtitle}</text>\n{body}</svg>\n",
        style()
    )
}

fn style() -> String {
    format!(
        "text{{font-family:system-ui,'DejaVu Sans',sans-serif;font-size:12px;fill:{TEXT_COLOR}}}\
         .title{{font-size:18px;font-weight:600}}.subtitle{{fill:#5b6470}}\
         .name{{text-anchor:end}}.time,.label{{text-anchor:middle}}.time{{fill:#5b6470}}\
         .label{{font-size:10.5px;paint-order:stroke;stroke:#ffffff;stroke-width:4px;stroke-linejoin:round}}\
         .result{{font-weight:600}}.rank,.round,.message,.signal,.window{{fill:none}}\
         .rank{{stroke:#c4cad3;stroke-width:1.5}}.round{{stroke:#eceff3}}\
         .message{{stroke-width:1.4}}.lane0{{stroke:{LANE_0_COLOR}}}.lane1{{stroke:{LANE_1_COLOR}}}\
         .signal{{stroke:{GRID_COLOR};stroke-dasharray:3 3}}.window{{stroke:{WINDOW_COLOR};stroke-width:1.4}}\
         circle{{stroke:{TEXT_COLOR};stroke-width:1.4}}.legend{{fill:#5b6470}}.wrong{{fill:{FAULT_COLOR}}}\
         .fault{{fill:none;stroke:{FAULT_COLOR};stroke-width:2.2}}.moved{{fill:#ffffff}}.combined{{fill:{TEXT_COLOR}}}"
    )
}

const LEFT: f64 = 88.0;
const TOP: f64 = 72.0;
const RIGHT: f64 = 190.0;
/// Distance of the legend from the last rank.
const LEGEND_GAP: f64 = 8.0;
const WIDTH_MIN: f64 = 420.0;
const COLUMN_MIN: f64 = 120.0;
/// Width of a letter of a label.
const CHAR_WIDTH: f64 = 6.0;
const ROW_HEIGHT: f64 = 64.0;
const MARKER_RADIUS: f64 = 4.5;
const FAULT_RADIUS: f64 = 9.0;
/// Distance of a reader from the owner of the window, in columns.
const ARROW_SLANT: f64 = 0.45;
/// Place of a label on its arrow, from 0 to 1.
const LABEL_POSITION: f64 = 0.28;
/// The most arrows in a round that can be labeled.
const LABELS_MAX: u64 = 12;
const NUMBERS_MAX: usize = 8;
/// The most chunks of one message that are named.
const CHUNKS_LISTED_MAX: usize = 4;

const TEXT_COLOR: &str = "#1f2630";
const GRID_COLOR: &str = "#aab2bd";
const LANE_0_COLOR: &str = "#2563c9";
const LANE_1_COLOR: &str = "#c2570c";
const WINDOW_COLOR: &str = "#15803d";
const FAULT_COLOR: &str = "#c81e1e";
