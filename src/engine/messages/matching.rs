//! Matching of messages and receives.
//!
//! Messages of one source are matched in the order in which they were sent, and receives in the
//! order in which they were posted, as in MPI.

use crate::engine::messages::waiting::Waiting;
use crate::schedule::Rank;

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Pattern {
    pub(crate) source: Option<Rank>,
    pub(crate) tag: Option<u64>,
}

impl Pattern {
    pub(super) fn accepts(&self, message: &MessageInfo) -> bool {
        self.source.is_none_or(|source| source == message.source)
            && self.tag.map_or(message.tag < INTERNAL_TAGS, |tag| tag == message.tag)
    }
}

/// The posted receives `R` that have no message, and the arrived messages `A` that have no receive.
#[derive(Debug)]
pub(super) struct Matcher<R, A> {
    posted: Waiting<Pattern, R>,
    arrived: Waiting<MessageInfo, A>,
    /// Number of posted receives that accept every source.
    any_source: usize,
}

impl<R, A> Default for Matcher<R, A> {
    fn default() -> Self {
        Self { posted: Waiting::default(), arrived: Waiting::default(), any_source: 0 }
    }
}

impl<R, A> Matcher<R, A> {
    /// Takes the first arrived message that `pattern` accepts.
    pub(super) fn take_arrived(&mut self, pattern: &Pattern) -> Option<(MessageInfo, A)> {
        self.arrived.take(pattern)
    }

    /// Takes the first posted receive that accepts `message`.
    pub(super) fn take_posted(&mut self, message: &MessageInfo) -> Option<(Pattern, R)> {
        let found = self.posted.take(message)?;
        self.any_source -= usize::from(found.0.source.is_none());
        Some(found)
    }

    /// Posts a receive that no arrived message is for.
    pub(super) fn post(&mut self, pattern: Pattern, receive: R) {
        self.any_source += usize::from(pattern.source.is_none());
        self.posted.push(pattern, receive);
    }

    /// Keeps a message that no posted receive is for.
    pub(super) fn arrive(&mut self, message: MessageInfo, content: A) {
        self.arrived.push(message, content);
    }

    /// Returns the first arrived message that `pattern` accepts, and leaves it.
    pub(super) fn peek(&self, pattern: &Pattern) -> Option<MessageInfo> {
        self.arrived.peek(pattern).copied()
    }

    /// Returns the messages that have no receive.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn arrived(&self) -> impl Iterator<Item = &(MessageInfo, A)> {
        self.arrived.entries()
    }

    /// Returns whether receives are posted.
    pub(super) fn has_posted(&self) -> bool {
        !self.posted.is_empty()
    }

    /// Returns whether receives from any source are posted.
    pub(super) fn awaits_any_source(&self) -> bool {
        self.any_source > 0
    }

    /// Takes all posted receives for which `choose` returns true.
    pub(super) fn take_posted_where(&mut self, choose: impl Fn(&Pattern) -> bool) -> Vec<(Pattern, R)> {
        let taken = self.posted.take_where(|pattern, _| choose(pattern));
        self.any_source -= taken.iter().filter(|(pattern, _)| pattern.source.is_none()).count();
        taken
    }

    /// Drops all arrived messages for which `choose` returns true.
    pub(super) fn drop_arrived_where(&mut self, choose: impl Fn(&MessageInfo, &A) -> bool) {
        self.arrived.take_where(choose);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use unisono_transports::rng::Rng;

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
    /// A matcher as its rules say: lists that every search reads from the beginning.
    #[derive(Default)]
    struct Model {
        posted: Vec<(Pattern, u32)>,
        arrived: Vec<(MessageInfo, u32)>,
    }

    impl Model {
        fn take_posted(&mut self, message: &MessageInfo) -> Option<(Pattern, u32)> {
            let index = self.posted.iter().position(|(pattern, _)| pattern.accepts(message))?;
            Some(self.posted.remove(index))
        }

        fn take_arrived(&mut self, pattern: &Pattern) -> Option<(MessageInfo, u32)> {
            let index = self.arrived.iter().position(|(message, _)| pattern.accepts(message))?;
            Some(self.arrived.remove(index))
        }
    }

    #[test]
    fn matches_follow_the_model_beyond_the_list() {
        let mut random = Rng::new(5, 0);
        let (mut matcher, mut model) = (Matcher::<u32, u32>::default(), Model::default());
        for number in 0..20_000 {
            // Most of the time grows one side, so that both get far beyond the list.
            let posts = random.below(100) < if number / 4_000 % 2 == 0 { 80 } else { 20 };
            let (source, tag) = (random.below(3), random.below(40) as u64);
            let tag = if random.one_in(9) { tag | INTERNAL_TAGS } else { tag };
            if posts {
                let wanted = pattern(
                    (!random.one_in(4)).then_some(source),
                    (tag >= INTERNAL_TAGS || !random.one_in(4)).then_some(tag),
                );
                assert_eq!(
                    matcher.peek(&wanted),
                    model.arrived.iter().map(|found| found.0).find(|found| wanted.accepts(found))
                );
                let found = matcher.take_arrived(&wanted);
                assert_eq!(found, model.take_arrived(&wanted));
                if found.is_none() {
                    matcher.post(wanted, number);
                    model.posted.push((wanted, number));
                }
            } else {
                let message = MessageInfo::new(source, tag, 0);
                let found = matcher.take_posted(&message);
                assert_eq!(found, model.take_posted(&message));
                if found.is_none() {
                    matcher.arrive(message, number);
                    model.arrived.push((message, number));
                }
            }
            let any_source = model.posted.iter().any(|(pattern, _)| pattern.source.is_none());
            assert_eq!(
                (matcher.has_posted(), matcher.awaits_any_source()),
                (!model.posted.is_empty(), any_source)
            );
        }
        let of_source = |pattern: &Pattern| pattern.source == Some(1);
        let expected: Vec<_> = model.posted.extract_if(.., |(pattern, _)| of_source(pattern)).collect();
        assert_eq!(matcher.take_posted_where(of_source), expected);
        matcher.drop_arrived_where(|message, _| message.source == 0);
        model.arrived.retain(|(message, _)| message.source != 0);
        for (message, number) in model.arrived {
            let exact = pattern(Some(message.source), Some(message.tag));
            assert_eq!(matcher.take_arrived(&exact), Some((message, number)));
        }
        assert_eq!(matcher.peek(&pattern(None, None)), None);
    }
}
