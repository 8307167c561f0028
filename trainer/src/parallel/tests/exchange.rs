//! What strategies exchange: in which type, how much of it, and what comes out.

use super::*;

/// What one step of `kind` moves at rank 0 of two, and the gradients' norm; some units may be frozen.
fn step(kind: (Kind, Form), settings: &Settings, frozen: fn(&str) -> bool, micro: u64) -> (u64, f64) {
    let algorithms = unisono::algorithms("twoshot").unwrap();
    let config = Config { order: Order::Ranks, algorithms, ..Config::default() };
    let measure = |group: Communicator| {
        let (memory, rank) = (Memory::default(), group.rank());
        let mut registry = Registry::default();
        for layer in 0..4 {
            registry.unit(&format!("h.{layer}"), |r| {
                r.add(Parameter::new("weight", &[64, 60], Init::Normal(0.5)))
            });
        }
        registry.freeze(frozen);
        let inventory = Arc::new(registry.finish());
        let mut strategy = make(kind, &inventory, Some(group.clone()), settings, &memory).unwrap();
        let before = group.traffic().unwrap().bytes;
        for part in 0..micro {
            strategy.begin(part + 1 == micro).unwrap();
            pass(&mut *strategy, &inventory, rank, part).unwrap();
        }
        strategy.finish().unwrap();
        let moved = group.traffic().unwrap().bytes - before;
        (moved, strategy.norm().unwrap())
    };
    let groups = Communicator::threads_with(2, &config).unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> = groups.into_iter().map(|group| scope.spawn(|| measure(group))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).next().unwrap()
    })
}

const PARAMETERS: u64 = 4 * 64 * 60;

#[test]
fn sixteen_bits_on_the_wire_are_half_the_bytes_and_nearly_the_same_gradients() {
    for kind in [KINDS[2], KINDS[5]] {
        let of = |wire| step(kind, &Settings { wire, ..small_buckets() }, |_| false, 1);
        let ((whole, exact), (half, near)) = (of(None), of(Some(Dtype::Bf16)));
        assert_eq!(whole, 2 * half, "{kind:?}");
        // Rounded to 8 bits once before the sum and once after it: 2^-8 of each element at most.
        let error = (near / exact - 1.0).abs();
        assert!(0.0 < error && error < 1.0 / 256.0, "{kind:?}: {error}");
    }
}

#[test]
fn frozen_parameters_are_not_sent() {
    for kind in [KINDS[0], KINDS[2], KINDS[5]] {
        let of = |frozen| step(kind, &small_buckets(), frozen, 1).0;
        assert_eq!(of(|_| false), 2 * of(|name| name < "h.2"), "{kind:?}");
        assert_eq!(of(|_| true), 0, "{kind:?}");
    }
}

#[test]
fn micro_batches_are_reduced_once_or_each_as_asked() {
    for micro in [1, 4] {
        let of =
            |reduce_each| step(KINDS[5], &Settings { reduce_each, ..small_buckets() }, |_| false, micro).0;
        // A reduce_scatter between two ranks sends half of everything.
        assert_eq!(of(false), 4 * PARAMETERS / 2);
        assert_eq!(of(true), micro * 4 * PARAMETERS / 2);
    }
}

#[test]
fn three_ways_to_divide_agree() {
    for ranks in [2, 3, 5] {
        let means = [Average::InReduction, Average::After, Average::InLoss].map(|average| {
            let settings = Settings { average, ..Settings::default() };
            let memory = Memory::default();
            let factor = Mean::new(ranks, &settings, &memory).loss_factor();
            mean_of(ranks, &settings, factor)
        });
        for (index, &first) in means[0].iter().enumerate() {
            for other in &means[1..] {
                // Each of few additions may be rounded otherwise.
                let bound = f32::EPSILON * 2.0 * (ranks as f32).log2().ceil();
                assert!((other[index] - first).abs() <= bound, "{ranks} ranks: {first}, {}", other[index]);
            }
        }
    }
}

/// The mean of gradients below 1 whose loss was multiplied by `factor`, as one parameter's weights after a step of plain descent.
fn mean_of(ranks: usize, settings: &Settings, factor: f32) -> Vec<f32> {
    let measure = |group: Communicator| {
        let (memory, rank) = (Memory::default(), group.rank());
        let mut registry = Registry::default();
        registry.unit("m", |r| r.add(Parameter::new("weight", &[40], Init::Zeros)));
        let inventory = Arc::new(registry.finish());
        let mut strategy = make(KINDS[2], &inventory, Some(group), settings, &memory).unwrap();
        strategy.begin(true).unwrap();
        strategy.need(UnitId(0), Way::Backward).unwrap();
        let (_, gradient) = strategy.gradient(ParameterId(0)).unwrap();
        for (place, sum) in gradient.iter_mut().enumerate() {
            *sum = slope(0.0, rank, 1, 3 * place).clamp(-1.0, 1.0) * factor;
        }
        strategy.ready(ParameterId(0)).unwrap();
        strategy.done(UnitId(0), Way::Backward).unwrap();
        strategy.finish().unwrap();
        strategy.update(&Sgd::default(), &Step { number: 1, rate: 1.0, factor: 1.0 }).unwrap();
        strategy.weights(ParameterId(0)).to_vec()
    };
    let groups = Communicator::threads(ranks).unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> = groups.into_iter().map(|group| scope.spawn(|| measure(group))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).next().unwrap()
    })
}

#[test]
fn replicas_begin_with_the_weights_of_rank_0_whatever_their_seeds() {
    let begin = |group: Communicator| {
        let (inventory, memory) = (inventory(Dtype::F32), Memory::default());
        let settings = Settings { seed: group.rank() as u64, ..small_buckets() };
        let mut strategy = make(KINDS[2], &inventory, Some(group), &settings, &memory).unwrap();
        let mut bits = Vec::new();
        let mut keep = |kept: Kept<'_>| {
            bits.extend(kept.weights.iter().map(|weight| weight.to_bits()));
            Ok(())
        };
        strategy.visit(&mut keep).unwrap();
        bits
    };
    let groups = Communicator::threads(3).unwrap();
    let all: Vec<Vec<u32>> = std::thread::scope(|scope| {
        let threads: Vec<_> = groups.into_iter().map(|group| scope.spawn(|| begin(group))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
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
    let config = Config { order: Order::Ranks, ..Config::default() };
    let norms = KINDS.map(|kind| {
        let groups = Communicator::threads_with(7, &config).unwrap();
        std::thread::scope(|scope| {
            let threads: Vec<_> = groups.into_iter().map(|group| scope.spawn(|| run(kind, group))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<u64>>()
        })
    });
    assert!(norms.iter().flatten().all(|norm| *norm == norms[0][0]));
}
