//! The clock of a lane program: one port out, one port in, a message takes one round.

/// The times of a lane program's events, in rounds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PortClock {
    /// The time at which its last step ended.
    pub(super) clock: u64,
    send_free: u64,
    recv_free: u64,
}

impl PortClock {
    /// Sends a message; returns the time at which it arrives.
    pub(super) fn send(&mut self) -> u64 {
        self.send_free = self.clock.max(self.send_free) + 1;
        self.send_free
    }

    /// Receives a message that arrives at `arrival`.
    pub(super) fn receive(&mut self, arrival: u64) {
        self.clock = self.clock.max(arrival).max(self.recv_free + 1);
        self.recv_free = self.clock;
    }

    /// Signals; returns the time at which the signal is seen.
    pub(super) fn signal(&self) -> u64 {
        self.clock + 1
    }

    /// Waits for a signal seen at `arrival`.
    pub(super) fn wait(&mut self, arrival: u64) {
        self.clock = self.clock.max(arrival);
    }
}
