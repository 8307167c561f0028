//! Measurements of time that count only while the machine lets threads run when they should.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use unisono_transports::sys::affinity::has_free_cores;

/// Repeats a measurement until it is as `is_right` says.
///
/// A thread beside it sleeps and wakes all the time: the yardstick. A wrong measurement counts only
/// if that thread woke on time and found a free core nearly always, because a sleeper gets its core
/// at once where a thread that computes waits for its share. On a machine that is never quiet
/// enough, says so and returns; the test harness does not capture the line.
///
/// # Panics
/// Panics if measurements were wrong as often as three times while the machine was quiet.
pub fn assert_measured<T: std::fmt::Debug>(
    what: &str,
    measure: impl Fn() -> T,
    is_right: impl Fn(&T) -> bool,
) {
    let (begun, mut wrong) = (Instant::now(), 0);
    loop {
        let (measured, contention) = beside_yardstick(&measure);
        if is_right(&measured) {
            return;
        }
        wrong += usize::from(contention.lateness < ON_TIME && contention.share < CONTENDED);
        assert!(wrong < TRIES, "{what}: {measured:?}, with {contention:?}");
        if begun.elapsed() > PATIENCE {
            let _ = writeln!(std::io::stderr(), "SKIPPED: {what}: this machine is too busy: {contention:?}");
            return;
        }
    }
}

/// Other programs on the cores during a measurement.
#[derive(Debug)]
struct Contention {
    /// Mean time by which a thread woke late.
    lateness: Duration,
    /// Share of its naps after which more threads wanted to run than there are cores.
    share: f64,
}

/// Returns what is measured, and the contention beside it.
fn beside_yardstick<T>(measure: impl Fn() -> T) -> (T, Contention) {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let yardstick = scope.spawn(|| {
            let (mut lateness, mut naps, mut contended) = (Duration::ZERO, 0, 0);
            while !is_over.load(Ordering::Relaxed) {
                let begun = Instant::now();
                std::thread::sleep(NAP);
                lateness += begun.elapsed().saturating_sub(NAP);
                naps += 1;
                contended += u32::from(!has_free_cores());
            }
            let naps = naps.max(1);
            Contention { lateness: lateness / naps, share: f64::from(contended) / f64::from(naps) }
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
/// Share of naps that end in contention on a quiet machine: half of this is usual.
const CONTENDED: f64 = 0.3;
/// Time after which a machine is called too busy.
const PATIENCE: Duration = Duration::from_secs(60);
