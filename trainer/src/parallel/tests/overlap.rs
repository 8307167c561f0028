//! When strategies exchange what: gradients during backward, weights ahead of their use, and never more at once than allowed.

use super::*;
use crate::flat::{Layout, Packing};
use std::time::{Duration, Instant};

/// Six units of one parameter of 960 elements each.
fn equal_units() -> Arc<Inventory> {
    let mut registry = Registry::default();
    for layer in 0..6 {
        registry
            .unit(&format!("h.{layer}"), |r| r.add(Parameter::new("weight", &[32, 30], Init::Normal(0.5))));
    }
    Arc::new(registry.finish())
}

/// Collectives that a strategy carried out by the time the last of six units had its gradient, and by the end of the step.
fn collectives(form: Form, bucket_bytes: usize) -> (u64, u64) {
    let counts = on(2, |group| {
        let (inventory, memory) = (equal_units(), Memory::default());
        let settings = Settings { bucket_bytes, ..Settings::default() };
        let kind = (Kind::Replicated, form);
        let mut strategy = make(kind, &inventory, Some(group.clone()), &settings, &memory).unwrap();
        let operations = || group.traffic().unwrap().operations;
        let before = operations();
        strategy.begin(true).unwrap();
        let unit = UnitId(5);
        strategy.need(unit, Way::Backward).unwrap();
        strategy.ready(ParameterId(5)).unwrap();
        strategy.done(unit, Way::Backward).unwrap();
        // Asking waits for what was started.
        let early = operations() - before;
        for id in (0..5).rev() {
            strategy.need(UnitId(id), Way::Backward).unwrap();
            strategy.ready(ParameterId(id)).unwrap();
            strategy.done(UnitId(id), Way::Backward).unwrap();
        }
        strategy.finish().unwrap();
        (early, operations() - before)
    });
    assert_eq!(counts[0], counts[1]);
    counts[0]
}

#[test]
fn gradients_travel_before_backward_ends_one_collective_for_each_bucket() {
    assert_eq!(collectives(Form::Naive, 0), (0, 6));
    assert_eq!(collectives(Form::Overlapped, 0), (1, 6));
    let two_parameters = 2 * 4 * 960;
    assert_eq!(collectives(Form::Bucketed, two_parameters), (0, 3));
    assert_eq!(collectives(Form::Bucketed, 1 << 20), (0, 1));
}

/// Whole units of weights that a rank holds while it uses each unit in turn, forward and backward, besides its share.
fn units_held(settings: &Settings, is_slow: impl Fn(usize) -> bool + Sync) -> [Vec<usize>; 2] {
    let held = on(2, |group| {
        let (inventory, memory, rank) = (equal_units(), Memory::default(), group.rank());
        let mut strategy =
            make((Kind::Zero3, Form::Bucketed), &inventory, Some(group), settings, &memory).unwrap();
        let share = memory.usage(Class::Weights).now;
        strategy.begin(true).unwrap();
        let mut visit = |unit: usize, way| {
            if is_slow(rank) {
                std::thread::sleep(Duration::from_millis(10));
            }
            strategy.need(UnitId(unit), way).unwrap();
            let held = (memory.usage(Class::Weights).now - share) / (4 * 960);
            if way == Way::Backward {
                strategy.ready(ParameterId(unit)).unwrap();
            }
            strategy.done(UnitId(unit), way).unwrap();
            held
        };
        let forward = (0..6).map(|unit| visit(unit, Way::Forward)).collect();
        [forward, (0..6).rev().map(|unit| visit(unit, Way::Backward)).collect()]
    });
    assert_eq!(held[0], held[1]);
    held.into_iter().next().unwrap()
}

fn ahead(prefetch: usize, gathers_max: usize) -> Settings {
    Settings { prefetch, gathers_max, ..Settings::default() }
}

#[test]
fn weights_of_the_next_units_are_under_way_while_one_is_used() {
    let held = |prefetch| units_held(&ahead(prefetch, 9), |_| false);
    // The last unit stays from forward to backward; behind it comes nothing.
    assert_eq!(held(0), [[1; 6], [1; 6]]);
    assert_eq!(held(1), [[2, 2, 2, 2, 2, 1], [2, 2, 2, 2, 2, 1]]);
    assert_eq!(held(2), [[3, 3, 3, 3, 2, 1], [3, 3, 3, 3, 2, 1]]);
}

#[test]
fn no_more_gathers_are_under_way_than_allowed_however_slow_a_rank_is() {
    for slow in [0, 1] {
        for limit in [1, 2, 3] {
            let held = units_held(&ahead(5, limit), |rank| rank == slow);
            // Forward had to gather the first one, too; backward begins with one that is there.
            assert_eq!(held.map(|way| way.into_iter().max()), [Some(limit), Some(limit + 1)]);
        }
    }
}

#[test]
fn keeping_weights_after_forward_costs_memory_and_saves_gathers() {
    let kept = Settings { reshard_after_forward: false, ..ahead(1, 2) };
    let [forward, backward] = units_held(&kept, |_| false);
    assert_eq!((forward[5], backward[0]), (6, 6));
}

/// Most bytes of gradients that a rank of ZeRO-2 held during a step.
fn most_gradients(reductions_max: usize) -> usize {
    let most = on(2, |group| {
        let (inventory, memory, rank) = (equal_units(), Memory::default(), group.rank());
        let settings = Settings { bucket_bytes: 1, reductions_max, ..Settings::default() };
        let mut strategy =
            make((Kind::Zero2, Form::Bucketed), &inventory, Some(group.clone()), &settings, &memory).unwrap();
        strategy.begin(true).unwrap();
        // Nobody reduces before all was launched that may be.
        let gate = (rank == 0).then(|| {
            group.start(|_| {
                std::thread::sleep(Duration::from_millis(30));
                Ok(())
            })
        });
        pass(&mut *strategy, &inventory, rank, 1).unwrap();
        strategy.finish().unwrap();
        gate.map_or(Ok(()), |gate| gate.wait()).unwrap();
        memory.usage(Class::Gradients).peak
    });
    most[0].max(most[1])
}

#[test]
fn each_reduction_under_way_costs_one_bucket_and_changes_no_bit() {
    let (bucket, shares) = (4 * 960, 6 * 4 * 960 / 2);
    for reductions_max in [1, 2, 3] {
        // Whole buckets under way, one being filled, and shares.
        let most = most_gradients(reductions_max);
        assert!(most <= shares + (reductions_max + 1) * bucket, "{reductions_max}: {most}");
    }
    assert!(most_gradients(1) < most_gradients(4));
    let of = |reductions_max| {
        let settings = Settings { reductions_max, ..small_buckets() };
        together(KINDS[5], 3, &settings, Dtype::F32, 1)
    };
    assert!(of(1) == of(2) && of(2) == of(3));
}

#[test]
fn a_model_starts_in_the_memory_of_its_share_and_one_unit() {
    let peaks = on(4, |group| {
        let (inventory, memory) = (equal_units(), Memory::default());
        make((Kind::Zero3, Form::Bucketed), &inventory, Some(group), &Settings::default(), &memory).unwrap();
        let layout = Layout::new(&inventory, 4, Packing::Units);
        let share: usize = layout.buckets.iter().map(|bucket| bucket.count / 4).sum();
        (memory.usage(Class::Weights).peak, 4 * share, 4 * layout.buckets[0].count)
    });
    for (peak, share, unit) in peaks {
        assert!(peak <= share + unit, "{peak} for a share of {share} and units of {unit}");
    }
}

/// How long the steps of the optimiser took the first of two ranks, and then the wait for the first weights, when the other
/// rank is that late.
fn step_beside_a_late_rank(kind: Kind, late: Duration) -> [Duration; 2] {
    let times = on(2, |group| {
        let (inventory, memory, rank) = (equal_units(), Memory::default(), group.rank());
        let settings = Settings { bucket_bytes: 1, ..Settings::default() };
        let mut strategy = make((kind, Form::Bucketed), &inventory, Some(group), &settings, &memory).unwrap();
        strategy.begin(true).unwrap();
        pass(&mut *strategy, &inventory, rank, 1).unwrap();
        strategy.finish().unwrap();
        if rank == 1 {
            std::thread::sleep(late);
        }
        let begun = Instant::now();
        strategy.update(&AdamW::default(), &Step { number: 1, rate: 0.01, factor: 1.0 }).unwrap();
        let updated = begun.elapsed();
        strategy.need(UnitId(0), Way::Forward).unwrap();
        [updated, begun.elapsed() - updated]
    });
    times[0]
}

#[test]
fn weights_travel_while_a_rank_does_something_else() {
    let late = Duration::from_millis(500);
    for kind in [Kind::Owners, Kind::Zero1, Kind::Zero2] {
        let [updated, waited] = step_beside_a_late_rank(kind, late);
        assert!(updated < late / 2 && waited > late / 2, "{kind:?}: {updated:?}, then {waited:?}");
    }
}
