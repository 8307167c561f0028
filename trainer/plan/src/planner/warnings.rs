//! Warnings about likely problems of a plan.

use crate::cost::format::size;
use crate::cost::{Estimate, Hardware, ParallelConfig, StepTime, many_data_ranks};
use crate::planner::batch_recipe::{BatchRecipe, scaled_rates};
use crate::planner::report::StrategyRow;
use unisono_parallel::data_parallel::ParallelKind;
use unisono_parallel::mesh::{Degrees, Mesh};

/// Returns the warnings about a plan, one per line.
pub(crate) fn all(
    estimate: &Estimate<'_>,
    recipe: Option<&BatchRecipe>,
    row: Option<&StrategyRow>,
    bucket: f64,
) -> Vec<String> {
    let warnings = [
        units(estimate),
        activations(estimate),
        many_data_ranks(estimate.parallel.data, "latency"),
        many_accumulation_steps(&estimate.parallel, recipe),
        slow_link(estimate, recipe, row, bucket),
    ];
    warnings.into_iter().flatten().collect()
}

/// Warns about whole units, which sharded strategies gather for computation.
fn units(estimate: &Estimate<'_>) -> Option<String> {
    let (unit, room) = (estimate.largest_unit(), estimate.hardware.usable_memory());
    (3.0 * unit > room / 2.0).then(|| {
        format!(
            "three whole layers of {} take more than half of {}: cut layers (tensor)",
            size(unit),
            size(room)
        )
    })
}

fn activations(estimate: &Estimate<'_>) -> Option<String> {
    let of_sample = estimate.activations();
    (of_sample > estimate.hardware.usable_memory() / 2.0 && !estimate.recomputes()).then(|| {
        format!("a sample's activations, {}, are most of the memory, and data ranks do not share them: --activation-checkpointing", size(of_sample))
    })
}

/// Warns that accumulation keeps whole gradients, which are sharded only after their reduction, or
/// that it reduces them several times.
fn many_accumulation_steps(cut: &ParallelConfig, recipe: Option<&BatchRecipe>) -> Option<String> {
    let times = recipe?.accumulation;
    let reduces = matches!(cut.kind, ParallelKind::Zero2 | ParallelKind::Zero3);
    (reduces && times > 1).then(|| match cut.reduces_each {
        true => format!(
            "accumulation {times}: gradients are reduced {times} times, so that no rank keeps whole ones"
        ),
        false => {
            format!("accumulation {times}: whole gradients are kept until the last micro-batch, and count")
        }
    })
}

/// Warns about ranks that mostly wait for links, and says what more accumulation would do.
fn slow_link(
    estimate: &Estimate<'_>,
    recipe: Option<&BatchRecipe>,
    row: Option<&StrategyRow>,
    bucket: f64,
) -> Option<String> {
    let step = row?.step_time;
    let share = step.utilization();
    (share < BUSY).then(|| {
        if 2.0 * step.on_cores > step.exposed() {
            return format!(
                "ranks compute {:.0} % of the time, and exchanges take cores that ranks share: larger micro-batches or fewer ranks",
                100.0 * share
            );
        }
        let more = recipe.and_then(|recipe| more_accumulation(estimate, recipe, share, bucket));
        format!(
            "ranks compute {:.0} % of the time and wait for the network for the rest: {}more samples a rank, fewer data ranks, larger buckets or a faster link",
            100.0 * share,
            more.map_or(String::new(), |more| more + "; or ")
        )
    })
}

/// Share of a step below which ranks compute too little.
const BUSY: f64 = 0.5;

/// Returns the advice to accumulate more micro-batches between exchanges, with a higher learning
/// rate, if that helps.
fn more_accumulation(
    estimate: &Estimate<'_>,
    recipe: &BatchRecipe,
    share: f64,
    bucket: f64,
) -> Option<String> {
    let utilization = |times: usize| {
        StepTime::new(estimate, recipe.micro_batch, times * recipe.accumulation, bucket).utilization()
    };
    let options = [2, 4, 8, 16, 32].map(|times| (times, utilization(times)));
    let (times, reached) = options.into_iter().find(|(_, reached)| *reached >= BUSY).unwrap_or(options[4]);
    let [root, _] = scaled_rates(times);
    (reached > 1.2 * share).then(|| {
        format!(
            "accumulate {times} times as much ({} samples a step) and ranks compute {:.0} %, with the rate x {root:.2} for Adam (schedule.lr_scale = \"sqrt\")",
            times * recipe.samples,
            100.0 * reached
        )
    })
}

/// Returns warnings about a configured strategy and mesh on this hardware, beside the plan.
pub(crate) fn of_configured(
    kind: ParallelKind,
    degrees: Degrees,
    hardware: &Hardware,
    plan: &ParallelConfig,
) -> Vec<String> {
    let mesh = Mesh::new(hardware.ranks, degrees);
    let crosses = mesh.and_then(|mesh| mesh.check_fits_hosts(hardware.per_host));
    let crosses = crosses.err().map(|error| format!("the configured mesh: {error}"));
    let others = (kind != plan.kind || degrees.tensor != plan.tensor).then(|| {
        format!(
            "configured are {} and mesh.tensor = {}, planned {} and mesh.tensor = {}",
            kind.name(),
            degrees.tensor,
            plan.kind.name(),
            plan.tensor
        )
    });
    crosses.into_iter().chain(others).collect()
}
