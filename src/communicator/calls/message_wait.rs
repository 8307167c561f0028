//! The wait of a thread for a message, and its deadline.

use crate::communicator::Shared;
use crate::communicator::api::messages::MessageState;
use crate::communicator::calls::work::Completion;
use crate::engine::{Engine, ROUNDS_WITHOUT_CLOCK};
use crate::error::{Error, ErrorKind};
use crate::sync::Instant;
use std::sync::TryLockError;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl<R> Completion<R> {
    /// Moves messages until the one of this handle is done, or until the deadline has passed.
    pub(in crate::communicator) fn drive(&self, message: &MessageState, deadline: Option<Instant>) {
        let mut wait = MessageWait::new(message);
        while !self.is_finished() && deadline.is_none_or(|deadline| Instant::now() < deadline) {
            let Some(shared) = self.shared.upgrade() else {
                self.sleep(BUSY_ENGINE_SLEEP);
                continue;
            };
            // The thread that runs operations also moves the messages, but does not check this
            // wait's deadline. So a wait that has lasted too long takes the engine between two
            // operations.
            if !shared.op_queue.is_idle() && !wait.is_overdue(&shared) {
                wait.is_kept_out(|| self.sleep(BUSY_ENGINE_SLEEP));
                continue;
            }
            match shared.engine.try_lock() {
                Ok(mut engine) => {
                    let mark = shared.engine_user.set();
                    wait.round(&mut engine, shared.config.timeout, || self.is_finished());
                    drop((mark, engine));
                    shared.leave_if_ownerless();
                }
                Err(TryLockError::WouldBlock) => wait.is_kept_out(|| self.sleep(BUSY_ENGINE_SLEEP)),
                Err(TryLockError::Poisoned(_)) => {
                    let bug = ErrorKind::Bug("an earlier operation panicked".to_owned());
                    self.finish_message(Err(Error::new(bug)));
                }
            }
        }
    }
}

/// A thread's wait for one message. Its clock depends only on the moves of that message. Several
/// waits with a limit count as one.
struct MessageWait<'m> {
    message: &'m MessageState,
    /// Rounds in which no message moved.
    idle_rounds: u32,
    /// Rounds since this message was seen to move.
    rounds: u32,
    /// Number of moves of the message that were seen.
    moves: u64,
    /// Time at which the message was last seen to move.
    moved_at: Option<Duration>,
    /// Time for which earlier waits lasted since bytes last moved.
    waited_before: Duration,
    /// Time since the last round, in which another thread used the engine.
    kept_out: Duration,
}

impl<'m> MessageWait<'m> {
    fn new(message: &'m MessageState) -> Self {
        let moves = message.moves.load(Ordering::Relaxed);
        let waited_before = Duration::from_nanos(message.waited_nanos.load(Ordering::Relaxed));
        Self {
            message,
            idle_rounds: 0,
            rounds: 0,
            moves,
            moved_at: None,
            waited_before,
            kept_out: Duration::ZERO,
        }
    }

    /// Counts the time of a sleep while another thread uses the engine.
    fn is_kept_out(&mut self, sleep: impl FnOnce()) {
        let begun = Instant::now();
        sleep();
        self.kept_out += begun.elapsed();
    }

    /// Returns true if other threads have used the engine for so long that the wait may have to
    /// end. Virtual time stands still during that time.
    fn is_overdue(&self, shared: &Shared) -> bool {
        !shared.is_simulated && self.waited_before + self.kept_out > shared.config.timeout
    }

    /// Moves messages until some moved, or pauses. Ends the communicator if its timeout has passed.
    fn round(&mut self, engine: &mut Engine, timeout: Duration, is_finished: impl Fn() -> bool) {
        if self.kept_out > Duration::ZERO {
            self.count_time_outside();
        }
        // Most messages arrive soon, and taking the engine costs more than checking several times.
        let moved = (0..LOOKS_PER_ROUND).any(|_| engine.drive_messages(self.rounds));
        self.idle_rounds = if moved { 0 } else { self.idle_rounds.saturating_add(1) };
        self.rounds = self.rounds.saturating_add(1);
        if self.rounds >= ROUNDS_WITHOUT_CLOCK && !(moved && is_finished()) {
            self.check_clock(engine, timeout);
        }
        if !moved {
            engine.pause(self.idle_rounds);
        }
    }

    /// Adds the time in which this thread had no round to the time of earlier waits, unless the
    /// engine's clock runs already. Makes this round read the clock.
    fn count_time_outside(&mut self) {
        let kept_out = std::mem::take(&mut self.kept_out);
        if self.moved_at.is_none() {
            self.waited_before += kept_out;
        }
        self.rounds = self.rounds.max(ROUNDS_WITHOUT_CLOCK);
    }

    fn check_clock(&mut self, engine: &mut Engine, timeout: Duration) {
        let now = engine.now();
        let moves = self.message.moves.load(Ordering::Relaxed);
        if moves != self.moves {
            (self.moves, self.moved_at, self.waited_before) = (moves, Some(now), Duration::ZERO);
            self.rounds = 0;
        }
        let idle = self.waited_before + now.saturating_sub(*self.moved_at.get_or_insert(now));
        self.message.waited_nanos.store(idle.as_nanos() as u64, Ordering::Relaxed);
        if idle > timeout {
            let desc = self.message.desc;
            engine.message_timeout(desc.to_string(), desc.peer, idle);
        }
    }
}

const LOOKS_PER_ROUND: u32 = 4;
/// Time between two looks at a message while another thread uses the engine.
const BUSY_ENGINE_SLEEP: Duration = Duration::from_micros(200);
