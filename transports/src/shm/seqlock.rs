//! Protocol of control messages between ranks that share memory, without their memory.
//!
//! A rank writes its control messages into a mailbox of its own, which all ranks read: message `n`
//! into entry `n mod ENTRIES`. The writer waits for no reader. A reader that is more than
//! [`ENTRIES`] messages behind has lost the oldest. A reader that reads while an entry is
//! overwritten notices this, and reads on from the messages that are left. A rank's last messages
//! are never overwritten, and those tell how it ended.
//!
//! Data race freedom, in words: every word is atomic. The seq is removed before an entry is written
//! (release fence) and restored after it (release). A reader loads the seq (acquire), the words,
//! and the seq again (acquire fence). If both seqs are the expected one, no word is of another
//! message.

use crate::MAX_CONTROL_MSG_BYTES;
use crate::sync::{AtomicU64, Ordering, fence};

/// Control messages that a mailbox holds.
pub(crate) const ENTRIES: u64 = 8;
/// Words of a message's text.
pub(crate) const ENTRY_WORDS: usize = MAX_CONTROL_MSG_BYTES / 8;

/// Access to the words of one rank's mailbox.
pub(crate) trait ControlMailbox {
    /// Returns one more than the number of the message in this message's entry, or zero if the
    /// entry is empty.
    fn seq(&self, number: u64) -> &AtomicU64;
    /// Returns the length of the message in that entry, in bytes.
    fn length(&self, number: u64) -> &AtomicU64;
    /// Returns word `index` of the [`ENTRY_WORDS`] words of that entry.
    fn word(&self, number: u64, index: usize) -> &AtomicU64;
}

/// Writes message `number`. The owner counts from 0 and omits no number.
pub(crate) fn write(mailbox: &impl ControlMailbox, number: u64, message: &[u8]) {
    let message = &message[..message.len().min(MAX_CONTROL_MSG_BYTES)];
    mailbox.seq(number).store(0, Ordering::Relaxed);
    fence(Ordering::Release);
    mailbox.length(number).store(message.len() as u64, Ordering::Relaxed);
    for (index, bytes) in message.chunks(8).enumerate() {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        mailbox.word(number, index).store(u64::from_le_bytes(word), Ordering::Relaxed);
    }
    mailbox.seq(number).store(number + 1, Ordering::Release);
}

/// Position of one rank in another rank's mailbox.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MailboxReader {
    next: u64,
}

impl MailboxReader {
    /// Returns the next message, or `None` if there is none.
    pub(crate) fn read(&mut self, mailbox: &impl ControlMailbox) -> Option<Vec<u8>> {
        // One entry tells which message is the oldest that may be left. That message is in one of
        // the entries from there.
        for _ in 0..=ENTRIES {
            // Untrusted seqs may have led to the last possible number.
            let expected = self.next.checked_add(1)?;
            let seq = mailbox.seq(self.next).load(Ordering::Acquire);
            if seq == expected {
                let text = read_entry(mailbox, self.next);
                fence(Ordering::Acquire);
                if mailbox.seq(self.next).load(Ordering::Relaxed) == seq {
                    self.next = expected;
                    return Some(text);
                }
            } else if seq > expected && seq < u64::MAX {
                self.next = seq.saturating_sub(ENTRIES).max(expected);
            } else {
                return None;
            }
        }
        None
    }
}

/// Returns the text of an entry. The owner may have corrupted its length.
fn read_entry(mailbox: &impl ControlMailbox, number: u64) -> Vec<u8> {
    let length = (mailbox.length(number).load(Ordering::Relaxed) as usize).min(MAX_CONTROL_MSG_BYTES);
    let words = (0..length.div_ceil(8)).map(|index| mailbox.word(number, index).load(Ordering::Relaxed));
    let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    bytes.truncate(length);
    bytes
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    struct Model(Vec<AtomicU64>);

    impl Model {
        fn new() -> Self {
            Self((0..ENTRIES as usize * (2 + ENTRY_WORDS)).map(|_| AtomicU64::new(0)).collect())
        }

        fn at(&self, number: u64, index: usize) -> &AtomicU64 {
            &self.0[(number % ENTRIES) as usize * (2 + ENTRY_WORDS) + index]
        }
    }

    impl ControlMailbox for Model {
        fn seq(&self, number: u64) -> &AtomicU64 {
            self.at(number, 0)
        }

        fn length(&self, number: u64) -> &AtomicU64 {
            self.at(number, 1)
        }

        fn word(&self, number: u64, index: usize) -> &AtomicU64 {
            self.at(number, 2 + index)
        }
    }

    #[test]
    fn messages_are_read_in_order_and_last_survive() {
        let (mailbox, mut reader) = (Model::new(), MailboxReader::default());
        assert_eq!(reader.read(&mailbox), None);
        for number in 0..ENTRIES {
            write(&mailbox, number, &vec![number as u8; number as usize * 100]);
        }
        for number in 0..ENTRIES {
            assert_eq!(reader.read(&mailbox), Some(vec![number as u8; number as usize * 100]));
        }
        for number in ENTRIES..10 * ENTRIES + 3 {
            write(&mailbox, number, &number.to_le_bytes());
        }
        let read: Vec<_> = std::iter::from_fn(|| reader.read(&mailbox)).collect();
        let last: Vec<_> =
            (9 * ENTRIES + 3..10 * ENTRIES + 3).map(|number| number.to_le_bytes().to_vec()).collect();
        assert_eq!(read, last);
    }

    #[test]
    fn garbage_in_mailbox_is_tolerated() {
        for garbage in [1, 2, 9, 1 << 40, u64::MAX - 1, u64::MAX] {
            let (mailbox, mut reader) = (Model::new(), MailboxReader::default());
            mailbox.0.iter().for_each(|word| word.store(garbage, Ordering::Relaxed));
            for _ in 0..20 {
                assert!(reader.read(&mailbox).is_none_or(|message| message.len() <= MAX_CONTROL_MSG_BYTES));
            }
        }
    }

    #[test]
    fn sequence_number_overflow_yields_nothing() {
        let (mailbox, mut reader) = (Model::new(), MailboxReader { next: u64::MAX - 1 });
        mailbox.seq(u64::MAX - 1).store(u64::MAX, Ordering::Relaxed);
        assert_eq!(reader.read(&mailbox), Some(Vec::new()));
        assert_eq!(reader.read(&mailbox), None);
    }

    #[test]
    fn torn_message_is_never_read() {
        let mailbox = Model::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..200_000 {
                    write(&mailbox, number, &[number as u8; 64]);
                }
            });
            let (mut reader, mut last) = (MailboxReader::default(), 0);
            while last < 200_000 {
                if let Some(message) = reader.read(&mailbox) {
                    assert!(
                        reader.next > last && message == [(reader.next - 1) as u8; 64],
                        "message {}",
                        reader.next
                    );
                    last = reader.next;
                }
            }
        });
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;

    /// One entry that is written twice, for control messages of two words.
    #[derive(Default)]
    struct Model {
        words: [AtomicU64; 4],
    }

    impl ControlMailbox for Model {
        fn seq(&self, _: u64) -> &AtomicU64 {
            &self.words[0]
        }

        fn length(&self, _: u64) -> &AtomicU64 {
            &self.words[1]
        }

        fn word(&self, _: u64, index: usize) -> &AtomicU64 {
            &self.words[2 + index]
        }
    }

    #[test]
    fn loom_reader_sees_whole_message_or_none() {
        loom::model(|| {
            let mailbox = Arc::new(Model::default());
            let theirs = Arc::clone(&mailbox);
            let writing = loom::thread::spawn(move || {
                write(&*theirs, 0, &[1; 16]);
                write(&*theirs, ENTRIES, &[2; 16]);
            });
            let mut reader = MailboxReader::default();
            if let Some(message) = reader.read(&*mailbox) {
                assert_eq!(message, if reader.next == 1 { [1; 16] } else { [2; 16] });
            }
            writing.join().unwrap();
        });
    }
}
