//! Shares of communication that ranks wait for. Links are so slow, and ranks sleep so long instead
//! of computing, that other programs hardly matter. All numbers of a test are of one run, the best
//! of three.

use unisono_nn::testing::slow;
use unisono_nn::testing::yardstick;

use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};
use unisono::{Communicator, Config};
use unisono_nn::allocator::Allocator;
use unisono_nn::parameter::{Init, Parameter, ParameterId, Registry, UnitId};
use unisono_nn::step_plan::{Direction, StepPlan};
use unisono_parallel::data_parallel::{DataParallel, ParallelKind, ProcessGroups, Settings, new_strategy};
use unisono_parallel::optimizer::{Sgd, Step};

/// Serializes the tests, so that they do not disturb each other.
static ALONE: Mutex<()> = Mutex::new(());

/// Parameters of each unit.
const COUNT: usize = 256;

/// A rank whose modules sleep.
struct Rank {
    strategy: Box<dyn DataParallel>,
    units: usize,
    /// Seconds of computing a unit, in one direction.
    unit_time: f64,
    /// End of the computation so far.
    due: Instant,
}

impl Rank {
    fn new(
        group: Communicator,
        kind: ParallelKind,
        units: usize,
        unit_time: f64,
        settings: Settings,
    ) -> Self {
        let (mut registry, memory) = (Registry::default(), Allocator::default());
        for unit in 0..units {
            registry
                .unit(&format!("u{unit}"), |r| r.add(Parameter::new("weight", &[COUNT], Init::Normal(0.5))));
        }
        let team = ProcessGroups::data_only(Some(group.clone()));
        let inventory = Arc::new(registry.finish());
        let mut strategy = new_strategy(kind, &inventory, team, &settings, &memory).unwrap();
        strategy.wait_all().unwrap();
        strategy.begin_step(&StepPlan::depth_first(units, 1)).unwrap();
        group.barrier().unwrap();
        strategy.take_wait_time();
        Self { strategy, units, unit_time, due: Instant::now() }
    }

    /// Computes one unit: the time begins when its weights are there.
    fn compute(&mut self) {
        self.due = self.due.max(Instant::now()) + Duration::from_secs_f64(self.unit_time);
        sleep(self.due.saturating_duration_since(Instant::now()));
    }

    fn forward(&mut self) {
        for unit in (0..self.units).map(UnitId) {
            self.strategy.pre_unit(unit, Direction::Forward).unwrap();
            self.compute();
            self.strategy.post_unit(unit, Direction::Forward).unwrap();
        }
    }

    fn backward(&mut self) {
        for unit in (0..self.units).rev() {
            self.strategy.pre_unit(UnitId(unit), Direction::Backward).unwrap();
            self.compute();
            let id = ParameterId(unit);
            let (weights, gradient) = self.strategy.weights_and_gradient(id).unwrap();
            gradient.copy_from_slice(weights);
            self.strategy.grad_ready(id).unwrap();
            self.strategy.post_unit(UnitId(unit), Direction::Backward).unwrap();
        }
    }

    fn update(&mut self) {
        let step = Step { number: 1, lr: 0.1, grad_scale: 1.0 };
        self.strategy.optimizer_step(&Sgd::default(), &step).unwrap();
    }

    /// Returns the seconds of waiting since the last call.
    fn waited(&mut self) -> f64 {
        self.strategy.take_wait_time().as_secs_f64()
    }
}

/// Runs `body` on two ranks whose messages take `seconds`, and returns both results.
fn on_slow_links<R: Send>(seconds: f64, body: impl Fn(Communicator) -> R + Sync) -> [R; 2] {
    let config = Config::default().with_fifo_slot_bytes(1 << 20).with_channels(1);
    let groups = slow::groups(seconds, 1e-9, &config).unwrap();
    std::thread::scope(|scope| {
        let ranks: Vec<_> = groups.into_iter().map(|group| scope.spawn(|| body(group))).collect();
        let results: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        results.try_into().unwrap_or_else(|_| panic!("two ranks"))
    })
}

/// Returns the least of three numbers, each the greater of two ranks: other programs add time.
fn least(seconds: f64, body: impl Fn(Communicator) -> f64 + Sync) -> f64 {
    let once = || on_slow_links(seconds, &body).into_iter().fold(0.0, f64::max);
    (0..3).map(|_| once()).fold(f64::INFINITY, f64::min)
}

const UNITS: usize = 24;
const MESSAGE: f64 = 8e-3;

/// Returns the seconds that a rank of ZeRO-3 waits for weights in forward and backward.
fn waits_for_weights(prefetch: usize) -> f64 {
    least(GATHER, |group| {
        let settings = Settings { prefetch, ..Settings::default() };
        // A unit computes while the next is gathered, and the one before it is reduced.
        let mut rank = Rank::new(group, ParallelKind::Zero3, GATHERED_UNITS, 3.5 * GATHER, settings);
        rank.forward();
        rank.backward();
        let waited = rank.waited();
        rank.strategy.finish_backward().unwrap();
        waited
    })
}

const GATHERED_UNITS: usize = 6;
const GATHER: f64 = 15e-3;

#[test]
fn only_the_first_gather_is_exposed() {
    let _alone = ALONE.lock();
    let is_one = |waited: &f64| (0.9 * GATHER..1.9 * GATHER).contains(waited);
    yardstick::assert_measured("wait for gathers of 15 ms", || waits_for_weights(1), is_one);
    let waited = waits_for_weights(0);
    // The last unit stays from forward to backward.
    let gathers = (2 * GATHERED_UNITS - 1) as f64;
    assert!(waited > 0.9 * gathers * GATHER, "{waited} for {gathers} gathers");
}

/// Returns the seconds that a rank waits for the weights of a step: at once, or while it computes.
fn waits_for_new_weights(kind: ParallelKind, overlaps: bool) -> f64 {
    least(MESSAGE, |group| {
        let settings = Settings { bucket_bytes: 4 * COUNT, ..Settings::default() };
        let mut rank = Rank::new(group, kind, UNITS, 1.5 * MESSAGE, settings);
        rank.unit_time = 0.0;
        rank.backward();
        rank.strategy.finish_backward().unwrap();
        rank.update();
        rank.waited();
        rank.unit_time = 1.5 * MESSAGE;
        if overlaps {
            rank.strategy.begin_step(&StepPlan::depth_first(UNITS, 1)).unwrap();
            rank.forward();
        } else {
            rank.strategy.wait_all().unwrap();
        }
        rank.waited()
    })
}

#[test]
fn forward_hides_nine_tenths_of_the_gathers_behind_a_step() {
    let _alone = ALONE.lock();
    for kind in [ParallelKind::Zero1, ParallelKind::Zero2] {
        let measure = || [waits_for_new_weights(kind, false), waits_for_new_weights(kind, true)];
        let is_hidden = |[total, exposed]: &[f64; 2]| *total > UNITS as f64 * 6e-3 && *exposed < 0.1 * total;
        let what = format!("{kind:?}: waits for gathers of 8 ms, and those behind a step");
        yardstick::assert_measured(&what, measure, is_hidden);
    }
}
