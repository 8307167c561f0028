//! What is likely to go wrong, before it does.

use super::answer::Row;
use super::hardware::Hardware;
use super::recipe::Recipe;
use super::sizes::{Bytes, Sizes};
use super::state::Cut;
use super::table::size;
use crate::config::{Config, StrategyKind};
use crate::error::Result;
use crate::mesh::Mesh;
use crate::train::DATA_RANKS_MAX;

/// Warnings about a plan, a line each.
pub(super) fn list(
    sizes: &Sizes,
    bytes: &Bytes,
    hardware: &Hardware,
    cut: &Cut,
    recipe: Option<&Recipe>,
    row: Option<&Row>,
) -> Vec<String> {
    let all = [
        layer(sizes, bytes, hardware, cut),
        activations(sizes, hardware, cut),
        many(cut),
        accumulated(cut, recipe),
        slow(row),
    ];
    all.into_iter().flatten().collect()
}

/// Sharding keeps parts of layers, and computes with whole ones.
fn layer(sizes: &Sizes, bytes: &Bytes, hardware: &Hardware, cut: &Cut) -> Option<String> {
    let (layer, room) = (cut.largest_layer(sizes, bytes), hardware.room());
    (3.0 * layer > room / 2.0).then(|| {
        format!(
            "three whole layers of {} take more than half of {}: cut layers (tensor)",
            size(layer),
            size(room)
        )
    })
}

fn activations(sizes: &Sizes, hardware: &Hardware, cut: &Cut) -> Option<String> {
    let of_sample = cut.activations(sizes);
    (of_sample > hardware.room() / 2.0 && !sizes.checkpointing).then(|| {
        format!("a sample's activations, {}, are most of the memory, and data ranks do not share them: --checkpointing", size(of_sample))
    })
}

fn many(cut: &Cut) -> Option<String> {
    (cut.data > DATA_RANKS_MAX).then(|| {
        format!("{} data ranks: beyond {DATA_RANKS_MAX}, latency is seldom hidden behind computing", cut.data)
    })
}

/// Shares of gradients are all that is kept only once they are reduced.
fn accumulated(cut: &Cut, recipe: Option<&Recipe>) -> Option<String> {
    let times = recipe?.accumulation;
    let reduces = matches!(cut.kind, StrategyKind::Zero2 | StrategyKind::Zero3);
    (reduces && times > 1).then(|| {
        format!("accumulation {times}: whole gradients are kept until the last micro-batch, or reduced for each of them")
    })
}

fn slow(row: Option<&Row>) -> Option<String> {
    let share = row?.pace.utilisation();
    (share < 0.5).then(|| {
        format!("ranks compute {:.0} % of the time and wait for the network for the rest: more samples a rank, fewer data ranks, larger buckets or a faster link", 100.0 * share)
    })
}

/// Warnings about a configured run on this hardware, beside what the plan is.
pub(super) fn configured(config: &Config, hardware: &Hardware, plan: &Cut) -> Result<Vec<String>> {
    let mesh = Mesh::new(hardware.ranks, config.mesh)?;
    let crosses = mesh.fits_hosts_of(hardware.per_host).err().map(|error| error.to_string());
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
