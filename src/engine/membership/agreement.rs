//! Agreement of the survivors on a membership, as a pure state machine that repeated messages
//! drive.
//!
//! Each rank sends a [`View`]: its *attempt*, its [`Phase`], and the ranks that it considers
//! failed.
//!
//! ```text
//!             all survivors send equal views
//!  Proposing ─────────────────────────────────► (connect to each other)
//!      ▲                                                  │ connected
//!      │ a rank failed, or the connection failed:         ▼
//!      └──────────── next attempt ─────────────────── Connected
//!                                                         │ all survivors are connected
//!                                                         ▼
//!                                                     Committed
//! ```
//!
//! A rank that starts a new attempt can still commit the last attempt, if it hears that a peer has
//! committed it.
//!
//! Agreement: no two survivors commit different memberships. A rank connects in a new attempt only
//! after all survivors proposed that attempt with the same failed ranks. None of these survivors
//! has committed, because a committed rank proposes nothing. This also holds if a rank committed
//! and then failed. A peer considers a rank failed only after it has read everything that the rank
//! sent, so it has read the commit and followed it.

use crate::schedule::Rank;
use std::time::Duration;

/// The progress of a rank in its attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// The rank proposes a set of survivors.
    Proposing,
    /// The rank is connected to all survivors.
    Connected,
    /// The rank knows that all survivors are connected to each other.
    Committed,
}

/// The message that a rank sends about the agreement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) attempt: u32,
    pub(crate) phase: Phase,
    /// For each rank, true if it is considered failed.
    pub(crate) failed: Vec<bool>,
    /// Address at which the survivors connect, if this rank is the root of the new group.
    pub(crate) endpoint: String,
    /// A digest of what the program has set on the communicator of the rank.
    pub(crate) settings: u64,
    /// A value of the program, of which the survivors take the smallest.
    pub(crate) value: u64,
}

impl View {
    /// Returns the ranks that are considered failed.
    pub(crate) fn failed_ranks(&self) -> Vec<Rank> {
        (0..self.failed.len()).filter(|&rank| self.failed[rank]).collect()
    }
}

/// The new group, as one of its ranks sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Membership {
    pub(crate) attempt: u32,
    /// Rank in the new group.
    pub(crate) rank: Rank,
    /// Size of the new group.
    pub(crate) ranks: usize,
    /// For each old rank, true if it failed.
    pub(crate) failed: Vec<bool>,
    pub(crate) endpoint: String,
    /// True if the digests of what was set on the members are equal. They can differ if a failure
    /// came between two calls that all ranks had to make.
    pub(crate) settings_agree: bool,
    /// The smallest value of the members.
    pub(crate) value: u64,
}

/// This rank was excluded from the new group, according to the contained rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Excluded(pub(crate) Rank);

/// The state of the agreement at one rank.
#[derive(Clone, Debug)]
pub(crate) struct Agreement {
    rank: Rank,
    own: View,
    /// For each rank, true if its failure is certain. Other failed ranks were only excluded for
    /// their silence.
    confirmed_failed: Vec<bool>,
    peers: Vec<PeerState>,
    /// The attempt in which this rank connected, until all ranks propose a new attempt.
    connected: Option<u32>,
}

/// The state of one peer.
#[derive(Clone, Debug, Default)]
struct PeerState {
    view: Option<View>,
    /// Time of its last message.
    last_heard: Duration,
    /// Time since which another rank considers it failed.
    suspected_since: Option<Duration>,
}

impl Agreement {
    /// Starts an agreement. The failure of `failed` ranks is certain already.
    pub(crate) fn new(rank: Rank, failed: Vec<bool>, now: Duration) -> Self {
        let peers = vec![PeerState { last_heard: now, ..PeerState::default() }; failed.len()];
        let confirmed_failed = failed.clone();
        let view = View {
            attempt: 0,
            phase: Phase::Proposing,
            failed,
            endpoint: String::new(),
            settings: 0,
            value: u64::MAX,
        };
        Self { rank, own: view, confirmed_failed, peers, connected: None }
    }

    /// Sets the digest of what the program has set on this rank.
    pub(crate) fn with_settings(mut self, settings: u64) -> Self {
        self.own.settings = settings;
        self
    }

    /// Sets the value of the program on this rank.
    pub(crate) fn with_value(mut self, value: u64) -> Self {
        self.own.value = value;
        self
    }

    /// Returns the view to send.
    pub(crate) fn own(&self) -> &View {
        &self.own
    }

    /// Handles the view of `peer`.
    ///
    /// # Errors
    /// [`Excluded`] if `peer` considers this rank failed.
    pub(crate) fn on_view(
        &mut self,
        peer: Rank,
        view: View,
        now: Duration,
    ) -> std::result::Result<(), Excluded> {
        if view.failed.len() != self.own.failed.len() || peer == self.rank {
            return Ok(());
        }
        if view.failed[self.rank] {
            return Err(Excluded(peer));
        }
        for (state, _) in self.peers.iter_mut().zip(&view.failed).filter(|(_, failed)| **failed) {
            state.suspected_since.get_or_insert(now);
        }
        // Views can be equal only within one attempt, so all ranks follow the highest.
        if view.attempt > self.own.attempt {
            self.restart(view.attempt);
        }
        self.peers[peer].last_heard = now;
        self.peers[peer].view = Some(view);
        Ok(())
    }

    /// Handles the certain failure of `peer`, after all of its messages have been read.
    pub(crate) fn on_failure(&mut self, peer: Rank) {
        self.confirmed_failed[peer] = true;
        self.exclude(peer);
    }

    /// Excludes `peer`, which may still run and even continue itself: see
    /// [`Agreement::is_majority_without`].
    pub(crate) fn exclude(&mut self, peer: Rank) {
        // Other ranks may already use a group that was committed, so it does not change any more.
        // The death is then noticed on the new communicator.
        if self.own.failed[peer] || self.is_committed() {
            return;
        }
        self.own.failed[peer] = true;
        if self.own.phase == Phase::Connected {
            self.restart(self.own.attempt + 1);
        }
    }

    /// Adopts the failures that others have reported for a while.
    ///
    /// The others may only have excluded a silent rank, so this needs a majority.
    pub(crate) fn accept_suspicions(&mut self, now: Duration) {
        let is_old =
            |peer: &Rank| self.peers[*peer].suspected_since.is_some_and(|time| now > time + SUSPICION_TIME);
        let suspected: Vec<Rank> = self.survivors().filter(is_old).collect();
        if self.is_majority_without(&suspected) {
            suspected.into_iter().for_each(|peer| self.exclude(peer));
        }
    }

    /// Returns the survivors that have been silent for longer than `patience`.
    pub(crate) fn unresponsive(&self, now: Duration, patience: Duration) -> Vec<Rank> {
        self.peers().filter(|&peer| now > self.peers[peer].last_heard + patience).collect()
    }

    /// Returns the survivors except this rank.
    pub(crate) fn peers(&self) -> impl Iterator<Item = Rank> + '_ {
        self.survivors().filter(|&peer| peer != self.rank)
    }

    /// Returns the excluded ranks that may still run.
    pub(crate) fn excluded(&self) -> impl Iterator<Item = Rank> + '_ {
        (0..self.confirmed_failed.len()).filter(|&peer| self.own.failed[peer] && !self.confirmed_failed[peer])
    }

    /// Returns whether the survivors without `silent` are a majority.
    ///
    /// The majority is counted among all ranks whose failure is not certain, including ranks that
    /// were excluded before. So two groups cannot both have a majority.
    pub(crate) fn is_majority_without(&self, silent: &[Rank]) -> bool {
        let living = self.confirmed_failed.iter().filter(|failed| !**failed).count();
        2 * (self.survivors().count() - silent.len()) > living
    }

    /// Returns whether this rank has to provide the endpoint.
    pub(crate) fn needs_endpoint(&self) -> bool {
        self.survivors().next() == Some(self.rank) && self.own.endpoint.is_empty()
    }

    /// Sets the endpoint of the new group.
    pub(crate) fn set_endpoint(&mut self, endpoint: String) {
        self.own.endpoint = endpoint;
    }

    /// Returns the new group, once all survivors agree on it and its endpoint is known.
    pub(crate) fn membership(&self) -> Option<Membership> {
        let View { attempt, phase, failed, .. } = &self.own;
        let agrees = |peer: Rank| {
            self.view_of(peer).is_some_and(|view| view.attempt == *attempt && view.failed == *failed)
        };
        // A rank that completed the majority may have failed since.
        let enough = self.excluded().next().is_none() || self.is_majority_without(&[]);
        if *phase != Phase::Proposing || !enough || !self.survivors().all(agrees) {
            return None;
        }
        let endpoint =
            self.survivors().next().and_then(|root| self.view_of(root)).map(|view| view.endpoint.clone());
        // The values are read now, because a member that fails from here on may have committed.
        let views = || self.survivors().filter_map(|peer| self.view_of(peer));
        Some(Membership {
            settings_agree: views().all(|view| view.settings == self.own.settings),
            value: views().map(|view| view.value).min().unwrap_or(u64::MAX),
            attempt: *attempt,
            rank: self.survivors().take_while(|&peer| peer != self.rank).count(),
            ranks: self.survivors().count(),
            failed: failed.clone(),
            endpoint: endpoint.filter(|endpoint| !endpoint.is_empty())?,
        })
    }

    /// Starts to connect. Nobody can commit an earlier attempt any more, so its connections are
    /// dropped.
    pub(crate) fn begin_connect(&mut self) {
        self.connected = None;
    }

    /// Handles a successful connection to all survivors.
    pub(crate) fn on_connected(&mut self) {
        self.connected = Some(self.own.attempt);
        self.own.phase = Phase::Connected;
    }

    /// Handles a failed connection.
    pub(crate) fn on_connect_failed(&mut self) {
        self.restart(self.own.attempt + 1);
    }

    /// Returns whether this rank may continue with the group that it is connected to.
    pub(crate) fn is_committed(&self) -> bool {
        let Some(connected) = self.connected else { return false };
        let is_connected = |peer| {
            self.view_of(peer).is_some_and(|view| view.attempt == connected && view.phase >= Phase::Connected)
        };
        let mut views = self.peers.iter().filter_map(|peer| peer.view.as_ref());
        let committed = |view: &View| view.attempt == connected && view.phase == Phase::Committed;
        self.own.phase >= Phase::Connected && self.survivors().all(is_connected) || views.any(committed)
    }

    /// Commits the group that this rank is connected to.
    pub(crate) fn commit(&mut self) {
        if let Some(connected) = self.connected {
            // This rank may have begun a later attempt before it heard of the commit.
            (self.own.attempt, self.own.phase) = (connected, Phase::Committed);
        }
    }

    fn restart(&mut self, attempt: u32) {
        self.own.attempt = attempt;
        self.own.phase = Phase::Proposing;
        // Each attempt has a secret of its own, so the root opens another endpoint for it.
        self.own.endpoint.clear();
    }

    fn survivors(&self) -> impl Iterator<Item = Rank> + '_ {
        (0..self.own.failed.len()).filter(|&peer| !self.own.failed[peer])
    }

    fn view_of(&self, peer: Rank) -> Option<&View> {
        if peer == self.rank { Some(&self.own) } else { self.peers[peer].view.as_ref() }
    }
}

/// Time before a reported failure is adopted. The event of a real failure arrives within it, after
/// the last messages of the rank.
const SUSPICION_TIME: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests;
