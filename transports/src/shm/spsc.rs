//! Protocol of a FIFO with one sender and one receiver, without its memory.
//!
//! Slots are used in turn. The *seq* of a slot is the number (from 1) of the message in it. The
//! sender writes the message, then the seq (release). The receiver polls the seq of the next slot
//! (acquire), and so needs no other word to know that a message has arrived. After the receiver is
//! done with a message, it publishes how many messages it has *consumed* (release). The sender
//! reads that counter (acquire) only when it has used all slots that it knows to be free.
//!
//! Data race freedom, in words: message `m` is written to its slot after the sender saw
//! `consumed > m - slots`. The receiver stored that value after its last read of the message before
//! it in that slot. The message is read after its seq was seen, and the seq is stored after the
//! last write. The loom test below checks every interleaving of two slots and three messages.

use crate::sync::{AtomicU64, Ordering};

/// Access to the words of a FIFO.
pub(crate) trait Ring {
    /// Returns the number of slots.
    fn capacity(&self) -> u64;
    /// Returns the seq of the slot that message `number` uses.
    fn seq(&self, number: u64) -> &AtomicU64;
    /// Returns the number of messages that the receiver has consumed.
    fn consumed(&self) -> &AtomicU64;
}

/// Value of a word that the peer should not have written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Invalid(pub(crate) u64);

/// State of the sender.
#[derive(Debug, Default)]
pub(crate) struct Sender {
    /// Messages sent.
    sent: u64,
    /// Messages that the receiver was seen to have consumed.
    consumed: u64,
}

impl Sender {
    /// Returns the number of the next message, if its slot is free.
    pub(crate) fn reserve(&mut self, slots: &impl Ring) -> Result<Option<u64>, Invalid> {
        if self.sent - self.consumed >= slots.capacity() {
            let consumed = slots.consumed().load(Ordering::Acquire);
            // Untrusted: the counter may only grow, and not past the number of messages sent.
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

/// State of the receiver.
#[derive(Debug, Default)]
pub(crate) struct Receiver {
    /// Messages that the receiver has consumed.
    consumed: u64,
}

impl Receiver {
    /// Returns the number of the next message, if it has arrived.
    pub(crate) fn arrived(&self, slots: &impl Ring) -> Result<Option<u64>, Invalid> {
        let seq = slots.seq(self.consumed).load(Ordering::Acquire);
        let expected = self.consumed + 1;
        if seq == expected {
            return Ok(Some(self.consumed));
        }
        // Untrusted: until the message arrives, this is the seq of the message before in this slot,
        // or of none.
        match seq == expected.saturating_sub(slots.capacity()) {
            true => Ok(None),
            false => Err(Invalid(seq)),
        }
    }

    /// Returns the slot of the message to the sender.
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

    // SAFETY: loom checks exactly this claim: the cells are never accessed at the same time.
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
