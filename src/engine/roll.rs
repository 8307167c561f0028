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
pub(crate) enum Stage {
    /// It finds out who is left.
    Counting,
    /// It is connected to all others.
    Met,
    /// It knows that all are.
    Decided,
}

/// What a rank says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) attempt: u32,
    pub(crate) stage: Stage,
    /// By rank: who takes no part any more.
    pub(crate) gone: Vec<bool>,
    /// Where those that are left can meet, if it is this rank that holds the meeting.
    pub(crate) place: String,
}

/// The ranks that are left, as one of them sees the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Company {
    pub(crate) attempt: u32,
    /// This rank's number among them, and how many there are.
    pub(crate) rank: Rank,
    pub(crate) ranks: usize,
    /// By old rank.
    pub(crate) gone: Vec<bool>,
    pub(crate) place: String,
}

/// The others have gone on without this rank; one of them said so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LeftBehind(pub(super) Rank);

/// What one rank knows of the count.
#[derive(Clone, Debug)]
pub(super) struct Roll {
    rank: Rank,
    own: Count,
    /// By rank: who is known to take no part any more, and not only left out for its silence.
    ended: Vec<bool>,
    others: Vec<Other>,
    /// The attempt in which this rank has met the others, until all count anew.
    met: Option<u32>,
}

/// What a rank knows of another one.
#[derive(Clone, Debug, Default)]
struct Other {
    said: Option<Count>,
    /// When it last said something.
    heard: Duration,
    /// Since when a third one says that it is gone.
    rumoured: Option<Duration>,
}

impl Roll {
    /// Begins to count; `gone` are known to be so already.
    pub(super) fn new(rank: Rank, gone: Vec<bool>, now: Duration) -> Self {
        let others = vec![Other { heard: now, ..Other::default() }; gone.len()];
        let ended = gone.clone();
        let own = Count { attempt: 0, stage: Stage::Counting, gone, place: String::new() };
        Self { rank, own, ended, others, met: None }
    }

    /// What this rank has to say.
    pub(super) fn own(&self) -> &Count {
        &self.own
    }

    /// `from` has said something.
    pub(super) fn hear(
        &mut self,
        from: Rank,
        count: Count,
        now: Duration,
    ) -> std::result::Result<(), LeftBehind> {
        if count.gone.len() != self.own.gone.len() || from == self.rank {
            return Ok(());
        }
        if count.gone[self.rank] {
            return Err(LeftBehind(from));
        }
        for (other, _) in self.others.iter_mut().zip(&count.gone).filter(|(_, gone)| **gone) {
            other.rumoured.get_or_insert(now);
        }
        if count.attempt > self.own.attempt {
            self.count_anew(count.attempt);
        }
        self.others[from].heard = now;
        self.others[from].said = Some(count);
        Ok(())
    }

    /// `peer` is gone, and all that it ever said has been heard.
    pub(super) fn lose(&mut self, peer: Rank) {
        self.ended[peer] = true;
        self.leave_out(peer);
    }

    /// Goes on without `peer`, which may be there, and even go on itself: see [`Roll::is_majority_without`].
    pub(super) fn leave_out(&mut self, peer: Rank) {
        if self.own.gone[peer] || self.is_decided() {
            return;
        }
        self.own.gone[peer] = true;
        if self.own.stage == Stage::Met {
            self.count_anew(self.own.attempt + 1);
        }
    }

    /// Believes what others have said for a while. They may only have left somebody out.
    pub(super) fn believe(&mut self, now: Duration) {
        let is_old = |peer: &Rank| self.others[*peer].rumoured.is_some_and(|since| now > since + RUMOUR_TIME);
        let rumoured: Vec<Rank> = self.left().filter(is_old).collect();
        if self.is_majority_without(&rumoured) {
            rumoured.into_iter().for_each(|peer| self.leave_out(peer));
        }
    }

    /// Those that are not gone and have said nothing for so long.
    pub(super) fn silent(&self, now: Duration, patience: Duration) -> Vec<Rank> {
        self.others().filter(|&peer| now > self.others[peer].heard + patience).collect()
    }

    /// The others that are not gone.
    pub(super) fn others(&self) -> impl Iterator<Item = Rank> + '_ {
        self.left().filter(|&peer| peer != self.rank)
    }

    /// Those left out that may be there.
    pub(super) fn left_out(&self) -> impl Iterator<Item = Rank> + '_ {
        (0..self.ended.len()).filter(|&peer| self.own.gone[peer] && !self.ended[peer])
    }

    /// Whether those that are left without `silent` ones are more than half of all that are not known to have ended,
    /// those left out before included: two such groups cannot be.
    pub(super) fn is_majority_without(&self, silent: &[Rank]) -> bool {
        let living = self.ended.iter().filter(|ended| !**ended).count();
        2 * (self.left().count() - silent.len()) > living
    }

    /// Whether this rank has to say where to meet.
    pub(super) fn needs_place(&self) -> bool {
        self.left().next() == Some(self.rank) && self.own.place.is_empty()
    }

    /// Says where to meet.
    pub(super) fn set_place(&mut self, place: String) {
        self.own.place = place;
    }

    /// Those that are left, once all of them agree on that, and on where to meet.
    pub(super) fn company(&self) -> Option<Company> {
        let Count { attempt, stage, gone, .. } = &self.own;
        let agrees = |peer: Rank| {
            self.said(peer).is_some_and(|count| count.attempt == *attempt && count.gone == *gone)
        };
        // Somebody with whom they were enough may have ended since.
        let enough = self.left_out().next().is_none() || self.is_majority_without(&[]);
        if *stage != Stage::Counting || !enough || !self.left().all(agrees) {
            return None;
        }
        let place = self.left().next().and_then(|root| self.said(root)).map(|count| count.place.clone());
        Some(Company {
            attempt: *attempt,
            rank: self.left().take_while(|&peer| peer != self.rank).count(),
            ranks: self.left().count(),
            gone: gone.clone(),
            place: place.filter(|place| !place.is_empty())?,
        })
    }

    /// All agree: nobody can decide for an earlier attempt any more, and what was made in it is to be dropped.
    pub(super) fn convene(&mut self) {
        self.met = None;
    }

    /// This rank has met the others.
    pub(super) fn meet(&mut self) {
        self.met = Some(self.own.attempt);
        self.own.stage = Stage::Met;
    }

    /// This rank could not meet the others.
    pub(super) fn miss(&mut self) {
        self.count_anew(self.own.attempt + 1);
    }

    /// Whether this rank may go with those that it has met.
    pub(super) fn is_decided(&self) -> bool {
        let Some(met) = self.met else { return false };
        let has_met =
            |peer| self.said(peer).is_some_and(|count| count.attempt == met && count.stage >= Stage::Met);
        let somebody_goes = self.others.iter().filter_map(|other| other.said.as_ref());
        let goes = |count: &Count| count.attempt == met && count.stage == Stage::Decided;
        self.own.stage >= Stage::Met && self.left().all(has_met) || somebody_goes.clone().any(goes)
    }

    /// Says so.
    pub(super) fn decide(&mut self) {
        if let Some(met) = self.met {
            (self.own.attempt, self.own.stage) = (met, Stage::Decided);
        }
    }

    fn count_anew(&mut self, attempt: u32) {
        self.own.attempt = attempt;
        self.own.stage = Stage::Counting;
        self.own.place.clear();
    }

    fn left(&self) -> impl Iterator<Item = Rank> + '_ {
        (0..self.own.gone.len()).filter(|&peer| !self.own.gone[peer])
    }

    fn said(&self, peer: Rank) -> Option<&Count> {
        if peer == self.rank { Some(&self.own) } else { self.others[peer].said.as_ref() }
    }
}

/// How long somebody who is said to be gone may still be heard: the own news of its end come with its last words.
const RUMOUR_TIME: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests;
