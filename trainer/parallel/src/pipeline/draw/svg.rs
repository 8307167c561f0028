//! Draws a schedule in time: a lane for each rank, a box for each pass.

use super::{kinds, passes, shortest_pass};
use crate::pipeline::Schedule;
use crate::pipeline::player::{Span, Timeline};
use std::fmt::Write;

/// Draws `schedule` as an SVG file without fonts, scripts or style sheets.
pub fn svg(title: &str, schedule: &Schedule, timeline: &Timeline) -> String {
    let scale =
        (PASS_WIDTH / shortest_pass(timeline)).min(WIDTH_MAX / timeline.makespan.max(f64::MIN_POSITIVE));
    let mut body = String::new();
    for (rank, row) in timeline.rows.iter().enumerate() {
        let y = TOP + rank as f64 * LANE_HEIGHT;
        let (width, base) = (timeline.makespan * scale, y + BOX_HEIGHT / 2.0 + 4.0);
        let _ =
            writeln!(body, r#"<text class="name" x="{:.0}" y="{base:.1}">rank {rank}</text>"#, LEFT - 10.0);
        let _ = writeln!(
            body,
            r#"<rect class="lane" x="{LEFT}" y="{y:.1}" width="{width:.1}" height="{BOX_HEIGHT}"/>"#
        );
        for span in passes(row) {
            draw_pass(&mut body, schedule, span, scale, y);
        }
    }
    let legend_top = TOP + timeline.rows.len() as f64 * LANE_HEIGHT + 14.0;
    draw_legend(&mut body, schedule, legend_top);
    let subtitle = format!(
        "time {}, idle {:.1} %, from left to right; numbers are micro-batches{}",
        timeline.makespan,
        100.0 * timeline.bubble(),
        if schedule.chunks > 1 { ", paler boxes are later chunks" } else { "" }
    );
    let width = (LEFT + timeline.makespan * scale + 24.0).max(WIDTH_MIN);
    frame(width, legend_top + 20.0, title, &subtitle, &body)
}

fn draw_pass(body: &mut String, schedule: &Schedule, span: &Span, scale: f64, y: f64) {
    let Some((letter, (micro, chunk))) = span.op.letter().zip(span.op.place()) else { return };
    let (x, width) = (LEFT + span.start * scale, (span.end - span.start) * scale);
    let opacity = 1.0 - 0.4 * chunk as f64 / (schedule.chunks - 1).max(1) as f64;
    let _ = writeln!(
        body,
        r#"<rect class="{letter}" x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{BOX_HEIGHT}" fill-opacity="{opacity:.2}"><title>{}: {} to {}</title></rect>"#,
        span.op, span.start, span.end
    );
    if width >= NUMBER_WIDTH {
        let (middle, base) = (x + width / 2.0, y + BOX_HEIGHT / 2.0 + 4.0);
        let _ = writeln!(body, r#"<text class="micro" x="{middle:.1}" y="{base:.1}">{micro}</text>"#);
    }
}

fn draw_legend(body: &mut String, schedule: &Schedule, y: f64) {
    let mut x = LEFT;
    for (letter, name) in kinds(schedule) {
        let _ = writeln!(
            body,
            r#"<rect class="{letter}" x="{x:.0}" y="{:.1}" width="12" height="12"/><text x="{:.0}" y="{y:.1}">{letter} {name}</text>"#,
            y - 10.0,
            x + 17.0
        );
        x += 45.0 + 7.0 * name.len() as f64;
    }
}

fn frame(width: f64, height: f64, title: &str, subtitle: &str, body: &str) -> String {
    let colors = COLORS.map(|(letter, color)| format!(".{letter}{{fill:{color};stroke:#ffffff}}")).concat();
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {width:.0} {height:.0}\">\n<title>{title}</title>\n\
         <style>text{{font-family:system-ui,'DejaVu Sans',sans-serif;font-size:12px;fill:#1f2630}}\
         .title{{font-size:18px;font-weight:600}}.subtitle{{fill:#5b6470}}.name{{text-anchor:end}}\
         .micro{{text-anchor:middle;font-size:11px;fill:#ffffff}}.lane{{fill:#eceff3}}{colors}</style>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text class=\"title\" x=\"24\" y=\"34\">{title}</text>\n\
         <text class=\"subtitle\" x=\"24\" y=\"54\">{subtitle}</text>\n{body}</svg>\n"
    )
}

const COLORS: [(char, &str); 4] = [('F', "#2563c9"), ('B', "#15803d"), ('I', "#0f766e"), ('W', "#c2570c")];
const LEFT: f64 = 76.0;
const TOP: f64 = 72.0;
const LANE_HEIGHT: f64 = 30.0;
const BOX_HEIGHT: f64 = 24.0;
/// Width of the shortest pass.
const PASS_WIDTH: f64 = 24.0;
/// Least width of a box that shows its micro-batch.
const NUMBER_WIDTH: f64 = 14.0;
const WIDTH_MIN: f64 = 640.0;
/// Most width of all passes.
const WIDTH_MAX: f64 = 12000.0;
