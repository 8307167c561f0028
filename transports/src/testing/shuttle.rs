//! Models of threads under many schedules (`RUSTFLAGS="--cfg shuttle"`).
//! [shuttle](https://docs.rs/shuttle) draws the schedules of the real code at random. It serves
//! where there are too many steps for loom to visit every order of them. `cargo xtask shuttle` runs
//! models, on the threads and the clock of [`sync::shuttle`](crate::sync::shuttle).

use crate::WaitStrategy;
use crate::sync::shuttle::{TICK, restart_time, thread, time};
use shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler, Scheduler};
use shuttle::{Config, MaxSteps, Runner};
use std::any::type_name;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

pub use shuttle::future::block_on;

/// Runs `machine` under as many schedules as `SHUTTLE_SCHEDULES` says. Half of them switch threads
/// at any step, half of them at few. All of them follow from `SHUTTLE_RANDOM_SEED`. With
/// `SHUTTLE_REPLAY`, it runs under the schedule in that file.
///
/// # Panics
/// Panics as `machine` does, if no thread can go on, or if not all have ended after [`STEPS_MAX`].
/// The panic prints the schedule and the command that replays it.
pub fn explore<M: Fn() + Copy + Send + Sync + 'static>(machine: M) {
    if let Ok(file) = std::env::var("SHUTTLE_REPLAY") {
        let schedule = ReplayScheduler::new_from_file(&file);
        return play(schedule.unwrap_or_else(|error| panic!("{file}: {error}")), machine);
    }
    let (half, played) = (number("SHUTTLE_SCHEDULES", SCHEDULES).div_ceil(2), Arc::new(AtomicUsize::new(0)));
    let counted = {
        let played = Arc::clone(&played);
        move || {
            played.fetch_add(1, Ordering::Relaxed);
            machine();
        }
    };
    let ended = catch_unwind(AssertUnwindSafe(|| {
        play(RandomScheduler::new_from_seed(SEED, half), counted.clone());
        play(PctScheduler::new_from_seed(SEED, CHANGES, half), counted);
    }));
    let played = played.load(Ordering::Relaxed);
    let (package, test) = name::<M>();
    match ended {
        Ok(()) => println!("{test}: {played} schedules"),
        Err(panic) => {
            eprintln!(
                "schedule {played} failed; with what stands between the quotation marks above, it is played again by\n\
                 cargo xtask shuttle replay {package} {test} \"SCHEDULE\""
            );
            resume_unwind(panic);
        }
    }
}

fn play(schedules: impl Scheduler + 'static, machine: impl Fn() + Send + Sync + 'static) {
    let mut config = Config::new();
    config.stack_size = STACK_BYTES;
    config.max_steps = MaxSteps::FailAfter(STEPS_MAX);
    config.silence_warnings = true;
    Runner::new(schedules, config).run(move || {
        restart_time();
        machine();
    });
}

/// Returns the package and the path of the test that defines `M`.
fn name<M>() -> (String, &'static str) {
    let (package, path) = type_name::<M>().split_once("::").unwrap_or(("", type_name::<M>()));
    (package.replace('_', "-"), path.trim_end_matches("::{{closure}}"))
}

fn number(variable: &str, otherwise: usize) -> usize {
    let parse = |text: String| text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number"));
    std::env::var(variable).map_or(otherwise, parse)
}

/// The clock of a model, for fabrics.
#[derive(Clone, Copy, Debug)]
pub struct Clock;

impl WaitStrategy for Clock {
    fn now(&self) -> Duration {
        time()
    }

    fn pause(&mut self, _rounds: u32) {
        thread::sleep(TICK);
    }
}

/// Steps after which a thread that has not ended never will.
pub const STEPS_MAX: usize = 50_000;
/// Schedules of a model, by default.
const SCHEDULES: usize = 400;
const SEED: u64 = 0;
/// Steps at which a schedule with few switches may switch, apart from waits.
const CHANGES: usize = 3;
const STACK_BYTES: usize = 512 << 10;
