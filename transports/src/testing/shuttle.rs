//! Models of machines of threads (`RUSTFLAGS="--cfg shuttle"`): the real code under many schedules, drawn at random by
//! [shuttle](https://docs.rs/shuttle), where the steps are too many for loom to visit every order of them.
//!
//! All threads of a model are one of the system, and change over where they lock, look at an atomic, or wait. So whatever
//! waits must do it by these means, and descriptors are looked at again and again, with [`thread::sleep`] in between. Time
//! passes there alone. Nothing else may decide what a model does: then a schedule is the same whenever it is played.
//! `cargo xtask shuttle` runs models.

use crate::WaitStrategy;
use shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler, Scheduler};
use shuttle::{Config, MaxSteps, Runner};
use std::any::type_name;
use std::cell::Cell;
use std::ops::{Add, AddAssign, Sub};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Runs `machine` under so many schedules as `SHUTTLE_SCHEDULES` says: half of them change over at any step, half of them at
/// few, and all of them follow from `SHUTTLE_RANDOM_SEED`. With `SHUTTLE_REPLAY`, under the one that is in that file.
///
/// # Panics
/// As `machine` does, if nobody can go on, or not all have ended after [`STEPS_MAX`]. The schedule is printed, and how to play
/// it again.
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
        NOW.set(Duration::ZERO);
        machine();
    });
}

/// Package and path of the test that `M` was written in.
fn name<M>() -> (String, &'static str) {
    let (package, path) = type_name::<M>().split_once("::").unwrap_or(("", type_name::<M>()));
    (package.replace('_', "-"), path.trim_end_matches("::{{closure}}"))
}

fn number(variable: &str, otherwise: usize) -> usize {
    let parse = |text: String| text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number"));
    std::env::var(variable).map_or(otherwise, parse)
}

std::thread_local! {
    /// The time in the model that this thread of the system plays.
    static NOW: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// A moment in a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(Duration);

impl Instant {
    /// This one.
    pub fn now() -> Self {
        Self(NOW.get())
    }

    /// How long ago it was.
    pub fn elapsed(self) -> Duration {
        Self::now() - self
    }

    /// How long after `earlier`; nothing if it is not.
    pub fn saturating_duration_since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self(self.0 + time)
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, time: Duration) {
        *self = *self + time;
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.saturating_duration_since(earlier)
    }
}

/// Lets the others go on, if the schedule says so.
pub fn step() {
    // Unlike a yield, this asks for nothing.
    shuttle::thread::sleep(Duration::ZERO);
}

/// The clock of a model, for fabrics.
#[derive(Clone, Copy, Debug)]
pub struct Clock;

impl WaitStrategy for Clock {
    fn now(&self) -> Duration {
        NOW.get()
    }

    fn pause(&mut self, _rounds: u32) {
        thread::sleep(TICK);
    }
}

/// What threads share.
pub mod sync {
    pub use shuttle::sync::{Condvar, Mutex, MutexGuard, atomic};
    use std::sync::PoisonError;

    /// As [`std::sync::OnceLock`]; whoever makes the value may be interrupted.
    #[derive(Debug, Default)]
    pub struct OnceLock<T> {
        making: Mutex<()>,
        made: std::sync::OnceLock<T>,
    }

    impl<T> OnceLock<T> {
        /// Nothing yet.
        pub const fn new() -> Self {
            Self { making: Mutex::new(()), made: std::sync::OnceLock::new() }
        }

        /// The value, which the first who asks makes.
        pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
            let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
            if self.made.get().is_none() {
                // Nobody else is here.
                let _ = self.made.set(make());
            }
            self.made.get().expect("it has just been made")
        }
    }
}

/// Channels.
pub mod mpsc {
    pub use shuttle::sync::mpsc::Receiver;
    use std::fmt;
    use std::sync::mpsc::SendError;

    /// As [`std::sync::mpsc::Sender`].
    pub struct Sender<T>(shuttle::sync::mpsc::Sender<T>);

    /// As [`std::sync::mpsc::channel`].
    pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
        let (sender, receiver) = shuttle::sync::mpsc::channel();
        (Sender(sender), receiver)
    }

    impl<T> Sender<T> {
        /// As [`std::sync::mpsc::Sender::send`].
        ///
        /// # Errors
        /// If there is nobody to receive it.
        pub fn send(&self, message: T) -> Result<(), SendError<T>> {
            self.0.send(message)
        }
    }

    impl<T> fmt::Debug for Sender<T> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("Sender").finish_non_exhaustive()
        }
    }
}

/// Threads, and how they wait.
pub mod thread {
    use super::NOW;
    pub use shuttle::thread::{JoinHandle, Scope, ScopedJoinHandle, scope, spawn};
    use std::time::Duration;

    /// Lets the others go on, and time pass.
    pub fn sleep(time: Duration) {
        NOW.set(NOW.get() + time);
        shuttle::thread::yield_now();
    }

    /// As [`std::thread::Builder`].
    #[derive(Debug, Default)]
    pub struct Builder(shuttle::thread::Builder);

    impl Builder {
        /// A thread with nothing special.
        pub fn new() -> Self {
            Self::default()
        }

        /// Gives it a name.
        #[must_use]
        pub fn name(self, name: String) -> Self {
            Self(self.0.name(name))
        }

        /// Changes nothing: stacks are used again, and all of one size.
        #[must_use]
        pub fn stack_size(self, _bytes: usize) -> Self {
            self
        }

        /// Starts it.
        ///
        /// # Errors
        /// None.
        pub fn spawn<T: Send + 'static>(
            self,
            work: impl FnOnce() -> T + Send + 'static,
        ) -> std::io::Result<JoinHandle<T>> {
            self.0.spawn(work)
        }

        /// Starts it within a scope.
        ///
        /// # Errors
        /// None.
        pub fn spawn_scoped<'scope, T: Send + 'scope>(
            self,
            scope: &'scope Scope<'scope, '_>,
            work: impl FnOnce() -> T + Send + 'scope,
        ) -> std::io::Result<ScopedJoinHandle<'scope, T>> {
            Ok(scope.spawn(work))
        }
    }
}

pub use shuttle::{future::block_on, thread_local};

#[cfg(test)]
pub(crate) use local_sockets::{listener, start_connect};

/// Local sockets that stand for those of TCP, as they deliver before a call returns.
#[cfg(test)]
mod local_sockets {
    use crate::Result;
    use crate::sys::listener::Listener;
    use crate::sys::socket::Stream;
    use crate::sys::unix;
    use std::net::{Ipv4Addr, SocketAddr};
    use std::sync::atomic::{AtomicU16, Ordering};

    /// A listener, and where it is to be called.
    pub(crate) fn listener() -> (Listener, SocketAddr) {
        static NEXT: AtomicU16 = AtomicU16::new(1);
        let address = (Ipv4Addr::LOCALHOST, NEXT.fetch_add(1, Ordering::Relaxed)).into();
        (Listener::unix_named(&socket_name(address)).expect("a local socket"), address)
    }

    /// A connection to that.
    pub(crate) fn start_connect(address: SocketAddr) -> Result<Stream> {
        unix::connect(&socket_name(address))
    }

    fn socket_name(address: SocketAddr) -> String {
        format!("model-{}-{}", std::process::id(), address.port())
    }
}

/// What a wait takes, where it takes no certain time.
pub const TICK: Duration = Duration::from_millis(1);
/// Whoever has not ended after so many steps never will.
pub const STEPS_MAX: usize = 50_000;
/// Schedules of a model, if nobody says otherwise.
const SCHEDULES: usize = 400;
const SEED: u64 = 0;
/// Steps at which a schedule with few changes may change over, but for waits.
const CHANGES: usize = 3;
const STACK_BYTES: usize = 512 << 10;
