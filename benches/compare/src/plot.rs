//! Drawings: time and bus bandwidth against size, one of each for every case.

use crate::case::Case;
use crate::data_points::{DataPoint, geometric_mean_vs, is_unisono};
use crate::rows::ROOFLINE;
use crate::unisono;
use plotters::coord::Shift;
use plotters::prelude::*;
use std::path::Path;
use unisono_bench_support::size;

/// Quantity of the vertical axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Axis {
    Time,
    Bandwidth,
}

impl Axis {
    pub(crate) const BOTH: [Self; 2] = [Self::Time, Self::Bandwidth];

    fn label(self) -> &'static str {
        match self {
            Self::Time => "time, µs",
            Self::Bandwidth => "bus bandwidth, GB/s",
        }
    }

    fn value(self, case: Case, bytes: usize, micros: f64) -> f64 {
        match self {
            Self::Time => micros,
            Self::Bandwidth => bytes as f64 / micros / 1e3 * case.collective.bus_factor(case.ranks),
        }
    }
}

/// `all_reduce-4-shm-time.svg`.
pub(crate) fn file_name(case: Case, axis: Axis) -> String {
    let kind = if axis == Axis::Time { "time" } else { "bandwidth" };
    format!("{}-{}-{}-{kind}.svg", case.collective.name(), case.ranks, case.transport.name())
}

/// A line: a name and its points.
struct Line {
    name: String,
    color: RGBColor,
    width: u32,
    dashed: bool,
    points: Vec<(f64, f64)>,
}

/// Draws one case and returns true. A single size makes no line: nothing is drawn, and the result
/// is false.
pub(crate) fn draw(folder: &Path, data: &[&DataPoint], case: Case, axis: Axis) -> Result<bool, String> {
    let lines = lines(data, case, axis);
    if data.len() < 2 || lines.is_empty() {
        return Ok(false);
    }
    let path = folder.join(file_name(case, axis));
    let area = SVGBackend::new(&path, (WIDTH, HEIGHT)).into_drawing_area();
    let (left, right) = area.split_horizontally(WIDTH - LEGEND_WIDTH);
    let drawn = chart(&left, &lines, case, axis).and_then(|()| legend(&right, &lines));
    drawn
        .and_then(|()| area.present().map_err(text))
        .map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(true)
}

fn lines(data: &[&DataPoint], case: Case, axis: Axis) -> Vec<Line> {
    let points = |micros: &dyn Fn(&DataPoint) -> Option<f64>| -> Vec<(f64, f64)> {
        let point =
            |datum: &&DataPoint| Some((datum.bytes as f64, axis.value(case, datum.bytes, micros(datum)?)));
        data.iter().filter_map(point).collect()
    };
    let line_of = |name: &str, color, width| {
        let points = points(&|datum| datum.best_of(name).map(|best| best.micros));
        Line { name: name.to_owned(), color, width, dashed: false, points }
    };
    let roofline = points(&|datum| datum.roofline);
    let roofline = Line { name: ROOFLINE.into(), color: GRAY, width: 2, dashed: true, points: roofline };
    let peers = peers(data).into_iter().map(|name| line_of(&name, color(&name), 2));
    // The thick one last: it lies on top.
    let lines = std::iter::once(roofline)
        .chain(peers)
        .chain([line_of(unisono::SYMMETRIC, ORANGE, 3), line_of(unisono::NAME, RED, 5)]);
    lines.filter(|line| !line.points.is_empty()).collect()
}

/// The peers worth a line: the nearest ones, and Gloo.
fn peers(data: &[&DataPoint]) -> Vec<String> {
    let names = crate::data_points::libraries(data);
    let mut peers: Vec<String> = names.into_iter().filter(|name| !is_unisono(name)).collect();
    let distance = |name: &String| {
        let mean = geometric_mean_vs(data.iter().copied(), 0, |datum| datum.best_of(name));
        if name == "Gloo" { 0.0 } else { mean.unwrap_or(f64::INFINITY) }
    };
    peers.sort_by(|name, other| distance(name).total_cmp(&distance(other)));
    peers.truncate(PEERS_MAX);
    peers.sort();
    peers
}

fn chart(area: &Area<'_>, lines: &[Line], case: Case, axis: Axis) -> Result<(), String> {
    area.fill(&WHITE).map_err(text)?;
    let points = || lines.iter().flat_map(|line| &line.points);
    let (x, y) = (range(points().map(|point| point.0)), range(points().map(|point| point.1)));
    let title = format!("{}, {} ranks, {}", case.collective.name(), case.ranks, case.transport.name());
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(46)
        .y_label_area_size(74)
        .build_cartesian_2d((x.0..x.1).log_scale().base(2.0), (y.0..y.1).log_scale())
        .map_err(text)?;
    chart
        .configure_mesh()
        .x_desc("size")
        .y_desc(axis.label())
        .x_label_formatter(&|&bytes| size::show(bytes.round() as usize))
        .y_label_formatter(&|&value| number(value))
        .x_labels(9)
        .label_style(("sans-serif", 14))
        .bold_line_style(BLACK.mix(0.15))
        .light_line_style(BLACK.mix(0.04))
        .draw()
        .map_err(text)?;
    for line in lines {
        let style = line.color.stroke_width(line.width);
        let points = line.points.iter().copied();
        if line.dashed {
            chart.draw_series(DashedLineSeries::new(points, 8, 5, style)).map_err(text)?;
            continue;
        }
        chart.draw_series(LineSeries::new(points.clone(), style)).map_err(text)?;
        let dots = points.map(|point| Circle::new(point, line.width + 1, line.color.filled()));
        chart.draw_series(dots).map_err(text)?;
    }
    Ok(())
}

/// Beside the chart, where it covers nothing; the most important line first.
fn legend(area: &Area<'_>, lines: &[Line]) -> Result<(), String> {
    area.fill(&WHITE).map_err(text)?;
    for (index, line) in lines.iter().rev().enumerate() {
        let y = LEGEND_TOP + index as i32 * 24;
        let dash = if line.dashed { 8 } else { 28 };
        for start in (0..28).step_by(dash as usize + 4) {
            let stroke = vec![(start, y), ((start + dash).min(28), y)];
            area.draw(&PathElement::new(stroke, line.color.stroke_width(line.width))).map_err(text)?;
        }
        let label = Text::new(line.name.clone(), (36, y - 7), ("sans-serif", 14));
        area.draw(&label).map_err(text)?;
    }
    Ok(())
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// From least to most, with some air.
fn range(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let (least, most) = (values.clone().fold(f64::INFINITY, f64::min), values.fold(0.0, f64::max));
    (least / 1.3, most * 1.3)
}

/// Without more digits than it takes: 0.0001, 0.1, 10, 1 000 000.
fn number(value: f64) -> String {
    if value >= 0.995 {
        return grouped(value.round() as u64);
    }
    // Keep one digit that is not zero.
    let places = (-value.log10()).ceil().clamp(1.0, 9.0) as usize;
    format!("{value:.places$}")
}

/// Digits in groups of three.
fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let group = |(index, digit): (usize, char)| {
        let gap = index > 0 && (digits.len() - index).is_multiple_of(3);
        gap.then_some(' ').into_iter().chain([digit])
    };
    digits.chars().enumerate().flat_map(group).collect()
}

/// Returns the color of a library, the same in every plot and distinguishable by color-blind
/// readers.
fn color(name: &str) -> RGBColor {
    match name {
        "Open MPI 5" => RGBColor(0, 114, 178),
        "Open MPI 4" => RGBColor(86, 180, 233),
        "MPICH 5" => RGBColor(0, 158, 115),
        "MPICH 4" => RGBColor(153, 153, 51),
        "Intel MPI" => RGBColor(204, 121, 167),
        "oneCCL" => RGBColor(102, 51, 153),
        _ => BLACK,
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

const RED: RGBColor = RGBColor(213, 94, 0);
const ORANGE: RGBColor = RGBColor(230, 159, 0);
const GRAY: RGBColor = RGBColor(110, 110, 110);
const WIDTH: u32 = 900;
const HEIGHT: u32 = 520;
const LEGEND_WIDTH: u32 = 170;
const LEGEND_TOP: i32 = 60;
const PEERS_MAX: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::{Collective, Transport};
    use crate::data_points::Source;
    use crate::load::Load;

    const CASE: Case =
        Case { transport: Transport::Shm, collective: Collective::AllReduce, ranks: 4, load: Load::QUIET };

    fn datum(bytes: usize, names: &[&str]) -> DataPoint {
        let who = |name: &&str| Source { library: (*name).to_owned(), setting: "defaults".to_owned() };
        let times =
            names.iter().enumerate().map(|(index, name)| (who(name), bytes as f64 * (index + 1) as f64));
        DataPoint { case: CASE, bytes, placement: None, times: times.collect(), roofline: Some(0.5) }
    }

    #[test]
    fn labels_are_short() {
        for (value, label) in
            [(1e-5, "0.00001"), (0.1, "0.1"), (1.0, "1"), (100.0, "100"), (1e6, "1 000 000")]
        {
            assert_eq!(number(value), label);
        }
    }

    #[test]
    fn bus_bandwidth_is_that_of_nccl_tests() {
        let bandwidth = Axis::Bandwidth.value(CASE, 1 << 20, 1000.0);
        assert!((bandwidth - 1.048_576 * 1.5).abs() < 1e-9, "{bandwidth}");
    }

    #[test]
    fn plot_has_at_most_eight_lines_with_gloo() {
        let names = ["unisono", "a", "b", "c", "d", "e", "f", "g", "unisono symmetric", "Gloo"];
        let data = [datum(8, &names), datum(64, &names)];
        let lines = lines(&data.each_ref(), CASE, Axis::Time);
        let names: Vec<&str> = lines.iter().map(|line| line.name.as_str()).collect();
        assert_eq!(names, ["roofline", "Gloo", "a", "b", "c", "d", "unisono symmetric", "unisono"]);
    }

    #[test]
    fn a_drawing_names_every_line_and_its_axes() {
        let folder = std::env::temp_dir().join(format!("unisono-plot-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let data = [datum(8, &["unisono", "Gloo"]), datum(1 << 20, &["unisono", "Gloo"])];
        for axis in Axis::BOTH {
            assert_eq!(draw(&folder, &data.each_ref(), CASE, axis), Ok(true));
            let svg = std::fs::read_to_string(folder.join(file_name(CASE, axis))).expect("written");
            for word in ["unisono", "Gloo", "roofline", axis.label(), "all_reduce, 4 ranks, shm", "KiB"] {
                assert!(svg.contains(word), "{word} is not in the drawing");
            }
        }
        assert_eq!(draw(&folder, &[&data[0]], CASE, Axis::Time), Ok(false));
        std::fs::remove_dir_all(folder).expect("removed");
    }
}
