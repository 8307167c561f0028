//! Receives that wait for messages, and messages that wait for receives.
//!
//! The oldest entries are in a list, because no other search is faster while the list is short.
//! Entries beyond [`LISTED_MAX`] are found by hash, so that a peer with many messages does not make
//! searches longer.

use crate::engine::messages::matching::{MessageInfo, Pattern};
use std::collections::hash_map::{Entry, HashMap};
use std::collections::{BTreeSet, VecDeque};

/// A description by which one side of a match is found: the pattern of a receive, or a message.
pub(super) trait Key: Copy {
    /// The description of the other side.
    type Other: Key;

    /// Returns whether the two match.
    fn matches(&self, other: &Self::Other) -> bool;

    /// Returns the patterns by which the two sides find each other: that of a receive, or all that
    /// accept a message.
    fn patterns(&self) -> impl Iterator<Item = Pattern>;
}

impl Key for Pattern {
    type Other = MessageInfo;

    fn matches(&self, message: &MessageInfo) -> bool {
        self.accepts(message)
    }

    fn patterns(&self) -> impl Iterator<Item = Pattern> {
        std::iter::once(*self)
    }
}

impl Key for MessageInfo {
    type Other = Pattern;

    fn matches(&self, pattern: &Pattern) -> bool {
        pattern.accepts(self)
    }

    fn patterns(&self) -> impl Iterator<Item = Pattern> {
        let (source, tag) = (Some(self.source), Some(self.tag));
        let pairs = [(source, tag), (source, None), (None, tag), (None, None)];
        let patterns = pairs.into_iter().map(|(source, tag)| Pattern { source, tag });
        patterns.filter(|pattern| pattern.accepts(self))
    }
}

/// Entries in the order in which they came.
#[derive(Debug)]
pub(super) struct Waiting<K, V> {
    oldest: VecDeque<(K, V)>,
    /// The entries that are younger than all of `oldest`.
    indexed: Indexed<K, V>,
}

impl<K, V> Default for Waiting<K, V> {
    fn default() -> Self {
        let indexed = Indexed { entries: HashMap::new(), queues: HashMap::new(), next: 0 };
        Self { oldest: VecDeque::new(), indexed }
    }
}

impl<K: Key, V> Waiting<K, V> {
    pub(super) fn is_empty(&self) -> bool {
        self.oldest.is_empty() && self.indexed.entries.is_empty()
    }

    /// Returns all entries, in any order.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn entries(&self) -> impl Iterator<Item = &(K, V)> {
        self.oldest.iter().chain(self.indexed.entries.values())
    }

    /// Adds the youngest entry.
    pub(super) fn push(&mut self, key: K, value: V) {
        // Entries of the list count as the oldest. So a new entry stays out of it as long as older
        // ones are found by hash.
        if self.indexed.entries.is_empty() && self.oldest.len() < LISTED_MAX {
            self.oldest.push_back((key, value));
        } else {
            self.indexed.push(key, value);
        }
    }

    /// Takes the oldest entry that matches.
    pub(super) fn take(&mut self, other: &K::Other) -> Option<(K, V)> {
        match self.oldest.iter().position(|(key, _)| key.matches(other)) {
            Some(index) => self.oldest.remove(index),
            None if self.indexed.entries.is_empty() => None,
            None => self.indexed.find(other).and_then(|number| self.indexed.remove(number)),
        }
    }

    /// Returns the oldest entry that matches, and leaves it.
    pub(super) fn peek(&self, other: &K::Other) -> Option<&K> {
        let listed = self.oldest.iter().map(|(key, _)| key).find(|key| key.matches(other));
        listed.or_else(|| self.indexed.entries.get(&self.indexed.find(other)?).map(|(key, _)| key))
    }

    /// Takes all entries for which `choose` returns true, the oldest first.
    pub(super) fn take_where(&mut self, choose: impl Fn(&K, &V) -> bool) -> Vec<(K, V)> {
        let (taken, kept): (VecDeque<_>, _) =
            self.oldest.drain(..).partition(|(key, value)| choose(key, value));
        self.oldest = kept;
        let mut taken = Vec::from(taken);
        let chosen = self.indexed.entries.iter().filter(|(_, (key, value))| choose(key, value));
        let mut numbers: Vec<u64> = chosen.map(|(&number, _)| number).collect();
        // The map has no order, but numbers grow with time.
        numbers.sort_unstable();
        taken.extend(numbers.into_iter().filter_map(|number| self.indexed.remove(number)));
        taken
    }
}

/// Entries that are found by hash.
#[derive(Debug)]
struct Indexed<K, V> {
    /// Entries by their numbers, which grow with time.
    entries: HashMap<u64, (K, V)>,
    /// Numbers of the entries by pattern. An entry is in the queue of each of its patterns, and no
    /// queue is empty.
    queues: HashMap<Pattern, BTreeSet<u64>>,
    next: u64,
}

impl<K: Key, V> Indexed<K, V> {
    #[cold]
    fn push(&mut self, key: K, value: V) {
        let number = self.next;
        self.next += 1;
        for pattern in key.patterns() {
            self.queues.entry(pattern).or_default().insert(number);
        }
        self.entries.insert(number, (key, value));
    }

    /// Returns the number of the oldest entry that matches.
    #[cold]
    fn find(&self, other: &K::Other) -> Option<u64> {
        other.patterns().filter_map(|pattern| self.queues.get(&pattern)?.first().copied()).min()
    }

    fn remove(&mut self, number: u64) -> Option<(K, V)> {
        let (key, value) = self.entries.remove(&number)?;
        for pattern in key.patterns() {
            if let Entry::Occupied(mut queue) = self.queues.entry(pattern) {
                queue.get_mut().remove(&number);
                if queue.get().is_empty() {
                    queue.remove();
                }
            }
        }
        Some((key, value))
    }
}

/// Longest list, whose search takes as long as a search by hash.
const LISTED_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_beyond_the_list_are_indexed_and_forgotten() {
        const INDEXED: u64 = 10_000;
        let mut waiting = Waiting::default();
        let tags = 0..LISTED_MAX as u64 + INDEXED;
        tags.clone().for_each(|tag| waiting.push(MessageInfo::new(1, tag, 0), tag));
        let exact = |tag| Pattern { source: Some(1), tag: Some(tag) };
        assert_eq!((waiting.oldest.len(), waiting.indexed.entries.len()), (LISTED_MAX, INDEXED as usize));
        assert!((LISTED_MAX as u64..tags.end).all(|tag| waiting.indexed.queues[&exact(tag)].len() == 1));
        for tag in tags.rev() {
            assert_eq!(waiting.take(&exact(tag)).map(|found| found.1), Some(tag));
        }
        assert!(waiting.is_empty() && waiting.indexed.queues.is_empty(), "nothing is left in the index");
    }
}
