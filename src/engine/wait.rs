//! The wait of an operation, round by round, and the clock of a rank.
//!
//! An executor that makes no progress calls [`wait_round`] until it does. Each round lets the
//! [`Watchdog`] look at the clock, the abort flag and the news of the peers, moves messages, and
//! then pauses.

use crate::engine::Engine;
use crate::engine::messages::{Links, Messages};
use crate::engine::watchdog::Watchdog;
use crate::error::Result;
use crate::schedule::Rank;
use std::task::Waker;
use std::time::Duration;
use unisono_transports::{ControlChannel, Fabric, WaitMode, WaitStrategy};

/// Lets a waiting operation move messages, handles its round without progress, and pauses.
///
/// # Errors
/// As [`Watchdog::check_round`], and errors of the links.
pub(in crate::engine) fn wait_round(
    (messages, links): (&mut Messages, &mut Links),
    watchdog: &mut Watchdog,
    control: &mut dyn ControlChannel,
    wait: &mut dyn WaitStrategy,
    blocked: impl Iterator<Item = Rank> + Clone,
) -> Result<()> {
    let round = watchdog.check_round(control, wait, blocked.clone())?;
    let looks =
        round.is_multiple_of(ROUNDS_PER_LOOK) || round > ROUNDS_AWAKE || messages.submissions().is_filled();
    if !(looks && messages.is_active()) {
        wait.pause_for(round, &mut { blocked });
    } else if !messages.progress(links)? {
        // The ranks that messages wait for end the sleep, too. The rank that blocks the operation
        // may itself wait for such a message.
        wait.pause_for(round, &mut blocked.chain(messages.partners()));
    }
    Ok(())
}

impl Engine {
    /// Handles one round without progress of an operation; see [`wait_round`].
    pub(in crate::engine) fn wait_round(
        &mut self,
        blocked: impl Iterator<Item = Rank> + Clone,
    ) -> Result<()> {
        let Fabric { links, control, wait, .. } = &mut self.fabric;
        let movable = (&mut self.messages, &mut links[..]);
        wait_round(movable, &mut self.watchdog, &mut **control, &mut **wait, blocked)
    }

    /// Lets operations wait in the way for a background thread, or in the way for the caller's
    /// thread.
    pub(crate) fn wait_in_background(&mut self, background: bool) {
        self.wait_mode = match self.config.wait {
            // The thread runs beside the computation of its own rank, and a yield would take the
            // core from that computation: docs/decisions/0022-sleepers-are-woken.md.
            WaitMode::Auto if background => WaitMode::Block,
            mode => mode,
        };
        self.fabric.wait.set_mode(self.wait_mode);
    }

    /// Returns a waker with which another thread can wake this rank.
    pub(crate) fn waker(&self) -> Waker {
        self.fabric.wait.waker()
    }

    /// Returns the time of this rank's clock.
    pub(crate) fn now(&self) -> Duration {
        self.fabric.wait.now()
    }

    /// Returns whether the clock is simulated, so that only a thread that waits may move messages.
    pub(crate) fn is_simulated(&self) -> bool {
        self.fabric.wait.is_simulated()
    }
}

/// Rounds of an operation's wait between two looks at the messages. A wait of a few rounds is over
/// before a look would pay.
const ROUNDS_PER_LOOK: u32 = 8;
/// Rounds of an operation's wait in which it sleeps seldom. Later on it looks each time, because
/// messages may come while it sleeps.
const ROUNDS_AWAKE: u32 = 16;
