//! Warns of ranks whose processors can round matrix products differently.

use super::setup;
use crate::config::{Config, DeviceKind, Model, OptimizerKind};
use unisono::Communicator;
use unisono_nn::error::Result;
use unisono_nn::ops::InstructionSets;
use unisono_parallel::data_parallel::ShardGroups;
use unisono_parallel::mesh::Mesh;

/// Logs a warning on rank 0 if ranks compute matrix products with different instruction sets.
/// `sets` are those of this rank. All ranks must call this.
pub(super) fn warn_of_differences(
    world: &Communicator,
    config: &Config,
    mesh: &Mesh,
    sets: InstructionSets,
) -> Result<()> {
    // All ranks have the same configuration, so that either all exchange their sets or none.
    if config.device != DeviceKind::Cpu && setup::host_only_option(config).is_none() {
        return Ok(());
    }
    if let Some(warning) = difference_warning(world, config, mesh, sets)? {
        tracing::warn!("{warning}");
    }
    Ok(())
}

/// Returns the warning on rank 0, and `None` on the other ranks.
fn difference_warning(
    world: &Communicator,
    config: &Config,
    mesh: &Mesh,
    sets: InstructionSets,
) -> Result<Option<String>> {
    let mut numbers = vec![0; 3 * world.size()];
    world.all_gather(&sets.to_numbers(), &mut numbers)?;
    let sets_of_ranks: Vec<InstructionSets> =
        numbers.as_chunks::<3>().0.iter().map(|&of_rank| InstructionSets::from_numbers(of_rank)).collect();
    // Reductions and all other operations give the same bits with every instruction set.
    let is_equal = sets_of_ranks.iter().all(|other| other.products == sets.products);
    if world.rank() > 0 || is_equal {
        return Ok(None);
    }
    let places = places(&sets_of_ranks);
    let meaning = consequences(config, mesh).join("; ");
    Ok(Some(format!("processors differ, and can round matrix products differently: {places}; {meaning}")))
}

/// Returns each combination of instruction sets with the ranks that have it.
fn places(sets_of_ranks: &[InstructionSets]) -> String {
    let mut groups = Vec::<(InstructionSets, Vec<usize>)>::new();
    for (rank, &sets) in sets_of_ranks.iter().enumerate() {
        match groups.iter_mut().find(|(known, _)| *known == sets) {
            Some((_, ranks)) => ranks.push(rank),
            None => groups.push((sets, vec![rank])),
        }
    }
    let texts = groups.iter().map(|(sets, ranks)| format!("{sets} on {}", listed(ranks)));
    texts.collect::<Vec<_>>().join("; ")
}

/// Formats ascending ranks, with the ends of consecutive ones.
fn listed(ranks: &[usize]) -> String {
    let range = |run: &[usize]| match run {
        [first, .., last] => format!("{first}-{last}"),
        single => single.iter().map(usize::to_string).collect(),
    };
    let ranges: Vec<String> = ranks.chunk_by(|rank, next| rank + 1 == *next).map(range).collect();
    let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{noun} {}", ranges.join(", "))
}

/// Returns what follows for a run from products that ranks round differently.
fn consequences(config: &Config, mesh: &Mesh) -> Vec<&'static str> {
    let has_routers = config.experts.count > 0 && config.mesh.tensor > 1;
    let is_muon = config.optimizer.kind == OptimizerKind::Muon;
    let mut found = Vec::new();
    if is_muon && replicates_state(config, mesh) {
        found.push(
            "data ranks take the steps of Muon each for itself, so that their weights can differ in the last \
             bits: log.check_replicas_every finds that, and strategy.kind=zero1 sends the weights of one rank \
             to the others, without strategy.shard_ranks and strategy.replicate_below",
        );
    }
    if is_muon && repeats_heads(config) {
        found.push(
            "tensor parallel ranks take Muon's steps of repeated heads of keys and values each for itself, so \
             that these can differ in the last bits: log.check_replicas_every finds that, and mesh.tensor up \
             to model.kv_heads repeats none",
        );
    }
    if is_muon && has_routers {
        found.push(
            "tensor parallel ranks take Muon's steps of routers each for itself, so that routers can differ \
             in the last bits: log.check_replicas_every finds that",
        );
    }
    if has_routers {
        found.push(
            "tensor parallel ranks can choose different experts for a token with nearly equal scores, so give \
             them equal processors",
        );
    }
    if found.is_empty() {
        found.push(
            "no rank repeats products of another one in this run, so that replicas should stay equal: \
             log.check_replicas_every compares them",
        );
    }
    found
}

/// Returns true if several data ranks keep the state of the same weights. Every group that divides
/// state has all of it, and small parameters may be on all ranks.
fn replicates_state(config: &Config, mesh: &Mesh) -> bool {
    let (strategy, ranks) = (&config.strategy, mesh.data_size());
    let is_whole = strategy.uses(|kind| !kind.shards_state()) || strategy.replicate_below > 0;
    ranks > 1 && (is_whole || ShardGroups::new(strategy.shard_ranks, ranks).groups > 1)
}

/// Returns true if there are more tensor parallel ranks than heads of keys and values.
fn repeats_heads(config: &Config) -> bool {
    let Model { heads, kv_heads, .. } = config.model;
    (1..heads).contains(&kv_heads) && config.mesh.tensor > kv_heads
}

#[cfg(test)]
mod tests {
    use super::*;
    use unisono_nn::testing::run_ranks;

    const NEW: InstructionSets =
        InstructionSets { products: "AVX-512", reductions: "AVX-512", others: "AVX-512" };
    const OLD: InstructionSets = InstructionSets { products: "AVX2", reductions: "AVX2", others: "AVX2" };

    /// Returns the warning on each rank of a job with this configuration and these sets.
    fn warnings(changes: &[&str], sets: &[InstructionSets]) -> Vec<Option<String>> {
        let changes: Vec<String> = changes.iter().map(|&change| change.to_owned()).collect();
        let config = Config::load(None, &changes).unwrap();
        let mesh = Mesh::new(sets.len(), config.mesh).unwrap();
        run_ranks(sets.len(), |world| difference_warning(&world, &config, &mesh, sets[world.rank()]).unwrap())
    }

    #[test]
    fn rank_0_warns_of_processors_that_differ() {
        let found = warnings(&[], &[NEW, OLD, OLD, NEW, OLD, NEW]);
        let expected = "processors differ, and can round matrix products differently: \
            f32 products AVX-512, reductions AVX-512, other kernels AVX-512 on ranks 0, 3, 5; \
            f32 products AVX2, reductions AVX2, other kernels AVX2 on ranks 1-2, 4; \
            no rank repeats products of another one in this run, so that replicas should stay equal: \
            log.check_replicas_every compares them";
        assert_eq!(found[0].as_deref(), Some(expected));
        assert!(found[1..].iter().all(Option::is_none), "{found:?}");
    }

    #[test]
    fn equal_products_need_no_warning() {
        let reduced = InstructionSets { reductions: "AVX2", ..NEW };
        for other in [NEW, reduced] {
            let found = warnings(&["optimizer.kind=muon"], &[NEW, other]);
            assert!(found.iter().all(Option::is_none), "{found:?}");
        }
    }

    #[test]
    fn warning_names_what_ranks_repeat() {
        let text = |changes: &[&str], ranks: usize| {
            let sets: Vec<_> = (0..ranks).map(|rank| if rank == 0 { NEW } else { OLD }).collect();
            warnings(changes, &sets).swap_remove(0).unwrap()
        };
        let muon = text(&["optimizer.kind=muon"], 2);
        assert!(muon.contains("on rank 0; ") && muon.contains("on rank 1; data ranks take"), "{muon}");
        assert!(muon.contains("log.check_replicas_every finds that, and strategy.kind=zero1"), "{muon}");
        let sharded = text(&["optimizer.kind=muon", "strategy.kind=zero1"], 2);
        assert!(sharded.contains("no rank repeats products"), "{sharded}");
        for copies in ["strategy.shard_ranks=2", "strategy.replicate_below=100"] {
            let copied = text(&["optimizer.kind=muon", "strategy.kind=zero3", copies], 4);
            assert!(copied.contains("data ranks take the steps of Muon"), "{copies}: {copied}");
        }
        let grouped = ["optimizer.kind=muon", "strategy.kind=zero1", "strategy.shard_ranks=2"];
        let one_group = text(&grouped, 2);
        assert!(one_group.contains("no rank repeats products"), "{one_group}");
        let heads = ["optimizer.kind=muon", "mesh.tensor=4", "model.heads=4", "model.kv_heads=2"];
        let repeated = text(&heads, 4);
        assert!(repeated.contains("Muon's steps of repeated heads"), "{repeated}");
        assert!(!repeated.contains("data ranks take"), "{repeated}");
        let routers = text(&["experts.count=4", "mesh.tensor=2"], 2);
        assert!(routers.contains("different experts") && !routers.contains("Muon"), "{routers}");
    }
}
