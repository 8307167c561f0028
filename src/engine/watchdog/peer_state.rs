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
#[derive(Clone, Debug, Default)]
pub(super) struct PeerState {
    pub(super) liveness: Liveness,
    /// Time at which the news arrived that the peer finalized.
    pub(super) finalized_at: Option<Duration>,
    /// The failure elsewhere because of which the peer finalized.
    reason: Option<String>,
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

    /// Records that the peer finalized the communicator, perhaps because of a failure elsewhere. A
    /// known failure remains.
    pub(super) fn finalize(&mut self, reason: Option<String>, now: Duration) {
        if self.liveness == Liveness::Running {
            self.liveness = Liveness::Finalized;
            self.finalized_at = Some(now);
            self.reason = reason;
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

    /// Returns the error for a peer that finalized because of a failure elsewhere.
    pub(super) fn explained_departure(&self, peer: Rank) -> Option<ErrorKind> {
        self.reason.as_deref().map(|reason| ErrorKind::left_after(peer, reason))
    }

    /// Returns the error for a peer that finalized and is waited for.
    pub(super) fn departure(&self, peer: Rank) -> ErrorKind {
        self.explained_departure(peer).unwrap_or(ErrorKind::PeerFinalized { peer })
    }

    /// Returns what is known of a peer that failed.
    fn failure(&self, timeout: Duration) -> Option<String> {
        match self.liveness {
            Liveness::Running | Liveness::Finalized => None,
            Liveness::Exited => Some("its process ended or closed its connection".to_owned()),
            Liveness::Unreachable => {
                Some(format!("its host has answered nothing for {:.1} s", timeout.as_secs_f64()))
            }
            Liveness::Reset => {
                Some("its connection was reset, and nothing shows that its process ended".to_owned())
            }
        }
    }
}

/// Returns the error for the peers that failed, if there are any.
///
/// The most certain failure is reported: an exit before silence, silence before a reset connection.
/// Several peers may have failed, one because of another, and nothing shows in which order. So the
/// error names them all, and also tells the failure because of which another peer left.
pub(super) fn failure_of_peers(peers: &[PeerState], timeout: Duration) -> Option<Error> {
    let liveness = [Liveness::Exited, Liveness::Unreachable, Liveness::Reset]
        .into_iter()
        .find(|&liveness| peers.iter().any(|peer| peer.liveness == liveness))?;
    let failed: Vec<Rank> = (0..peers.len()).filter(|&rank| peers[rank].liveness == liveness).collect();
    let (&peer, others) = failed.split_first()?;
    let what = format!("{}{}{}", peers[peer].failure(timeout)?, also_gone(others), told(peers));
    Some(Error::new(ErrorKind::PeerFailed { peer, what }))
}

/// Returns a text that names further peers that are gone.
fn also_gone(others: &[Rank]) -> String {
    let names: Vec<_> = others.iter().take(NAMES_MAX).map(|rank| format!("rank {rank}")).collect();
    match (&names[..], others.len() - names.len()) {
        ([], _) => String::new(),
        ([name], _) => format!("; {name} is gone, too"),
        (names, 0) => format!("; {} are gone, too", names.join(", ")),
        (names, more) => format!("; {} and {more} more are gone, too", names.join(", ")),
    }
}

/// Returns a text with the failure because of which a peer left.
///
/// It may be the end of a rank that this rank has found gone itself. The text does not show this,
/// because the same rank may have another number in the other communicator.
fn told(peers: &[PeerState]) -> String {
    let reason = |(rank, peer): (Rank, &PeerState)| {
        Some(format!("; rank {rank} has left after a failure: {}", peer.reason.as_ref()?))
    };
    peers.iter().enumerate().find_map(reason).unwrap_or_default()
}

/// Peers that an error names beside the first one.
const NAMES_MAX: usize = 8;

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
        peer.finalize(None, Duration::ZERO);
        for event in [PeerEvent::Exited { from: 1 }, PeerEvent::Reset { from: 1 }] {
            peer.on_event(&event);
        }
        assert_eq!(peer.liveness, Liveness::Finalized);
        assert!(failure_of_peers(&[peer], Duration::ZERO).is_none());
    }

    #[test]
    fn peer_state_finalize_does_not_hide_failure() {
        let mut peer = PeerState::default();
        peer.on_event(&PeerEvent::Unreachable { from: 1 });
        peer.finalize(None, Duration::ZERO);
        assert_eq!(peer.liveness, Liveness::Unreachable);
        assert!(failure_of_peers(&[peer], Duration::ZERO).is_some());
    }

    /// Returns the states of peers of which those in `exited` have exited.
    fn peers_without(exited: impl IntoIterator<Item = Rank>) -> Vec<PeerState> {
        let mut peers = vec![PeerState::default(); 16];
        exited.into_iter().for_each(|rank| peers[rank].on_event(&PeerEvent::Exited { from: rank }));
        peers
    }

    /// Returns the rank and the text of the error for these peers.
    fn report(peers: &[PeerState]) -> (Option<Rank>, String) {
        let error = failure_of_peers(peers, Duration::ZERO).expect("a peer has failed");
        (error.peer(), error.kind().to_string())
    }

    #[test]
    fn error_names_all_peers_that_exited() {
        let exited = "(its process ended or closed its connection";
        for (ranks, first, others) in [
            (3..4, 3, ""),
            (3..5, 3, "; rank 4 is gone, too"),
            (3..6, 3, "; rank 4, rank 5 are gone, too"),
            (
                0..12,
                0,
                "; rank 1, rank 2, rank 3, rank 4, rank 5, rank 6, rank 7, rank 8 and 3 more are gone, too",
            ),
        ] {
            let text = format!("rank {first} is gone {exited}{others})");
            assert_eq!(report(&peers_without(ranks)), (Some(first), text));
        }
        // A peer whose end is less certain is not listed with those that exited.
        let mut peers = peers_without([3]);
        peers[1].on_event(&PeerEvent::Reset { from: 1 });
        assert_eq!(report(&peers), (Some(3), format!("rank 3 is gone {exited})")));
    }

    #[test]
    fn error_of_an_exit_tells_why_others_left() {
        let reason = "a related communicator of 9 ranks failed: rank 5 is gone (it was killed)";
        let mut peers = peers_without([3]);
        peers[2].finalize(Some(reason.to_owned()), Duration::ZERO);
        let (peer, text) = report(&peers);
        assert_eq!(peer, Some(3));
        assert!(text.ends_with(&format!("; rank 2 has left after a failure: {reason})")), "{text}");
        // Rank 5 of the other communicator may be another one than rank 5 of this communicator.
        let mut peers = peers_without([5]);
        peers[2].finalize(Some(reason.to_owned()), Duration::ZERO);
        assert!(report(&peers).1.contains("; rank 2 has left"));
    }
}
