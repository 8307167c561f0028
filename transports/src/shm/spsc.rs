//! The protocol of a FIFO with one sender and one receiver, apart from its memory.
//!
//! Ring are used in turn. The *seq* of a slot is the number (from 1) of the
//! message in it: the sender writes the message, then the seq (release); the
//! receiver polls the seq of the slot that is next (acquire) and so needs no
//! other word to know that a message is there. When the receiver is through it
//! publishes how many messages it has *consumed* (release), which the sender
//! reads (acquire) only when it has run out of slots that it knows to be free.
//!
//! Data race freedom, in words: message `m` is written to its slot after the
//! sender saw `consumed > m - slots`, which the receiver stored after its last
//! read of the message before it in that slot; and it is read after its seq
//! was seen, stored after the last write. The loom test below checks every
//! interleaving of two slots and three messages.

use crate::sync::{AtomicU64, Ordering};

/// Where the words of a FIFO are.
pub(crate) trait Ring {
    /// How many slots there are.
    fn capacity(&self) -> u64;
    /// Stamp of the slot that message `number` uses.
    fn seq(&self, number: u64) -> &AtomicU64;
    /// How many messages the receiver is through with.
    fn consumed(&self) -> &AtomicU64;
}

/// A word that the peer should not have written; its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Invalid(pub(crate) u64);

/// The sender's own account.
#[derive(Debug, Default)]
pub(crate) struct Sender {
    /// Messages sent.
    sent: u64,
    /// Messages that the receiver was seen to be through with.
    consumed: u64,
}

impl Sender {
    /// The number of the next message, if its slot is free.
    pub(crate) fn reserve(&mut self, slots: &impl Ring) -> Result<Option<u64>, Invalid> {
        if self.sent - self.consumed >= slots.capacity() {
            let consumed = slots.consumed().load(Ordering::Acquire);
            // Untrusted: it may only grow, and not past what was sent.
            if consumed < self.consumed || consumed > self.sent {
                return Err(Invalid(consumed));
            }
            self.consumed = consumed;
        }
        Ok((self.sent - self.consumed < slots.capacity()).then_some(self.sent))
    }

    /// Shows the message just written to the receiver.
    pub(crate) fn publish(&mut self, slots: &impl Ring) {
        slots.seq(self.sent).store(self.sent + 1, Ordering::Release);
        self.sent += 1;
    }
}

/// The receiver's own account.
#[derive(Debug, Default)]
pub(crate) struct Receiver {
    /// Messages that it is through with.
    consumed: u64,
}

impl Receiver {
    /// The number of the next message, if it is here.
    pub(crate) fn arrived(&self, slots: &impl Ring) -> Result<Option<u64>, Invalid> {
        let seq = slots.seq(self.consumed).load(Ordering::Acquire);
        let expected = self.consumed + 1;
        if seq == expected {
            return Ok(Some(self.consumed));
        }
        // Untrusted: until then it is the seq of the message before in this slot, or of none.
        match seq == expected.saturating_sub(slots.capacity()) {
            true => Ok(None),
            false => Err(Invalid(seq)),
        }
    }

    /// Gives the slot of the message back.
    pub(crate) fn release(&mut self, slots: &impl Ring) {
        self.consumed += 1;
        slots.consumed().store(self.consumed, Ordering::Release);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    const SLOTS: usize = 2;
    const MESSAGES: u64 = 3;

    struct Model {
        seqs: [AtomicU64; SLOTS],
        consumed: AtomicU64,
        data: [UnsafeCell<u64>; SLOTS],
    }

    impl Ring for Model {
        fn capacity(&self) -> u64 {
            SLOTS as u64
        }

        fn seq(&self, number: u64) -> &AtomicU64 {
            &self.seqs[number as usize % SLOTS]
        }

        fn consumed(&self) -> &AtomicU64 {
            &self.consumed
        }
    }

    // SAFETY: what loom is there to check: the cells are never accessed at the same time.
    unsafe impl Sync for Model {}

    #[test]
    fn loom_messages_arrive_once_and_whole() {
        loom::model(|| {
            let model = Arc::new(Model {
                seqs: [AtomicU64::new(0), AtomicU64::new(0)],
                consumed: AtomicU64::new(0),
                data: [UnsafeCell::new(0), UnsafeCell::new(0)],
            });
            let theirs = Arc::clone(&model);
            let sending = thread::spawn(move || {
                let mut sender = Sender::default();
                for message in 0..MESSAGES {
                    let number = loop {
                        match sender.reserve(&*theirs).expect("an honest receiver") {
                            Some(number) => break number,
                            None => thread::yield_now(),
                        }
                    };
                    // SAFETY: the slot is reserved; loom fails the test if anybody else is in it.
                    theirs.data[number as usize % SLOTS].with_mut(|cell| unsafe { *cell = 100 + message });
                    sender.publish(&*theirs);
                }
            });
            let mut receiver = Receiver::default();
            for message in 0..MESSAGES {
                let number = loop {
                    match receiver.arrived(&*model).expect("an honest sender") {
                        Some(number) => break number,
                        None => thread::yield_now(),
                    }
                };
                // SAFETY: the message has arrived; loom fails the test if anybody writes it now.
                let found = model.data[number as usize % SLOTS].with(|cell| unsafe { *cell });
                assert_eq!(found, 100 + message);
                receiver.release(&*model);
            }
            sending.join().unwrap();
        });
    }
}
