//! Measurements of time that count only while the machine lets threads run when they should.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Repeats a measurement until it is as `is_right` says.
///
/// A thread beside it sleeps and wakes all the time: the yardstick. A wrong measurement counts only
/// if that thread woke on time. On a machine that is never quiet enough, says so and returns; the
/// test harness does not capture the line.
///
/// # Panics
/// Panics if measurements were wrong as often as [`TRIES`] while the machine was quiet.
pub(crate) fn assert_measured<T: std::fmt::Debug>(
    what: &str,
    measure: impl Fn() -> T,
    is_right: impl Fn(&T) -> bool,
) {
    let (begun, mut wrong) = (Instant::now(), 0);
    loop {
        let (measured, lateness) = beside_yardstick(&measure);
        if is_right(&measured) {
            return;
        }
        wrong += usize::from(lateness < ON_TIME);
        assert!(wrong < TRIES, "{what}: {measured:?}, while threads woke {lateness:?} late");
        if begun.elapsed() > PATIENCE {
            let why = format!("this machine is too busy: threads wake {lateness:?} late");
            let _ = writeln!(std::io::stderr(), "SKIPPED: {what}: {why}");
            return;
        }
    }
}

/// Returns what is measured, and how late a thread beside it woke on average.
fn beside_yardstick<T>(measure: impl Fn() -> T) -> (T, Duration) {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let yardstick = scope.spawn(|| {
            let (begun, mut naps) = (Instant::now(), 0);
            while !is_over.load(Ordering::Relaxed) {
                std::thread::sleep(NAP);
                naps += 1;
            }
            begun.elapsed().saturating_sub(NAP * naps) / naps.max(1)
        });
        let measured = measure();
        is_over.store(true, Ordering::Relaxed);
        (measured, yardstick.join().expect("no panic"))
    })
}

/// Wrong measurements on a quiet machine that are a failure.
const TRIES: usize = 3;
const NAP: Duration = Duration::from_millis(1);
/// Mean lateness of a thread on a quiet machine: a tenth of this is usual.
const ON_TIME: Duration = Duration::from_micros(500);
/// Time after which a machine is called too busy.
const PATIENCE: Duration = Duration::from_secs(60);
