//! Predicted times beside measured ones, over links slow enough for other programs on the machine not to matter.

#[path = "support/slow.rs"]
mod slow;

use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};
use unisono::{Communicator, Config};
use unisono_trainer::memory::Memory;
use unisono_trainer::optim::{Sgd, Step};
use unisono_trainer::parallel::{Form, Parallel, Replicated, Settings, Team};
use unisono_trainer::parameter::{Init, Parameter, ParameterId, Registry, UnitId};
use unisono_trainer::plan::{Link, Pace, Point, ring, sweep};
use unisono_trainer::strategy::{Strategy, Way};

/// One message for each step of the ring, whatever its size.
fn whole_messages() -> Config {
    Config { slot_bytes: 1 << 20, channels: 1, ..Config::default() }
}

/// One test at a time, so that none disturbs another.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn a_link_fitted_to_some_sizes_predicts_the_others() {
    let _alone = ALONE.lock();
    let groups = slow::groups(2e-3, 2.5e-7, &whole_messages()).unwrap();
    let sizes = [1, 8, 32, 64, 96, 128, 256].map(|kibibytes| kibibytes << 10);
    let points = sweep(groups, &sizes).unwrap();
    let of = |sizes: &[usize]| -> Vec<Point> {
        points.iter().copied().filter(|point| sizes.contains(&(point.bytes as usize))).collect()
    };
    let link = Link::fit(ring(), 2, &of(&[1 << 10, 8 << 10, 32 << 10, 256 << 10])).unwrap();
    let error = link.error(ring(), 2, &of(&[64 << 10, 96 << 10, 128 << 10]));
    assert!(error < 0.15, "{error} with {link:?} of {points:?}");
}

/// Buckets, of one parameter each.
const BUCKETS: usize = 25;
const COUNT: usize = 1 << 10;

/// Seconds of one step of a rank that sleeps where others compute.
fn step(group: Communicator, form: Form, pace: &Pace) -> f64 {
    let (mut registry, memory) = (Registry::default(), Memory::default());
    for unit in 0..BUCKETS {
        registry.unit(&format!("u{unit}"), |r| r.add(Parameter::new("weight", &[COUNT], Init::Zeros)));
    }
    let inventory = Arc::new(registry.finish());
    let settings = Settings { form, bucket_bytes: 4 * COUNT, ..Settings::default() };
    let mut strategy =
        Replicated::new(&inventory, Team::of_data(Some(group.clone())), &settings, &memory).unwrap();
    group.barrier().unwrap();
    let start = Instant::now();
    let compute_until =
        |seconds: f64| sleep(Duration::from_secs_f64(seconds).saturating_sub(start.elapsed()));
    strategy.begin(true).unwrap();
    for unit in (0..BUCKETS).rev() {
        let behind = (BUCKETS - unit) as f64 / BUCKETS as f64;
        compute_until(pace.forward + behind * pace.backward);
        strategy.need(UnitId(unit), Way::Backward).unwrap();
        let (_, gradient) = strategy.gradient(ParameterId(unit)).unwrap();
        gradient.fill(1.0);
        strategy.ready(ParameterId(unit)).unwrap();
        strategy.done(UnitId(unit), Way::Backward).unwrap();
    }
    strategy.finish().unwrap();
    compute_until(start.elapsed().as_secs_f64() + pace.optimiser);
    let seconds = start.elapsed().as_secs_f64();
    strategy.update(&Sgd::default(), &Step { number: 1, rate: 0.0, factor: 1.0 }).unwrap();
    seconds
}

/// Seconds of the first of some steps that takes no longer than `most`, or of the shortest: what else runs here only makes them
/// longer. Each is the longer of two ranks'.
fn seconds(form: Form, pace: &Pace, link: &Link, most: f64) -> f64 {
    let mut shortest = f64::INFINITY;
    for _ in 0..8 {
        let groups = slow::groups(link.alpha, 1.0 / link.beta, &whole_messages()).unwrap();
        let longer = std::thread::scope(|scope| {
            let rank = |group| scope.spawn(move || step(group, form, pace));
            let ranks: Vec<_> = groups.into_iter().map(rank).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).fold(0.0, f64::max)
        });
        shortest = longer.min(shortest);
        if shortest <= most {
            break;
        }
    }
    shortest
}

#[test]
fn a_step_takes_as_long_as_computing_and_what_does_not_hide_behind_it() {
    let _alone = ALONE.lock();
    let link = Link { alpha: 1e-3, beta: 1e6 };
    let communication = BUCKETS as f64 * link.collective(ring(), 2, (4 * COUNT) as f64);
    let pace = Pace { forward: 0.15, backward: 0.35, communication, optimiser: 0.1 };
    assert!((0.1..0.2).contains(&communication), "{communication}");
    let most = 1.05 * pace.overlapped();
    let overlapped = seconds(Form::Bucketed, &pace, &link, most);
    assert!(overlapped <= most, "{overlapped}, not {}", pace.overlapped());
    let naive = seconds(Form::Naive, &pace, &link, 1.15 * pace.naive());
    assert!((naive / pace.naive() - 1.0).abs() < 0.15, "{naive}, not {}", pace.naive());
    assert!(overlapped < naive);
}
