//! Plot of a run: losses above, learning rate below.

use super::StepRecord;
use plotters::coord::Shift;
use plotters::prelude::*;
use std::path::Path;
use unisono_nn::error::{Error, Result};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Points = Vec<(f64, f64)>;

/// Curve of the plot: its name, color and axis.
struct Series {
    name: &'static str,
    color: RGBColor,
    points: Points,
}

/// Draws the steps to a file.
pub(super) fn draw(path: &Path, records: &[StepRecord]) -> Result<()> {
    let area = SVGBackend::new(path, (WIDTH, HEIGHT)).into_drawing_area();
    let drawn = area.fill(&WHITE).map_err(|error| error.to_string()).and_then(|()| {
        let (upper, lower) = area.split_vertically(HEIGHT * 7 / 10);
        chart(&upper, "loss", &losses(records))?;
        chart(&lower, "learning rate", &[rates(records)])?;
        area.present().map_err(|error| error.to_string())
    });
    drawn.map_err(|error| Error::file(path, error))
}

fn losses(records: &[StepRecord]) -> Vec<Series> {
    let training = downsample(records.iter().map(|record| (record.step as f64, record.loss)).collect());
    let validation = records.iter().filter_map(|record| Some((record.step as f64, record.validation?)));
    let training = Series { name: "training", color: BLUE, points: training };
    let validation = Series { name: "held back", color: ORANGE, points: validation.collect() };
    [training, validation].into_iter().filter(|line| !line.points.is_empty()).collect()
}

fn rates(records: &[StepRecord]) -> Series {
    let points = records.iter().map(|record| (record.step as f64, record.lr)).collect();
    Series { name: "learning rate", color: GRAY, points: downsample(points) }
}

/// Reduces the number of points to the resolution of the plot, by the mean of neighbors.
fn downsample(points: Points) -> Points {
    let each = points.len().div_ceil(MAX_POINTS).max(1);
    let mean = |piece: &[(f64, f64)]| {
        let (x, y) = piece.iter().fold((0.0, 0.0), |sum, point| (sum.0 + point.0, sum.1 + point.1));
        (x / piece.len() as f64, y / piece.len() as f64)
    };
    points.chunks(each).map(mean).collect()
}

fn chart(area: &Area<'_>, title: &str, lines: &[Series]) -> std::result::Result<(), String> {
    let points = || lines.iter().flat_map(|line| &line.points);
    let (steps, values) = (range(points().map(|point| point.0)), range(points().map(|point| point.1)));
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(70)
        .build_cartesian_2d(steps.0..steps.1, values.0..values.1)
        .map_err(text)?;
    let mut mesh = chart.configure_mesh();
    mesh.x_desc("step").y_desc(title).label_style(("sans-serif", 14));
    mesh.x_label_formatter(&|step| format!("{step:.0}")).y_label_formatter(&|value| number(*value));
    mesh.bold_line_style(BLACK.mix(0.15)).light_line_style(BLACK.mix(0.04)).draw().map_err(text)?;
    for line in lines {
        let style = line.color.stroke_width(2);
        let color = line.color;
        let series = chart.draw_series(LineSeries::new(line.points.iter().copied(), style)).map_err(text)?;
        series
            .label(line.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], color.stroke_width(2)));
    }
    if lines.len() > 1 {
        chart
            .configure_series_labels()
            .label_font(("sans-serif", 14))
            .border_style(BLACK.mix(0.3))
            .draw()
            .map_err(text)?;
    }
    Ok(())
}

/// Returns the range of the values, with a margin.
fn range(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let (least, most) =
        (values.clone().fold(f64::INFINITY, f64::min), values.fold(f64::NEG_INFINITY, f64::max));
    match least <= most {
        true => {
            let air = ((most - least) / 20.0).max(most.abs() / 100.0).max(1e-9);
            (least - air, most + air)
        }
        false => (0.0, 1.0),
    }
}

fn number(value: f64) -> String {
    if value != 0.0 && value.abs() < 0.01 { format!("{value:.1e}") } else { format!("{value:.2}") }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

const BLUE: RGBColor = RGBColor(0, 114, 178);
const ORANGE: RGBColor = RGBColor(213, 94, 0);
const GRAY: RGBColor = RGBColor(110, 110, 110);
const WIDTH: u32 = 900;
const HEIGHT: u32 = 620;
const MAX_POINTS: usize = 1500;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plot_has_every_series_and_axis() {
        let folder = tempfile::tempdir().unwrap();
        let record = |step: u64| StepRecord {
            step,
            loss: 5.0 / step as f64,
            validation: step.is_multiple_of(10).then_some(3.0),
            perplexity: None,
            lr: 1e-3,
            ..StepRecord::default()
        };
        let path = folder.path().join("run.svg");
        draw(&path, &(1..50).map(record).collect::<Vec<_>>()).unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        for word in ["training", "held back", "learning rate", "step", "loss"] {
            assert!(svg.contains(word), "{word} is not in the drawing");
        }
        draw(&path, &[]).unwrap();
        draw(&path, &[record(1)]).unwrap();
    }

    #[test]
    fn long_runs_are_downsampled_by_means() {
        let points: Points = (0..6000).map(|step| (f64::from(step), f64::from(step % 2))).collect();
        let thinned = downsample(points);
        assert_eq!(thinned.len(), MAX_POINTS);
        assert!(thinned.iter().all(|point| point.1 == 0.5));
    }
}
