//! Tables of a plan: the walk down the decision tree, and the meshes.

use crate::cost::ParallelConfig;
use crate::cost::format::{row_of, size, table, time};
use crate::planner::report::PlanReport;
use crate::planner::search::Candidate;
use crate::planner::tree::has_few_ranks;
use unisono_nn::error::Result;

/// Number of alternatives in a table.
const ROWS: usize = 6;

/// Returns the remedies that the tree tried, with what each rank needs.
pub(super) fn remedies(answer: &PlanReport) -> String {
    let room = answer.hardware.usable_memory();
    let rows = answer.decision.walk.iter().map(|remedy| {
        let verdict = match remedy.fits {
            true if has_few_ranks(&remedy.parallel, &answer.shape) => "fits".to_owned(),
            true => "fits, but too many data ranks for ZeRO-3".to_owned(),
            false => format!("{} too large", size(remedy.needed - room)),
        };
        let name = remedy.rule.name().to_owned();
        vec![name, mesh(&remedy.parallel), size(remedy.needed), verdict]
    });
    let rows: Vec<_> = at_once(answer, room).into_iter().chain(rows).collect();
    if rows.is_empty() {
        return String::new();
    }
    let heading = row_of(["", "mesh", "needs for one sample", &format!("room for {}", size(room))]);
    table(&std::iter::once(heading).chain(rows).collect::<Vec<_>>())
}

/// Returns the row of replicas that compute their whole part of a batch at once, if that does not
/// fit. The next row accumulates single samples.
fn at_once(answer: &PlanReport, room: f64) -> Option<Vec<String>> {
    let first = answer.decision.walk.first()?;
    let samples = answer.recipe.as_ref().ok()?.samples / first.parallel.batch_ranks();
    let estimate = crate::cost::Estimate { parallel: first.parallel, ..answer.estimate() };
    let needed = estimate.needed(samples);
    (samples > 1 && needed > room).then(|| {
        let verdict = format!("{} too large: accumulate single samples", size(needed - room));
        vec![format!("{samples} samples at once"), mesh(&first.parallel), size(needed), verdict]
    })
}

/// Returns strategy, degrees and recomputation in words.
pub(super) fn mesh(parallel: &ParallelConfig) -> String {
    let again = if parallel.activation_checkpointing { ", recomputed" } else { "" };
    let each = if parallel.reduces_each { ", reduced each time" } else { "" };
    format!("{} {}{again}{each}", parallel.kind.name(), parallel.words())
}

/// Returns the chosen mesh and its alternatives from the fastest, with what they lose beside it.
pub(super) fn meshes(answer: &PlanReport) -> String {
    let search = &answer.search;
    let Some(chosen) = answer.chosen() else { return String::new() };
    let heading = ["", "step", "loses", "waits", "bubble", "needs", "more", "sent within", "across", "batch"];
    let mut candidates: Vec<_> = answer.ranked().take(1 + ROWS).collect();
    candidates.sort_by(|left, right| left.seconds().total_cmp(&right.seconds()));
    let rows = candidates.into_iter().map(|candidate| row(candidate, chosen));
    let rows: Vec<_> = std::iter::once(row_of(heading)).chain(rows).collect();
    format!(
        "{}\nof {} meshes {} fit{}, {} are too large{}\n{LEGEND}",
        table(&rows),
        search.considered,
        search.fitting.len() + search.indivisible + search.refused,
        match search.indivisible + search.refused {
            0 => String::new(),
            count => format!(" ({count} without equal parts of the batch or of the model)"),
        },
        search.too_large.len(),
        if search.too_large.is_empty() { "" } else { ", see below" },
    )
}

/// Meaning of the columns of the meshes.
const LEGEND: &str = "\
< is the mesh of this plan: the simplest within 5 % of the fastest. loses: step time beyond it; waits: for communication that nothing hides, or busy with it on shared cores
needs: memory with all samples of the micro-batch; more: than the mesh of this plan needs
sent within, across: bytes of a rank and step within its host, and to others; batch: micro-batch x accumulation
reduced each time: strategy.reduce_each = micro-batch, because whole gradients do not fit or are not worth their bytes";

fn row(candidate: &Candidate, chosen: &Candidate) -> Vec<String> {
    let mark = if candidate.parallel == chosen.parallel { " <" } else { "" };
    let [domain, host, across] = candidate.sent;
    vec![
        format!("{}{mark}", mesh(&candidate.parallel)),
        time(candidate.seconds()),
        format!("{:+.0} %", 100.0 * (candidate.seconds() / chosen.seconds() - 1.0)),
        time(candidate.step_time.exposed()),
        time(candidate.step_time.bubble),
        size(candidate.needed),
        signed_size(candidate.needed - chosen.needed),
        size(domain + host),
        size(across),
        format!("{} x {}", candidate.micro_batch, candidate.accumulation),
    ]
}

fn signed_size(bytes: f64) -> String {
    format!("{}{}", if bytes < 0.0 { "-" } else { "+" }, size(bytes.abs()))
}

/// Returns the smallest meshes that do not fit, and by how much.
pub(super) fn too_large(answer: &PlanReport) -> String {
    let room = answer.hardware.usable_memory();
    let rows = answer
        .search
        .too_large
        .iter()
        .take(ROWS)
        .map(|large| vec![mesh(&large.parallel), size(large.needed), signed_size(large.needed - room)]);
    let rows: Vec<_> = rows.collect();
    match rows.is_empty() {
        true => String::new(),
        false => {
            let heading = row_of(["", "needs for one sample", &format!("beyond {}", size(room))]);
            table(&std::iter::once(heading).chain(rows).collect::<Vec<_>>())
        }
    }
}

/// Measured run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measured {
    /// Most bytes of weights, gradients, optimizer state and activations of a rank.
    pub bytes: f64,
    /// Seconds of the shortest step: other programs can only add time.
    pub seconds: f64,
    /// Mean processor time of a step, divided by the number of cores. It is the time of a step that
    /// fills all cores alone.
    pub core_seconds: f64,
}

/// Returns predicted and measured numbers of the chosen mesh and its alternatives.
///
/// # Errors
/// Returns the error of a measurement.
pub(super) fn measured(
    answer: &PlanReport,
    measure: impl Fn(&Candidate) -> Result<Measured>,
) -> Result<String> {
    let heading = row_of(["", "step", "measured", "apart", "memory", "measured", "apart"]);
    let row = |candidate: &Candidate| {
        let found = measure(candidate)?;
        // Ranks that take turns fill all cores, which other programs may use too.
        let seconds = match answer.hardware.cores_per_rank < 1.0 {
            true => found.core_seconds,
            false => found.seconds,
        };
        let apart = |predicted: f64, measured: f64| format!("{:+.0} %", 100.0 * (predicted / measured - 1.0));
        Ok(vec![
            mesh(&candidate.parallel),
            time(candidate.seconds()),
            time(seconds),
            apart(candidate.seconds(), seconds),
            size(candidate.needed),
            size(found.bytes),
            apart(candidate.needed, found.bytes),
        ])
    };
    let rows = answer.ranked().take(MEASURED).map(row).collect::<Result<Vec<_>>>()?;
    Ok(table(&[vec![heading], rows].concat()))
}

/// Number of meshes to measure.
const MEASURED: usize = 10;
