//! Warnings about valid settings that are probably unintended.

use crate::available_memory::host_memory;
use crate::config::Config;
use crate::data::LastBatch;
use crate::train::pretrained;
use unisono_parallel::data_parallel::ParallelKind;
use unisono_parallel::data_parallel::ShardGroups;
use unisono_parallel::mesh::Mesh;
use unisono_parallel::optimizer::LrScaling;
use unisono_plan::{BatchPlan, cost};

/// Returns the warnings for a run whose ranks need `bytes` bytes each, one per line.
pub(super) fn all(config: &Config, mesh: &Mesh, batch: &BatchPlan, bytes: usize) -> String {
    let lints = [
        many_data_ranks(config, mesh),
        accumulation(config, batch),
        dropped_samples(config),
        shuffle(config),
        padding(config),
        buckets(config, mesh),
        prefetch(config),
        learning_rate(config),
        memory(mesh, bytes),
        activations(config, bytes),
    ];
    let lints = lints.into_iter().flatten().chain(config.unused_keys());
    lints.chain(pretrained::notes(config)).collect::<Vec<_>>().join("\n")
}

fn many_data_ranks(config: &Config, mesh: &Mesh) -> Option<String> {
    let (strategy, data) = (&config.strategy, mesh.data_size());
    match strategy.uses(|kind| kind == ParallelKind::Zero3) {
        true => {
            let groups = ShardGroups::new(strategy.shard_ranks, data);
            let warning = cost::many_data_ranks(groups.shards, "gathering weights")?;
            Some(warning + "; add mesh.tensor, or strategy.shard_ranks")
        }
        false => Some(cost::many_data_ranks(data, "reducing gradients")? + "; add mesh.tensor"),
    }
}

fn accumulation(config: &Config, batch: &BatchPlan) -> Option<String> {
    let times = batch.pass_count();
    let gathers = config.strategy.uses(|kind| kind == ParallelKind::Zero3);
    (gathers && times > 1).then(|| {
        format!("zero3 gathers all weights {times} times in a step: more data ranks or a larger data.micro_batch come before accumulation, and data.breadth_first = {} would gather them once", batch.accumulation)
    })
}

fn dropped_samples(config: &Config) -> Option<String> {
    let pads = config.data.last_batch == LastBatch::Pad;
    pads.then(|| {
        "data.last_batch = \"pad\" shows some samples twice in an epoch; \"drop\" shows none twice".to_owned()
    })
}

fn shuffle(config: &Config) -> Option<String> {
    (!config.data.shuffle).then(|| "data.shuffle = false: every epoch has the same order".to_owned())
}

fn padding(config: &Config) -> Option<String> {
    let (context, padding) = (config.model.context, config.sequence_padding());
    (padding > 0).then(|| {
        let positions = context + padding;
        format!(
            "model.context = {context}: ranks compute {positions} positions of each sequence, so that their parts are \
             equal; model.context = {positions} would cost the same"
        )
    })
}

fn buckets(config: &Config, mesh: &Mesh) -> Option<String> {
    let is_small = config.strategy.kind == ParallelKind::Replicated && config.strategy.bucket_mb < 1.0;
    (is_small && mesh.data_size() > 1).then(|| {
        format!(
            "strategy.bucket_mb = {}: small buckets are bound by latency; 25 is usual",
            config.strategy.bucket_mb
        )
    })
}

fn prefetch(config: &Config) -> Option<String> {
    let gathers = config.strategy.uses(|kind| kind == ParallelKind::Zero3);
    let waits = gathers && config.strategy.prefetch == 0;
    waits.then(|| "strategy.prefetch = 0: every unit waits for its weights; 1 hides it".to_owned())
}

fn learning_rate(config: &Config) -> Option<String> {
    let (batch, reference) = (config.data.global_batch, config.schedule.reference_batch);
    (batch != reference && config.schedule.lr_scale == LrScaling::None).then(|| {
        format!("optimizer.lr is as for batches of {reference} and the batch is {batch}; schedule.lr_scale = \"sqrt\" follows it")
    })
}

/// Warns if the ranks of this host would exceed its memory.
fn memory(mesh: &Mesh, bytes: usize) -> Option<String> {
    let have = host_memory()?;
    let ranks = have / bytes.max(1);
    (ranks < mesh.world_size()).then(|| {
        let need = bytes as f64 / GIB;
        format!(
            "this host has room for {ranks} such ranks of {need:.2} GiB, by {:.0} GiB of memory",
            have as f64 / GIB
        )
    })
}

/// Suggests savings of activation memory, which no strategy shards.
fn activations(config: &Config, bytes: usize) -> Option<String> {
    let large = bytes as f64 > 8.0 * GIB && !config.model.activation_checkpointing;
    large.then(|| "activations are not shared out by any strategy: model.activation_checkpointing = true, mesh.sequence_data, or a smaller data.micro_batch".to_owned())
}

const GIB: f64 = (1 << 30) as f64;
