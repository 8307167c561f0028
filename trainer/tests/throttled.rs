//! Compares predicted with measured times, over links so slow that other programs do not matter.

use unisono_nn::testing::slow;
use unisono_nn::testing::yardstick;

use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};
use unisono::{Communicator, Config};
use unisono_nn::allocator::Allocator;
use unisono_nn::parameter::{Init, Parameter, ParameterId, Registry, UnitId};
use unisono_nn::step_plan::{Direction, StepPlan};
use unisono_nn::strategy::Strategy;
use unisono_parallel::data_parallel::{DataParallel, ParallelKind, ProcessGroups, Settings, ShardedStrategy};
use unisono_parallel::optimizer::{Sgd, Step};
use unisono_plan::cost::{Link, Measurement, StepTime, ring};
use unisono_trainer::machine::sweep;

/// Reduces over the ring that is predicted, with one message per step for any size.
fn whole_messages() -> Config {
    let ring = unisono::parse_algorithms("ring").unwrap();
    Config::default().with_fifo_slot_bytes(1 << 20).with_channels(1).with_algorithms(ring)
}

/// Serializes the tests, so that they do not disturb each other.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn fitted_link_predicts_other_sizes() {
    let _alone = ALONE.lock();
    yardstick::assert_measured("error of a prediction", prediction_error, |error| *error < 0.15);
}

/// Returns the error of a link that is fitted to some sizes, at other sizes.
fn prediction_error() -> f64 {
    let groups = slow::groups(2e-3, 2.5e-7, &whole_messages()).unwrap();
    let sizes = [1, 8, 32, 64, 96, 128, 256].map(|kibibytes| kibibytes << 10);
    let points = sweep(groups, &sizes).unwrap();
    let measured = |sizes: &[usize]| -> Vec<Measurement> {
        points.iter().copied().filter(|point| sizes.contains(&(point.bytes as usize))).collect()
    };
    let link = Link::fit(ring(), 2, &measured(&[1 << 10, 8 << 10, 32 << 10, 256 << 10])).unwrap();
    link.error(ring(), 2, &measured(&[64 << 10, 96 << 10, 128 << 10]))
}

/// Number of buckets, with one parameter each.
const BUCKETS: usize = 25;
const COUNT: usize = 1 << 10;

/// Time of the exchange of gradients.
#[derive(Clone, Copy, PartialEq)]
enum Exchange {
    /// Each gradient is reported as soon as it is computed.
    Beside,
    /// All gradients are reported after backward.
    After,
}

/// Returns the seconds of one step of a rank that sleeps instead of computing.
fn step(group: Communicator, exchange: Exchange, pace: &StepTime) -> f64 {
    let (mut registry, memory) = (Registry::default(), Allocator::default());
    for unit in 0..BUCKETS {
        registry.unit(&format!("u{unit}"), |r| r.add(Parameter::new("weight", &[COUNT], Init::Zeros)));
    }
    let inventory = Arc::new(registry.finish());
    let settings = Settings { bucket_bytes: 4 * COUNT, ..Settings::default() };
    let mut strategy = ShardedStrategy::new(
        ParallelKind::Replicated,
        &inventory,
        ProcessGroups::data_only(Some(group.clone())),
        &settings,
        &memory,
    )
    .unwrap();
    group.barrier().unwrap();
    let start = Instant::now();
    let compute_until =
        |seconds: f64| sleep(Duration::from_secs_f64(seconds).saturating_sub(start.elapsed()));
    strategy.begin_step(&StepPlan::depth_first(BUCKETS, 1)).unwrap();
    if exchange == Exchange::After {
        compute_until(pace.forward + pace.backward);
    }
    for unit in (0..BUCKETS).rev() {
        let passed = (BUCKETS - unit) as f64 / BUCKETS as f64;
        compute_until(pace.forward + passed * pace.backward);
        strategy.pre_unit(UnitId(unit), Direction::Backward).unwrap();
        let (_, gradient) = strategy.weights_and_gradient(ParameterId(unit)).unwrap();
        gradient.fill(1.0);
        strategy.grad_ready(ParameterId(unit)).unwrap();
        strategy.post_unit(UnitId(unit), Direction::Backward).unwrap();
    }
    strategy.finish_backward().unwrap();
    compute_until(start.elapsed().as_secs_f64() + pace.optimizer);
    let seconds = start.elapsed().as_secs_f64();
    strategy.optimizer_step(&Sgd::default(), &Step { number: 1, lr: 0.0, grad_scale: 1.0 }).unwrap();
    seconds
}

/// Returns the seconds of the first step that takes at most `most`, or of the shortest: other
/// programs can only add time. Each is the longer of two ranks' times.
fn seconds(exchange: Exchange, pace: &StepTime, link: &Link, most: f64) -> f64 {
    let mut shortest = f64::INFINITY;
    for _ in 0..8 {
        let groups = slow::groups(link.alpha, 1.0 / link.beta, &whole_messages()).unwrap();
        let longer = std::thread::scope(|scope| {
            let rank = |group| scope.spawn(move || step(group, exchange, pace));
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

/// Measures a step whose communication is as predicted, and compares.
fn compare(pace: &StepTime, link: &Link) {
    let measure = || {
        let overlapped = seconds(Exchange::Beside, pace, link, 1.05 * pace.overlapped());
        [overlapped, seconds(Exchange::After, pace, link, 1.15 * pace.naive())]
    };
    let is_predicted = |[overlapped, naive]: &[f64; 2]| {
        (overlapped / pace.overlapped() - 1.0).abs() <= 0.05
            && (naive / pace.naive() - 1.0).abs() < 0.15
            && overlapped < naive
    };
    let what = format!("steps predicted to take {} and {}", pace.overlapped(), pace.naive());
    yardstick::assert_measured(&what, measure, is_predicted);
}

/// Returns the times of a step whose optimizer takes 0.1 seconds.
fn pace(forward: f64, backward: f64, communication: f64) -> StepTime {
    let hidden = communication.min(backward);
    StepTime { forward, backward, communication, hidden, optimizer: 0.1, ..StepTime::default() }
}

/// Returns the seconds of the reductions of all buckets.
fn communication(link: &Link) -> f64 {
    BUCKETS as f64 * link.collective(ring(), 2, (4 * COUNT) as f64)
}

#[test]
fn step_time_is_compute_plus_exposed_communication() {
    let _alone = ALONE.lock();
    let link = Link { alpha: 1e-3, beta: 1e6 };
    let communication = communication(&link);
    let pace = pace(0.15, 0.35, communication);
    assert!((0.1..0.2).contains(&communication), "{communication}: less than backward");
    compare(&pace, &link);
}

/// The other side of the maximum: backward hides only a part of the communication.
#[test]
fn step_time_is_that_of_longer_communication() {
    let _alone = ALONE.lock();
    let link = Link { alpha: 8e-3, beta: 1e6 };
    let communication = communication(&link);
    let pace = pace(0.1, 0.15, communication);
    assert!(communication > 3.0 * pace.backward, "{communication}: more than backward");
    compare(&pace, &link);
}
