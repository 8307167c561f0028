//! The state of one peer as this rank knows it from control messages and connection events.

use crate::error::{Error, ErrorKind};
use crate::op_desc::OpDesc;
use crate::schedule::Rank;
use std::time::Duration;
use unisono_transports::PeerEvent;

/// The life of a peer. A state never goes back to `Running`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Liveness {
    /// Nothing is known to be wrong.
    #[default]
    Running,
    /// The peer finalized this communicator. Its exit afterwards is no failure.
    Finalized,
    /// The connection to the peer was reset for an unknown reason.
    Reset,
    /// The host of the peer does not answer.
    Unreachable,
    /// The process of the peer ended or closed its connection.
    Exited,
}

/// The operation that a peer last announced to be waiting in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WaitReport {
    pub(super) op: OpDesc,
    /// True if the operation belongs to another communicator.
    pub(super) in_other_comm: bool,
    received_at: Duration,
}

/// Everything that is known of one peer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PeerState {
    pub(super) liveness: Liveness,
    /// Time at which the news arrived that the peer finalized.
    pub(super) finalized_at: Option<Duration>,
    report: Option<WaitReport>,
}

impl PeerState {
    /// Records a connection event. More specific findings replace less specific ones.
    pub(super) fn on_event(&mut self, event: &PeerEvent) {
        let found = match event {
            PeerEvent::Exited { .. } => Liveness::Exited,
            PeerEvent::Unreachable { .. } => Liveness::Unreachable,
            PeerEvent::Reset { .. } => Liveness::Reset,
            PeerEvent::Message { .. } => return,
        };
        self.liveness = match (self.liveness, found) {
            (Liveness::Finalized, _) => Liveness::Finalized,
            (Liveness::Exited, _) | (_, Liveness::Exited) => Liveness::Exited,
            (Liveness::Unreachable, _) | (_, Liveness::Unreachable) => Liveness::Unreachable,
            _ => found,
        };
    }

    /// Records that the peer finalized the communicator. A known failure remains.
    pub(super) fn finalize(&mut self, now: Duration) {
        if self.liveness == Liveness::Running {
            self.liveness = Liveness::Finalized;
            self.finalized_at = Some(now);
        }
    }

    /// Records that the peer waits in `op`.
    pub(super) fn report_wait(&mut self, op: OpDesc, in_other_comm: bool, now: Duration) {
        self.report = Some(WaitReport { op, in_other_comm, received_at: now });
    }

    /// Returns what the peer waits in. A report expires, because a waiting rank repeats it.
    pub(super) fn recent_report(&self, now: Duration) -> Option<WaitReport> {
        self.report.filter(|report| now < report.received_at + REPORT_TTL)
    }

    /// Drops a report of an operation that ran before `op`.
    #[cfg(feature = "gpu")]
    pub(super) fn drop_stale_report(&mut self, op: &OpDesc) {
        let is_stale =
            |report: &WaitReport| op.shares_sequence_with(&report.op) && report.op.sequence() < op.sequence();
        self.report = self.report.filter(|report| !is_stale(report));
    }

    /// Returns whether the peer left the communicator, regularly or not.
    pub(super) fn has_left(&self) -> bool {
        matches!(self.liveness, Liveness::Finalized | Liveness::Exited)
    }

    /// Returns the error for a peer that failed.
    pub(super) fn failure(&self, peer: Rank, timeout: Duration) -> Option<Error> {
        let what = match self.liveness {
            Liveness::Running | Liveness::Finalized => return None,
            Liveness::Exited => "its process ended or closed its connection".to_owned(),
            Liveness::Unreachable => {
                format!("its host has answered nothing for {:.1} s", timeout.as_secs_f64())
            }
            Liveness::Reset => {
                "its connection was reset, and nothing shows that its process ended".to_owned()
            }
        };
        Some(Error::new(ErrorKind::PeerFailed { peer, what }))
    }
}

/// Time for which a wait report is believed.
pub(super) const REPORT_TTL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn after(events: &[PeerEvent]) -> Liveness {
        let mut peer = PeerState::default();
        events.iter().for_each(|event| peer.on_event(event));
        peer.liveness
    }

    #[test]
    fn peer_state_keeps_most_specific_failure() {
        let reset = || PeerEvent::Reset { from: 1 };
        let unreachable = || PeerEvent::Unreachable { from: 1 };
        let exited = || PeerEvent::Exited { from: 1 };
        assert_eq!(after(&[reset()]), Liveness::Reset);
        assert_eq!(after(&[reset(), unreachable(), reset()]), Liveness::Unreachable);
        assert_eq!(after(&[unreachable(), exited(), reset(), unreachable()]), Liveness::Exited);
    }

    #[test]
    fn peer_state_exit_after_finalize_is_no_failure() {
        let mut peer = PeerState::default();
        peer.finalize(Duration::ZERO);
        for event in [PeerEvent::Exited { from: 1 }, PeerEvent::Reset { from: 1 }] {
            peer.on_event(&event);
        }
        assert_eq!(peer.liveness, Liveness::Finalized);
        assert!(peer.failure(1, Duration::ZERO).is_none());
    }

    #[test]
    fn peer_state_finalize_does_not_hide_failure() {
        let mut peer = PeerState::default();
        peer.on_event(&PeerEvent::Unreachable { from: 1 });
        peer.finalize(Duration::ZERO);
        assert_eq!(peer.liveness, Liveness::Unreachable);
        assert!(peer.failure(1, Duration::ZERO).is_some());
    }
}
