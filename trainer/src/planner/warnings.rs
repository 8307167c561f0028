//! Warnings about likely problems of a plan.

use crate::config::{Config, StrategyKind};
use crate::error::Result;
use crate::mesh::Mesh;
use crate::planner::batch_recipe::BatchRecipe;
use crate::planner::format::size;
use crate::planner::hardware::Hardware;
use crate::planner::model_dims::{BytesPerParam, ModelDims};
use crate::planner::parallel_config::ParallelConfig;
use crate::planner::report::StrategyRow;
use crate::train::MAX_USEFUL_DATA_RANKS;

/// Returns the warnings about a plan, one per line.
pub(crate) fn all(
    sizes: &ModelDims,
    bytes: &BytesPerParam,
    hardware: &Hardware,
    cut: &ParallelConfig,
    recipe: Option<&BatchRecipe>,
    row: Option<&StrategyRow>,
) -> Vec<String> {
    let all = [
        layer(sizes, bytes, hardware, cut),
        activations(sizes, hardware, cut),
        many_data_ranks(cut),
        many_accumulation_steps(cut, recipe),
        slow_link(row),
    ];
    all.into_iter().flatten().collect()
}

/// Warns about whole layers, which sharded strategies gather for computation.
fn layer(
    sizes: &ModelDims,
    bytes: &BytesPerParam,
    hardware: &Hardware,
    cut: &ParallelConfig,
) -> Option<String> {
    let (layer, room) = (cut.largest_layer_bytes(sizes, bytes), hardware.usable_memory());
    (3.0 * layer > room / 2.0).then(|| {
        format!(
            "three whole layers of {} take more than half of {}: cut layers (tensor)",
            size(layer),
            size(room)
        )
    })
}

fn activations(sizes: &ModelDims, hardware: &Hardware, cut: &ParallelConfig) -> Option<String> {
    let of_sample = cut.activations(sizes);
    (of_sample > hardware.usable_memory() / 2.0 && !cut.recomputes(sizes)).then(|| {
        format!("a sample's activations, {}, are most of the memory, and data ranks do not share them: --activation-checkpointing", size(of_sample))
    })
}

fn many_data_ranks(cut: &ParallelConfig) -> Option<String> {
    (cut.data > MAX_USEFUL_DATA_RANKS).then(|| {
        format!(
            "{} data ranks: beyond {MAX_USEFUL_DATA_RANKS}, latency is seldom hidden behind computing",
            cut.data
        )
    })
}

/// Warns about accumulation: gradients are sharded only after their reduction.
fn many_accumulation_steps(cut: &ParallelConfig, recipe: Option<&BatchRecipe>) -> Option<String> {
    let times = recipe?.accumulation;
    let reduces = matches!(cut.kind, StrategyKind::Zero2 | StrategyKind::Zero3);
    (reduces && times > 1).then(|| {
        format!("accumulation {times}: whole gradients are kept until the last micro-batch, or reduced for each of them")
    })
}

fn slow_link(row: Option<&StrategyRow>) -> Option<String> {
    let share = row?.step_time.utilization();
    (share < 0.5).then(|| {
        format!("ranks compute {:.0} % of the time and wait for the network for the rest: more samples a rank, fewer data ranks, larger buckets or a faster link", 100.0 * share)
    })
}

/// Returns warnings about a configured run on this hardware, apart from the plan.
pub(crate) fn for_config(config: &Config, hardware: &Hardware, plan: &ParallelConfig) -> Result<Vec<String>> {
    let mesh = Mesh::new(hardware.ranks, config.mesh)?;
    let crosses = mesh.check_fits_hosts(hardware.per_host).err().map(|error| error.to_string());
    let (own, tensor) = (config.strategy.kind, config.mesh.tensor);
    let others = (own != plan.kind || tensor != plan.tensor).then(|| {
        let (own, kind) = (own.name(), plan.kind.name());
        format!(
            "configured are {own} and mesh.tensor = {tensor}, planned {kind} and mesh.tensor = {}",
            plan.tensor
        )
    });
    Ok(crosses.into_iter().chain(others).collect())
}
