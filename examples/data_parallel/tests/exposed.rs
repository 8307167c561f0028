//! Shares of communication that ranks wait for. Links are so slow, and ranks sleep so long instead
//! of computing, that other programs hardly matter.

use unisono_nn::testing::yardstick;

use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};
use unisono::{Communicator, Config};
use unisono_data_parallel::{FormKind, slow_groups};
use unisono_nn::allocator::Allocator;
use unisono_nn::parameter::{Init, Parameter, ParameterId, Registry, UnitId};
use unisono_nn::step_plan::{Direction, StepPlan};
use unisono_parallel::optimizer::{Sgd, Step};

/// Parameters of each unit.
const COUNT: usize = 256;
const UNITS: usize = 24;
const MESSAGE: f64 = 8e-3;

/// Measured step of one form.
#[derive(Clone, Debug)]
struct Measured {
    /// Seconds of backward and what follows.
    step: f64,
    exposed: f64,
    weights: Vec<u32>,
}

fn step(group: &Communicator, form: FormKind) -> Measured {
    let mut registry = Registry::default();
    for unit in 0..UNITS {
        registry.unit(&format!("u{unit}"), |r| r.add(Parameter::new("weight", &[COUNT], Init::Normal(0.5))));
    }
    let (inventory, memory) = (Arc::new(registry.finish()), Allocator::default());
    let mut strategy = form.create(&inventory, group, &memory, 6 * 4 * COUNT).unwrap();
    strategy.weight_bits().unwrap();
    strategy.begin_step(&StepPlan::depth_first(UNITS, 1)).unwrap();
    group.barrier().unwrap();
    strategy.take_wait_time();
    let begun = Instant::now();
    let mut due = begun;
    for unit in (0..UNITS).rev() {
        strategy.pre_unit(UnitId(unit), Direction::Backward).unwrap();
        due = due.max(Instant::now()) + Duration::from_secs_f64(MESSAGE / 2.0);
        sleep(due.saturating_duration_since(Instant::now()));
        let (weights, gradient) = strategy.weights_and_gradient(ParameterId(unit)).unwrap();
        gradient.copy_from_slice(weights);
        strategy.grad_ready(ParameterId(unit)).unwrap();
        strategy.post_unit(UnitId(unit), Direction::Backward).unwrap();
    }
    strategy.finish_backward().unwrap();
    let (step, exposed) = (begun.elapsed().as_secs_f64(), strategy.take_wait_time().as_secs_f64());
    strategy.optimizer_step(&Sgd::default(), &Step { number: 1, lr: 0.1, grad_scale: 1.0 }).unwrap();
    Measured { step, exposed, weights: strategy.weight_bits().unwrap() }
}

/// Returns the fastest of three steps, each that of the slower of two ranks: other programs add
/// time.
fn fastest(form: FormKind) -> Measured {
    let config = Config::default().with_fifo_slot_bytes(1 << 20).with_channels(1);
    let rounds = (0..3).map(|_| {
        let groups = slow_groups(MESSAGE, 1e-9, &config).unwrap();
        let [first, second] = std::thread::scope(|scope| {
            let ranks = [0, 1].map(|rank| {
                scope.spawn({
                    let group = &groups[rank];
                    move || step(group, form)
                })
            });
            ranks.map(|rank| rank.join().unwrap())
        });
        assert_eq!(first.weights, second.weights);
        if first.step > second.step { first } else { second }
    });
    rounds.min_by(|measured, other| measured.step.total_cmp(&other.step)).unwrap()
}

/// Seconds of the steps of the three forms, and those of them in which communication is exposed.
#[derive(Debug)]
struct Figures {
    steps: [f64; 3],
    exposed: [f64; 3],
}

#[test]
fn each_form_is_faster_than_the_one_before() {
    let measure = || {
        let forms = [FormKind::Naive, FormKind::Overlapped, FormKind::Bucketed].map(fastest);
        assert!(forms.iter().all(|form| form.weights == forms[0].weights), "the same step");
        let exposed = forms.each_ref().map(|form| form.exposed);
        // A sum takes a message, whatever else the machine does.
        assert!(exposed[0] > 0.95 * UNITS as f64 * MESSAGE, "{exposed:?}");
        Figures { steps: forms.each_ref().map(|form| form.step), exposed }
    };
    // Naive sends 24 sums after backward, overlapped as many beside it, bucketed 4 beside it.
    let is_faster = |figures: &Figures| {
        let Figures { steps: [naive, overlapped, bucketed], exposed } = figures;
        *naive > 1.25 * overlapped
            && *overlapped > 1.4 * bucketed
            && exposed[1] < 0.75 * exposed[0]
            && exposed[2] < 0.2 * exposed[0]
    };
    yardstick::assert_measured("steps of three forms", measure, is_faster);
}
