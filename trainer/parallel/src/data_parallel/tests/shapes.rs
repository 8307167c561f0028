//! Tests of unusual initial states and shapes.

use super::*;

#[test]
fn replicas_start_with_weights_of_rank_0() {
    let results = run_ranks(3, |group| {
        let (inventory, memory) = (inventory(Dtype::F32), Allocator::default());
        let settings = Settings { seed: group.rank() as u64, ..small_buckets() };
        let mut strategy =
            new_strategy(ParallelKind::ALL[0], &inventory, Some(group), &settings, &memory).unwrap();
        collect_shards(&mut *strategy, &inventory)
    });
    assert!(results[1] == results[0] && results[2] == results[0]);
}

/// Returns parameters of one element, of one less and one more than the number of ranks, and of a
/// prime number.
fn uneven_inventory() -> Arc<Inventory> {
    let mut registry = Registry::default();
    for (unit, shape) in [vec![1], vec![6], vec![8], vec![101], vec![7, 7]].into_iter().enumerate() {
        registry.unit(&format!("h.{unit}"), |r| r.add(Parameter::new("weight", &shape, Init::Normal(0.5))));
    }
    Arc::new(registry.finish())
}

#[test]
fn seven_ranks_shard_uneven_parameters() {
    let run = |kind, group: Communicator| {
        let (inventory, memory, rank) = (uneven_inventory(), Allocator::default(), group.rank());
        let mut strategy = new_strategy(kind, &inventory, Some(group), &small_buckets(), &memory).unwrap();
        for number in 1..=3 {
            strategy.begin_step(&plan(&inventory, 1)).unwrap();
            run_pass(&mut *strategy, &inventory, rank, number).unwrap();
            strategy.finish_backward().unwrap();
            strategy.optimizer_step(&AdamW::default(), &Step { number, lr: 0.01, grad_scale: 1.0 }).unwrap();
        }
        strategy.begin_step(&plan(&inventory, 1)).unwrap();
        run_pass(&mut *strategy, &inventory, rank, 9).unwrap();
        strategy.finish_backward().unwrap();
        strategy.grad_norm().unwrap().to_bits()
    };
    let norms = ParallelKind::ALL.map(|kind| run_ranks(7, |group| run(kind, group)));
    assert!(norms.iter().flatten().all(|norm| *norm == norms[0][0]));
}
