//! Measures the bytes that a mixture of experts sends while routing becomes skewed: `cargo run
//! --release -p unisono-trainer --example expert_skew [-- FILE.svg]`.
//!
//! Four ranks share eight experts. A bias on the scores of rank 0's experts draws more and more
//! tokens there. Bytes are those of the communicator's counters. They are checked against the rows
//! that the loads predict. With a file name, the curve is drawn there.

mod common;

use common::{Result, on_ranks};
use plotters::prelude::*;
use std::path::Path;
use unisono::Communicator;
use unisono_nn::allocator::Allocator;
use unisono_nn::modules::{LinearInit, Module, random_values};
use unisono_nn::parameter::Registry;
use unisono_nn::pass::{Pass, Seeds};
use unisono_nn::strategy::LocalStrategy;
use unisono_nn::tensor::Tensor;
use unisono_parallel::experts::{ExpertBalance, ExpertParallel, ExpertShape, Experts, MixtureOfExperts};
use unisono_parallel::tensor_parallel::TensorParallel;

const RANKS: usize = 4;
const TOKENS: usize = 512;
const FEATURES: usize = 32;
const COUNT: usize = 8;
const PER_TOKEN: usize = 2;
const HIDDEN: usize = 64;

/// Bytes of one forward and backward, for one bias.
struct Point {
    /// Share of all rows that go to the experts of rank 0.
    share: f64,
    /// Bytes that each rank sent.
    sent: Vec<u64>,
}

fn main() -> Result<()> {
    let points = (0..=8).map(|step| measure(0.015 * step as f32)).collect::<Result<Vec<_>>>()?;
    println!("share of rows at rank 0   KiB sent: rank 0   another   all   most / mean");
    for Point { share, sent } in &points {
        let (total, most) = (sent.iter().sum::<u64>() as f64, sent.iter().copied().max().unwrap_or(0) as f64);
        let kib = |bytes: f64| bytes / 1024.0;
        println!(
            "{:>23.1}%{:>19.0}{:>10.0}{:>6.0}{:>14.2}",
            100.0 * share,
            kib(sent[0] as f64),
            kib(sent[1] as f64),
            kib(total),
            most * RANKS as f64 / total
        );
    }
    match std::env::args().nth(1) {
        Some(path) => draw(Path::new(&path), &points),
        None => Ok(()),
    }
}

/// Runs the ranks with a bias on the scores of rank 0's experts.
fn measure(bias: f32) -> Result<Point> {
    let found = on_ranks(Communicator::local(RANKS)?, |group| run_rank(&group, bias))?;
    let experts_per_rank = COUNT / RANKS;
    let rows = |sender: usize, receiver: usize| {
        found[sender].1[receiver * experts_per_rank..(receiver + 1) * experts_per_rank].iter().sum::<u64>()
    };
    let others = |rank: usize| (0..RANKS).filter(move |other| *other != rank);
    for (rank, (sent, _)) in found.iter().enumerate() {
        // Rows go to experts and back in forward, and so do their gradients in backward.
        let exchanged: u64 = others(rank).map(|other| rows(rank, other) + rows(other, rank)).sum();
        let counts = ((RANKS - 1) * experts_per_rank * size_of::<u64>()) as u64;
        let expected = 2 * exchanged * (FEATURES * size_of::<f32>()) as u64 + counts;
        if *sent != expected {
            return Err(format!("rank {rank} sent {sent} bytes, and its loads say {expected}").into());
        }
    }
    let here: u64 = (0..RANKS).map(|rank| rows(rank, 0)).sum();
    let share = here as f64 / (RANKS * TOKENS * PER_TOKEN) as f64;
    Ok(Point { share, sent: found.into_iter().map(|(sent, _)| sent).collect() })
}

/// Returns the bytes that this rank sent, and the tokens of each expert.
fn run_rank(group: &Communicator, bias: f32) -> Result<(u64, Vec<u64>)> {
    let (memory, mut registry) = (Allocator::default(), Registry::default());
    let parallel = ExpertParallel::new(Some(group.clone()));
    let init = [LinearInit::fan_in(FEATURES); 2];
    let shape = ExpertShape { features: FEATURES, hidden: HIDDEN, is_gated: true, init };
    let settings =
        Experts { count: COUNT, per_token: PER_TOKEN, balance: ExpertBalance::Bias, ..Experts::default() };
    let split = TensorParallel::default();
    let (_, mixture) =
        registry.unit("m", |registry| MixtureOfExperts::new(registry, &settings, shape, &split, &parallel));
    let mut strategy = LocalStrategy::new(registry.finish(), &memory, 1);
    let id = strategy.inventory().find("m.router.bias").ok_or("a router has a bias")?;
    strategy.weights_mut(id)[..COUNT / RANKS].fill(bias);
    let mut pass = Pass::new(&mut strategy, &memory, Seeds::default(), 1);
    let values = |seed: usize| random_values((seed * RANKS + group.rank()) as u64, TOKENS * FEATURES);
    let rows = |seed| Tensor::from_slice(&memory, TOKENS, FEATURES, &values(seed));
    pass.set_sequence(TOKENS);
    let bytes_before = group.traffic_stats()?.bytes;
    mixture.forward(&mut pass, rows(0))?;
    mixture.backward(&mut pass, rows(1))?;
    let loads = pass.added_mut().take_sums().loads.into_values().next().ok_or("a mixture reports loads")?;
    Ok((group.traffic_stats()?.bytes - bytes_before, loads))
}

fn draw(path: &Path, points: &[Point]) -> Result<()> {
    let area = SVGBackend::new(path, (640, 400)).into_drawing_area();
    area.fill(&WHITE)?;
    let most = points.iter().flat_map(|point| &point.sent).copied().max().unwrap_or(1) as f64 / 1024.0;
    let mut chart = ChartBuilder::on(&area)
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(0.2..1.0, 0.0..1.1 * most)?;
    chart.configure_mesh().x_desc("share of rows at one rank").y_desc("KiB sent by a rank").draw()?;
    for (rank, name, color) in [(0, "rank with the loaded experts", RED), (1, "another rank", BLUE)] {
        let line = points.iter().map(|point| (point.share, point.sent[rank] as f64 / 1024.0));
        chart
            .draw_series(LineSeries::new(line, color.stroke_width(2)))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], color));
    }
    chart.configure_series_labels().border_style(BLACK.mix(0.3)).draw()?;
    Ok(area.present()?)
}
