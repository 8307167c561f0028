//! Explanation of a pipeline schedule: rows, times, activations and messages.

use crate::pipeline::{Op, Order, Payload, Schedule, StageCosts, Timeline, draw, play};
use std::path::PathBuf;
use unisono_nn::counted;
use unisono_nn::error::{Error, Result};

/// Schedule to explain.
#[derive(Clone, Debug, clap::Args)]
pub struct PipelineArgs {
    /// Order of the passes: naive, gpipe, 1f1b, interleaved, breadth-first, zb-h1 or zb-v
    #[arg(long, default_value = "1f1b")]
    schedule: String,
    /// Number of ranks of the pipeline
    #[arg(short = 'p', long, default_value_t = 4)]
    ranks: usize,
    /// Number of micro-batches per step
    #[arg(short = 'm', long, default_value_t = 8)]
    micro_batches: usize,
    /// Number of micro-sequences per micro-batch
    #[arg(long, default_value_t = 1)]
    micro_sequences: usize,
    /// Number of stages per rank [default: 2 if the order allows it, or 1]
    #[arg(long)]
    chunks: Option<usize>,
    /// Times of a rank's layers: forward, gradient of the input, gradients of the weights; then of
    /// a message, 0 if left out
    #[arg(long, value_name = "F,I,W[,T]", value_delimiter = ',', default_value = "1,1,1")]
    costs: Vec<f64>,
    /// Draw the schedule into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

impl PipelineArgs {
    /// Returns the explanation, and writes the picture.
    ///
    /// # Errors
    /// Fails for numbers that the order does not allow, and if the file cannot be written.
    pub fn explain(&self) -> Result<String> {
        let order = Order::find(&self.schedule)?;
        let chunks = self.chunks.unwrap_or_else(|| order.usual_chunks());
        let schedule = order.schedule_parts(self.ranks, self.micro_batches, self.micro_sequences, chunks)?;
        let costs = self.stage_costs(chunks)?;
        let timeline = play(&schedule, &vec![costs; schedule.stages()])?;
        if let Some(path) = &self.svg {
            let picture = draw::svg(&title(order, &schedule), &schedule, &timeline);
            std::fs::write(path, picture).map_err(|error| Error::file(path, error))?;
        }
        Ok(text(order, &schedule, &costs, &timeline))
    }

    /// Returns the costs of one of a rank's stages.
    fn stage_costs(&self, chunks: usize) -> Result<StageCosts> {
        let &[forward, backward_input, backward_weights, ref transfer @ ..] = &self.costs[..] else {
            return Err(Error::invalid("--costs takes three times, and a fourth of a message"));
        };
        let times = [forward, backward_input, backward_weights];
        if transfer.len() > 1 || !times.iter().all(|time| (1e-9..1e9).contains(time)) {
            let given = self.costs.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
            return Err(Error::invalid(format!(
                "--costs {given}: three times above 0, and one of a message"
            )));
        }
        Ok(StageCosts::new(times, chunks, transfer.first().copied().unwrap_or(0.0)))
    }
}

fn title(order: &Order, schedule: &Schedule) -> String {
    let ranks = counted(schedule.ranks, "rank");
    let parts = schedule.micro_sequences;
    let mut micro_batches = counted(schedule.micro_batches / parts, "micro-batch");
    if parts > 1 {
        micro_batches += &format!(" of {parts} micro-sequences");
    }
    let stages = counted(schedule.chunks, "stage");
    format!("{}: {ranks}, {micro_batches}, {stages} per rank", order.name)
}

fn text(order: &Order, schedule: &Schedule, costs: &StageCosts, timeline: &Timeline) -> String {
    let figures = figures(order, schedule, costs, timeline);
    let figures: String = figures.iter().map(|(name, value)| format!("{name:<18} {value}\n")).collect();
    let (title, rows, legend) =
        (title(order, schedule), draw::text(schedule, timeline), draw::legend(schedule));
    format!("{title}\n{}\nsource: {}\n\n{rows}\n{legend}\n\n{figures}", order.summary, order.source)
}

/// Returns names and values. Values of ranks stand in the order of ranks, and activations count
/// micro-batches of one stage.
fn figures(
    order: &Order,
    schedule: &Schedule,
    costs: &StageCosts,
    timeline: &Timeline,
) -> [(&'static str, String); 9] {
    let by_rank =
        |value: &dyn Fn(usize) -> String| (0..schedule.ranks).map(value).collect::<Vec<_>>().join(" ");
    let stages = |rank| {
        let stages = (0..schedule.chunks).map(|chunk| schedule.stage(rank, chunk).to_string());
        stages.collect::<Vec<_>>().join("+")
    };
    let formula = match (order.bubble)(schedule, costs).filter(|_| costs.transfer == 0.0) {
        Some(share) => format!("by formula {:.2} %", 100.0 * share),
        None => "no formula for these numbers".to_owned(),
    };
    let sent = |what: Payload, rank: usize| {
        let is_sent = |op: &&Op| matches!(op, Op::Send { what: sent, .. } if *sent == what);
        schedule.rows[rank].iter().filter(is_sent).count().to_string()
    };
    let (held, time) = (&timeline.holdings, timeline.makespan);
    let work = (1.0 - timeline.bubble()) * time;
    [
        ("stages", by_rank(&stages)),
        ("time", format!("{}, of it {} at work", rounded(time), rounded(work))),
        ("bubble", format!("{:.2} %, {formula}", 100.0 * timeline.bubble())),
        ("idle, %", by_rank(&|rank| format!("{:.1}", 100.0 * timeline.idle(rank)))),
        ("activations held", by_rank(&|rank| held.activations[rank].to_string())),
        ("published bound", by_rank(&|rank| (order.activations)(schedule, rank).to_string())),
        ("inputs waiting", by_rank(&|rank| held.received[rank].to_string())),
        ("activations sent", by_rank(&|rank| sent(Payload::Activation, rank))),
        ("gradients sent", by_rank(&|rank| sent(Payload::Gradient, rank))),
    ]
}

/// Rounds a time to hide the noise of its last digits.
fn rounded(time: f64) -> f64 {
    (time * 1e6).round() / 1e6
}
