//! Beginnings and shapes that are out of the ordinary.

use super::*;

#[test]
fn replicas_begin_with_the_weights_of_rank_0_whatever_their_seeds() {
    let all = on(3, |group| {
        let (inventory, memory) = (inventory(Dtype::F32), Memory::default());
        let settings = Settings { seed: group.rank() as u64, ..small_buckets() };
        let mut strategy = make(KINDS[2], &inventory, Some(group), &settings, &memory).unwrap();
        kept(&mut *strategy, &inventory)
    });
    assert!(all[1] == all[0] && all[2] == all[0]);
}

/// Parameters of one element, of one less and one more than there are ranks, and of a prime number.
fn awkward_inventory() -> Arc<Inventory> {
    let mut registry = Registry::default();
    for (unit, shape) in [vec![1], vec![6], vec![8], vec![101], vec![7, 7]].into_iter().enumerate() {
        registry.unit(&format!("h.{unit}"), |r| r.add(Parameter::new("weight", &shape, Init::Normal(0.5))));
    }
    Arc::new(registry.finish())
}

#[test]
fn seven_ranks_share_what_cannot_be_cut_evenly() {
    let run = |kind, group: Communicator| {
        let (inventory, memory, rank) = (awkward_inventory(), Memory::default(), group.rank());
        let mut strategy = make(kind, &inventory, Some(group), &small_buckets(), &memory).unwrap();
        for number in 1..=3 {
            strategy.begin(true).unwrap();
            pass(&mut *strategy, &inventory, rank, number).unwrap();
            strategy.finish().unwrap();
            strategy.update(&AdamW::default(), &Step { number, rate: 0.01, factor: 1.0 }).unwrap();
        }
        strategy.begin(true).unwrap();
        pass(&mut *strategy, &inventory, rank, 9).unwrap();
        strategy.finish().unwrap();
        strategy.norm().unwrap().to_bits()
    };
    let norms = KINDS.map(|kind| on(7, |group| run(kind, group)));
    assert!(norms.iter().flatten().all(|norm| *norm == norms[0][0]));
}
