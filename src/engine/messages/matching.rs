//! Matching: which receive gets which message.
//!
//! Messages of one source are matched in the order in which they were sent, and receives in the
//! order in which they were posted, as in MPI.

use crate::schedule::Rank;
use std::collections::VecDeque;

/// The source, the tag and the length of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct MessageInfo {
    /// The rank that sent the message.
    pub source: Rank,
    /// The tag that the sender gave it.
    pub tag: u64,
    /// Its length in bytes.
    pub bytes: usize,
}

impl MessageInfo {
    pub(crate) fn new(source: Rank, tag: u64, bytes: usize) -> Self {
        Self { source, tag, bytes }
    }
}

/// The first of the tags of this library's own messages. Receives of any tag do not accept them.
pub(crate) const INTERNAL_TAGS: u64 = 1 << 63;

/// The messages that a receive accepts. `None` accepts every source, or every tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    pub(crate) source: Option<Rank>,
    pub(crate) tag: Option<u64>,
}

impl Pattern {
    fn accepts(&self, message: &MessageInfo) -> bool {
        self.source.is_none_or(|source| source == message.source)
            && self.tag.map_or(message.tag < INTERNAL_TAGS, |tag| tag == message.tag)
    }
}

/// The posted receives `R` that have no message, and the arrived messages `A` that have no receive.
#[derive(Debug)]
pub(super) struct Matcher<R, A> {
    posted: VecDeque<(Pattern, R)>,
    arrived: VecDeque<(MessageInfo, A)>,
}

impl<R, A> Default for Matcher<R, A> {
    fn default() -> Self {
        Self { posted: VecDeque::new(), arrived: VecDeque::new() }
    }
}

impl<R, A> Matcher<R, A> {
    /// Takes the first arrived message that `pattern` accepts.
    pub(super) fn take_arrived(&mut self, pattern: &Pattern) -> Option<(MessageInfo, A)> {
        let index = self.arrived.iter().position(|(message, _)| pattern.accepts(message))?;
        self.arrived.remove(index)
    }

    /// Takes the first posted receive that accepts `message`.
    pub(super) fn take_posted(&mut self, message: &MessageInfo) -> Option<(Pattern, R)> {
        let index = self.posted.iter().position(|(pattern, _)| pattern.accepts(message))?;
        self.posted.remove(index)
    }

    /// Posts a receive that no arrived message is for.
    pub(super) fn post(&mut self, pattern: Pattern, receive: R) {
        self.posted.push_back((pattern, receive));
    }

    /// Keeps a message that no posted receive is for.
    pub(super) fn arrive(&mut self, message: MessageInfo, content: A) {
        self.arrived.push_back((message, content));
    }

    /// Returns the first arrived message that `pattern` accepts, and leaves it.
    pub(super) fn peek(&self, pattern: &Pattern) -> Option<MessageInfo> {
        self.arrived.iter().map(|(message, _)| *message).find(|message| pattern.accepts(message))
    }

    pub(super) fn posted(&self) -> impl Iterator<Item = &Pattern> {
        self.posted.iter().map(|(pattern, _)| pattern)
    }

    /// Takes all posted receives for which `choose` returns true.
    pub(super) fn take_posted_where(&mut self, choose: impl Fn(&Pattern) -> bool) -> Vec<(Pattern, R)> {
        let (taken, kept) = self.posted.drain(..).partition(|(pattern, _)| choose(pattern));
        self.posted = kept;
        Vec::from(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(source: Option<Rank>, tag: Option<u64>) -> Pattern {
        Pattern { source, tag }
    }

    #[test]
    fn receives_match_in_posting_order() {
        let mut matcher = Matcher::<&str, ()>::default();
        matcher.post(pattern(Some(1), Some(5)), "exact");
        matcher.post(pattern(None, Some(5)), "any source");
        matcher.post(pattern(Some(1), None), "any tag");
        let message = MessageInfo::new(1, 5, 0);
        let order: Vec<_> = (0..4).map(|_| matcher.take_posted(&message).map(|found| found.1)).collect();
        assert_eq!(order, [Some("exact"), Some("any source"), Some("any tag"), None]);
    }

    #[test]
    fn messages_match_in_sending_order() {
        let mut matcher = Matcher::<(), u32>::default();
        for (source, tag, content) in [(1, 5, 10), (2, 5, 20), (1, 6, 11), (1, 5, 12)] {
            matcher.arrive(MessageInfo::new(source, tag, 0), content);
        }
        let mut take = |source, tag| matcher.take_arrived(&pattern(source, tag)).map(|found| found.1);
        assert_eq!(take(Some(1), Some(6)), Some(11), "another tag overtakes");
        assert_eq!(take(None, Some(5)), Some(10));
        assert_eq!(take(Some(1), None), Some(12));
        assert_eq!((take(Some(3), None), take(None, None), take(None, None)), (None, Some(20), None));
    }
}
