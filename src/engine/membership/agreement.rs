//! How ranks agree on who is left, by notes that they repeat until everybody has them.
//!
//! A rank says which *attempt* it is at, how far it is, and who is gone. While *counting* it waits until all
//! that are left name the same ones as gone; these then connect to each other, away from here. Who is
//! connected has *met*, and who knows that all have met has *decided*: it says so and goes. Whoever sees
//! a rank end before that counts anew, in the next attempt, but stays ready to go with the old one.
//!
//! Why no two that are left decide differently: a rank that counts anew waits for all others to count in the same
//! attempt with the same ones gone. None of them has decided, or it would be gone or counting no more; and a rank
//! is only gone for those who have read all that it ever said, its decision included, which they would have followed.

use crate::schedule::Rank;
use std::time::Duration;

/// How far a rank is in its attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// It finds out who is left.
    Proposing,
    /// It is connected to all others.
    Connected,
    /// It knows that all are.
    Committed,
}

/// What a rank says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) attempt: u32,
    pub(crate) phase: Phase,
    /// By rank: who takes no part any more.
    pub(crate) failed: Vec<bool>,
    /// Where those that are left can meet, if it is this rank that holds the meeting.
    pub(crate) endpoint: String,
}

/// The ranks that are left, as one of them sees the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Membership {
    pub(crate) attempt: u32,
    /// This rank's number among them, and how many there are.
    pub(crate) rank: Rank,
    pub(crate) ranks: usize,
    /// By old rank.
    pub(crate) failed: Vec<bool>,
    pub(crate) endpoint: String,
}

/// The others have gone on without this rank; one of them said so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Excluded(pub(crate) Rank);

/// What one rank knows of the count.
#[derive(Clone, Debug)]
pub(crate) struct Agreement {
    rank: Rank,
    own: View,
    /// By rank: who is known to take no part any more, and not only left out for its silence.
    confirmed_failed: Vec<bool>,
    peers: Vec<PeerState>,
    /// The attempt in which this rank has met the others, until all count anew.
    connected: Option<u32>,
}

/// What a rank knows of another one.
#[derive(Clone, Debug, Default)]
struct PeerState {
    view: Option<View>,
    /// When it last said something.
    last_heard: Duration,
    /// Since when a third one says that it is gone.
    suspected_since: Option<Duration>,
}

impl Agreement {
    /// Begins to count; `gone` are known to be so already.
    pub(crate) fn new(rank: Rank, gone: Vec<bool>, now: Duration) -> Self {
        let others = vec![PeerState { last_heard: now, ..PeerState::default() }; gone.len()];
        let ended = gone.clone();
        let own = View { attempt: 0, phase: Phase::Proposing, failed: gone, endpoint: String::new() };
        Self { rank, own, confirmed_failed: ended, peers: others, connected: None }
    }

    /// What this rank has to say.
    pub(crate) fn own(&self) -> &View {
        &self.own
    }

    /// `from` has said something.
    pub(crate) fn on_view(
        &mut self,
        from: Rank,
        count: View,
        now: Duration,
    ) -> std::result::Result<(), Excluded> {
        if count.failed.len() != self.own.failed.len() || from == self.rank {
            return Ok(());
        }
        if count.failed[self.rank] {
            return Err(Excluded(from));
        }
        for (other, _) in self.peers.iter_mut().zip(&count.failed).filter(|(_, gone)| **gone) {
            other.suspected_since.get_or_insert(now);
        }
        if count.attempt > self.own.attempt {
            self.restart(count.attempt);
        }
        self.peers[from].last_heard = now;
        self.peers[from].view = Some(count);
        Ok(())
    }

    /// `peer` is gone, and all that it ever said has been heard.
    pub(crate) fn on_failure(&mut self, peer: Rank) {
        self.confirmed_failed[peer] = true;
        self.exclude(peer);
    }

    /// Goes on without `peer`, which may be there, and even go on itself: see [`Agreement::is_majority_without`].
    pub(crate) fn exclude(&mut self, peer: Rank) {
        if self.own.failed[peer] || self.is_committed() {
            return;
        }
        self.own.failed[peer] = true;
        if self.own.phase == Phase::Connected {
            self.restart(self.own.attempt + 1);
        }
    }

    /// Believes what others have said for a while. They may only have left somebody out.
    pub(crate) fn accept_suspicions(&mut self, now: Duration) {
        let is_old =
            |peer: &Rank| self.peers[*peer].suspected_since.is_some_and(|since| now > since + SUSPICION_TIME);
        let rumoured: Vec<Rank> = self.survivors().filter(is_old).collect();
        if self.is_majority_without(&rumoured) {
            rumoured.into_iter().for_each(|peer| self.exclude(peer));
        }
    }

    /// Those that are not gone and have said nothing for so long.
    pub(crate) fn unresponsive(&self, now: Duration, patience: Duration) -> Vec<Rank> {
        self.peers().filter(|&peer| now > self.peers[peer].last_heard + patience).collect()
    }

    /// The others that are not gone.
    pub(crate) fn peers(&self) -> impl Iterator<Item = Rank> + '_ {
        self.survivors().filter(|&peer| peer != self.rank)
    }

    /// Those left out that may be there.
    pub(crate) fn excluded(&self) -> impl Iterator<Item = Rank> + '_ {
        (0..self.confirmed_failed.len()).filter(|&peer| self.own.failed[peer] && !self.confirmed_failed[peer])
    }

    /// Whether those that are left without `silent` ones are more than half of all that are not known to have ended,
    /// those left out before included: two such groups cannot be.
    pub(crate) fn is_majority_without(&self, silent: &[Rank]) -> bool {
        let living = self.confirmed_failed.iter().filter(|ended| !**ended).count();
        2 * (self.survivors().count() - silent.len()) > living
    }

    /// Whether this rank has to say where to meet.
    pub(crate) fn needs_endpoint(&self) -> bool {
        self.survivors().next() == Some(self.rank) && self.own.endpoint.is_empty()
    }

    /// Says where to meet.
    pub(crate) fn set_endpoint(&mut self, place: String) {
        self.own.endpoint = place;
    }

    /// Those that are left, once all of them agree on that, and on where to meet.
    pub(crate) fn membership(&self) -> Option<Membership> {
        let View { attempt, phase: stage, failed: gone, .. } = &self.own;
        let agrees = |peer: Rank| {
            self.view_of(peer).is_some_and(|count| count.attempt == *attempt && count.failed == *gone)
        };
        // Somebody with whom they were enough may have ended since.
        let enough = self.excluded().next().is_none() || self.is_majority_without(&[]);
        if *stage != Phase::Proposing || !enough || !self.survivors().all(agrees) {
            return None;
        }
        let place =
            self.survivors().next().and_then(|root| self.view_of(root)).map(|count| count.endpoint.clone());
        Some(Membership {
            attempt: *attempt,
            rank: self.survivors().take_while(|&peer| peer != self.rank).count(),
            ranks: self.survivors().count(),
            failed: gone.clone(),
            endpoint: place.filter(|place| !place.is_empty())?,
        })
    }

    /// All agree: nobody can decide for an earlier attempt any more, and what was made in it is to be dropped.
    pub(crate) fn begin_connect(&mut self) {
        self.connected = None;
    }

    /// This rank has met the others.
    pub(crate) fn on_connected(&mut self) {
        self.connected = Some(self.own.attempt);
        self.own.phase = Phase::Connected;
    }

    /// This rank could not meet the others.
    pub(crate) fn on_connect_failed(&mut self) {
        self.restart(self.own.attempt + 1);
    }

    /// Whether this rank may go with those that it has met.
    pub(crate) fn is_committed(&self) -> bool {
        let Some(met) = self.connected else { return false };
        let has_met = |peer| {
            self.view_of(peer).is_some_and(|count| count.attempt == met && count.phase >= Phase::Connected)
        };
        let somebody_goes = self.peers.iter().filter_map(|other| other.view.as_ref());
        let goes = |count: &View| count.attempt == met && count.phase == Phase::Committed;
        self.own.phase >= Phase::Connected && self.survivors().all(has_met) || somebody_goes.clone().any(goes)
    }

    /// Says so.
    pub(crate) fn commit(&mut self) {
        if let Some(met) = self.connected {
            (self.own.attempt, self.own.phase) = (met, Phase::Committed);
        }
    }

    fn restart(&mut self, attempt: u32) {
        self.own.attempt = attempt;
        self.own.phase = Phase::Proposing;
        self.own.endpoint.clear();
    }

    fn survivors(&self) -> impl Iterator<Item = Rank> + '_ {
        (0..self.own.failed.len()).filter(|&peer| !self.own.failed[peer])
    }

    fn view_of(&self, peer: Rank) -> Option<&View> {
        if peer == self.rank { Some(&self.own) } else { self.peers[peer].view.as_ref() }
    }
}

/// How long somebody who is said to be gone may still be heard: the own news of its end come with its last words.
const SUSPICION_TIME: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests;
