//! Processor time of exchanges between ranks that share cores.
//!
//! A rank that waits leaves its core to others, so an exchange costs no waiting. It costs processor
//! time, of copies and of switches between threads.

use crate::cost::Exchange;
use serde::Serialize;

/// Costs of exchanges if all ranks do the same, in seconds of all cores.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ExchangeCosts {
    /// Exchanges on the threads that compute, which wait for them.
    pub calls: CoreCost,
    /// Exchanges on threads of their own.
    pub background: CoreCost,
}

/// Seconds of all cores that an exchange takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CoreCost {
    /// For each collective.
    pub collective: f64,
    /// For each message in sequence.
    pub message: f64,
    /// For each byte of the buffers of a rank.
    pub byte: f64,
}

impl CoreCost {
    /// Returns the seconds of an exchange.
    pub fn time(&self, exchange: &Exchange) -> f64 {
        self.collective * exchange.collectives
            + self.message * exchange.messages
            + self.byte * exchange.buffer_bytes()
    }

    /// Solves for the costs from measured collectives with few bytes, and with `bytes` more: in
    /// pairs of ranks, and among all. An all-gather of two ranks has one message, and one of all
    /// has `messages`. The cost of a byte is the mean of both.
    pub fn new(few: [f64; 2], many: [f64; 2], messages: f64, bytes: f64) -> Self {
        let more: f64 = few.iter().zip(many).map(|(few, many)| (many - few) / 2.0).sum();
        let [pairs, all_ranks] = few;
        let all_ranks = all_ranks.max(0.0);
        // Noise can make few ranks slower than many, and then a message would have a negative cost.
        let pairs = pairs.clamp(0.0, all_ranks);
        let message = if messages > 1.0 { (all_ranks - pairs) / (messages - 1.0) } else { 0.0 };
        Self { collective: all_ranks - message * messages, message, byte: (more / bytes).max(0.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::ExchangeKind;

    #[test]
    fn measured_collectives_have_their_costs() {
        let cost = CoreCost { collective: 1e-4, message: 1e-5, byte: 1e-9 };
        let gather = |ranks: usize, bytes: f64| Exchange {
            kind: ExchangeKind::Data,
            ranks,
            apart: 1,
            collectives: 1.0,
            messages: (ranks - 1) as f64,
            bytes: bytes * (ranks - 1) as f64 / ranks as f64,
        };
        let times = |bytes| [2, 8].map(|ranks| cost.time(&gather(ranks, bytes)));
        let solved = CoreCost::new(times(0.0), times(1e6), 7.0, 1e6);
        let assert_near = |left: f64, right: f64| assert!((left / right - 1.0).abs() < 1e-6, "{solved:?}");
        assert_near(solved.collective, cost.collective);
        assert_near(solved.message, cost.message);
        assert_near(solved.byte, cost.byte);
        assert_near(times(1e6)[1], 1.17e-3);
    }

    #[test]
    fn noise_makes_no_cost_negative() {
        let CoreCost { collective, message, byte } = CoreCost::new([2e-4, 1e-4], [1e-4, 1e-4], 7.0, 1e6);
        assert_eq!([collective, message, byte], [1e-4, 0.0, 0.0]);
        assert_eq!(CoreCost::new([-1e-4; 2], [-1e-4; 2], 1.0, 1e6), CoreCost::default());
    }
}
