//! Threads, locks, waits and the clock of a model (`RUSTFLAGS="--cfg shuttle"`), which replace
//! those of the standard library.
//!
//! All threads of a model run on one system thread. They switch where they lock, access an atomic,
//! or wait. So every wait must use the means of this module. Descriptors are polled again and
//! again, with [`thread::sleep`] in between. Time passes only there. Nothing else may influence a
//! model, so that a schedule is the same on every replay. `testing::shuttle` runs models.

use std::cell::Cell;
use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

std::thread_local! {
    /// The time in the model that runs on this system thread.
    static NOW: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Sets the time back to zero, for the next run of a model on this system thread.
pub(crate) fn restart_time() {
    NOW.set(Duration::ZERO);
}

/// Returns the time since the model began.
pub(crate) fn time() -> Duration {
    NOW.get()
}

/// A moment in a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(Duration);

impl Instant {
    /// Returns the present moment.
    pub fn now() -> Self {
        Self(NOW.get())
    }

    /// Returns the time `time` later, if it can be represented.
    pub fn checked_add(self, time: Duration) -> Option<Self> {
        self.0.checked_add(time).map(Self)
    }

    /// Returns the time since this moment.
    pub fn elapsed(self) -> Duration {
        Self::now() - self
    }

    /// Returns the time since `earlier`, or zero if `earlier` is later.
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

/// Lets other threads go on, if the schedule says so.
pub fn step() {
    // Unlike a yield, this does not ask the scheduler to switch.
    shuttle::thread::sleep(Duration::ZERO);
}

/// Types that threads share.
pub mod sync {
    pub use shuttle::sync::{Condvar, Mutex, MutexGuard, atomic};
    use std::sync::PoisonError;

    /// Stands for [`std::sync::OnceLock`]. The thread that makes the value may be interrupted.
    #[derive(Debug, Default)]
    pub struct OnceLock<T> {
        making: Mutex<()>,
        made: std::sync::OnceLock<T>,
    }

    impl<T> OnceLock<T> {
        /// Creates an empty cell.
        pub const fn new() -> Self {
            Self { making: Mutex::new(()), made: std::sync::OnceLock::new() }
        }

        /// Returns the value, which the first caller makes.
        pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
            let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
            if self.made.get().is_none() {
                // No other thread is in this section.
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

    /// Stands for [`std::sync::mpsc::Sender`].
    pub struct Sender<T>(shuttle::sync::mpsc::Sender<T>);

    /// Stands for [`std::sync::mpsc::channel`].
    pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
        let (sender, receiver) = shuttle::sync::mpsc::channel();
        (Sender(sender), receiver)
    }

    impl<T> Sender<T> {
        /// Stands for [`std::sync::mpsc::Sender::send`].
        ///
        /// # Errors
        /// Returns the message if there is no receiver.
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

/// Threads and their waits.
pub mod thread {
    use super::NOW;
    pub use shuttle::thread::{JoinHandle, Scope, ScopedJoinHandle, scope, spawn};
    use std::time::Duration;

    /// Lets the other threads go on, and time pass.
    pub fn sleep(time: Duration) {
        NOW.set(NOW.get() + time);
        shuttle::thread::yield_now();
    }

    /// Stands for [`std::thread::Builder`].
    #[derive(Debug, Default)]
    pub struct Builder(shuttle::thread::Builder);

    impl Builder {
        /// Creates a builder with default settings.
        pub fn new() -> Self {
            Self::default()
        }

        /// Sets the name of the thread.
        #[must_use]
        pub fn name(self, name: String) -> Self {
            Self(self.0.name(name))
        }

        /// Changes nothing: stacks are reused, and all have one size.
        #[must_use]
        pub fn stack_size(self, _bytes: usize) -> Self {
            self
        }

        /// Starts the thread.
        ///
        /// # Errors
        /// Never fails.
        pub fn spawn<T: Send + 'static>(
            self,
            work: impl FnOnce() -> T + Send + 'static,
        ) -> std::io::Result<JoinHandle<T>> {
            self.0.spawn(work)
        }

        /// Starts the thread within a scope.
        ///
        /// # Errors
        /// Never fails.
        pub fn spawn_scoped<'scope, T: Send + 'scope>(
            self,
            scope: &'scope Scope<'scope, '_>,
            work: impl FnOnce() -> T + Send + 'scope,
        ) -> std::io::Result<ScopedJoinHandle<'scope, T>> {
            Ok(scope.spawn(work))
        }
    }
}

pub use shuttle::thread_local;

/// Time that a wait takes if it has no certain time of its own.
pub const TICK: Duration = Duration::from_millis(1);
