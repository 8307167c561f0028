//! Fuzz target: frames of two peers and calls of this rank, in any order.
//!
//! For all frames that peers send, no call may panic, and a round takes a bounded number of frames.
//! This rank stores no more of a peer than it must, and every message ends once.

use super::frame::Frame;
use super::scripted::{SLOT_BYTES, Script, ending};
use super::{
    ANNOUNCED_MAX, Arrived, EAGER_BYTES_MAX, EAGER_CREDIT, EAGER_OVERHEAD, FRAMES_PER_LOOK, FRAMES_PER_PROBE,
    REFUSED,
};
use crate::error::Result;
use crate::schedule::Rank;
use unisono_transports::Tag;

/// Plays bytes as a script.
pub(crate) fn fuzz(bytes: &[u8]) {
    let mut play = Play { script: Script::new(RANKS), rest: bytes, frames: 0, last: None };
    let ended = play.run();
    play.check_store();
    let Play { mut script, .. } = play;
    if ended.is_err() {
        // As the engine does after an error.
        script.messages.fail_all(&ending());
    } else {
        (1..RANKS).for_each(|peer| script.messages.fail_peer(peer, &ending()));
        script.messages.fail_any_source(&ending());
    }
    assert_eq!(script.outcomes().lost, 0);
    script.messages.fail_all(&ending());
    assert!(!script.messages.is_active() && script.messages.unsent() == 0);
    let outcomes = script.outcomes();
    assert_eq!((outcomes.lost, outcomes.ended()), (0, outcomes.posted));
}

struct Play<'b> {
    script: Script,
    rest: &'b [u8],
    /// Number of frames that have been made.
    frames: usize,
    /// The last frame, which may be repeated.
    last: Option<(Rank, Tag, usize)>,
}

impl Play<'_> {
    fn run(&mut self) -> Result<()> {
        while let Some(step) = self.byte() {
            let peer = 1 + usize::from(step >> 7);
            match step & 0x0f {
                0..=5 => self.frame(step & 0x0f, peer),
                6 => self.repeat(),
                7 => {
                    let (tag, bytes) = (self.word() & TAGS, self.length());
                    self.script.send(if step & 0x10 == 0 { peer } else { 0 }, tag, bytes);
                }
                8 | 9 => {
                    let (source, tag, bytes) = (self.word(), self.word(), self.length());
                    let source = Some(source as usize % (RANKS + 1)).filter(|&source| source < RANKS);
                    self.script.receive(source, Some(tag & TAGS).filter(|_| step & 0x10 == 0), bytes);
                }
                10 => self.probe(peer)?,
                11 => self.script.set_full(peer, step & 0x10 == 0),
                12 => self.script.messages.fail_peer(peer, &ending()),
                _ => self.look()?,
            }
        }
        self.look()
    }

    fn byte(&mut self) -> Option<u8> {
        let (&byte, tail) = self.rest.split_first()?;
        self.rest = tail;
        Some(byte)
    }

    /// Returns a number that means something to the protocol.
    fn word(&mut self) -> u64 {
        match self.byte().unwrap_or(0) {
            255 => u64::MAX,
            254 => 1 << 63,
            253 => REFUSED | 5,
            252 => EAGER_CREDIT as u64,
            251 => EAGER_BYTES_MAX as u64,
            250 => SLOT_BYTES as u64,
            249 => 2 * SLOT_BYTES as u64,
            248 => EAGER_OVERHEAD as u64,
            247 => EAGER_CREDIT as u64 / 4,
            small => u64::from(small % 16),
        }
    }

    /// Returns the length of a buffer of this rank.
    fn length(&mut self) -> usize {
        self.word().min(3 * SLOT_BYTES as u64) as usize
    }

    /// Lets a frame arrive.
    fn frame(&mut self, kind: u8, peer: Rank) {
        let [first, second, third] = [self.word(), self.word(), self.word()];
        let bytes = self.length().min(SLOT_BYTES);
        let tag = match kind {
            0 => Frame::Eager { tag: first & TAGS }.encode(),
            1 => Frame::Request { tag: first & TAGS, bytes: second, send: third }.encode(),
            2 => Frame::Grant { send: first, recv: second }.encode(),
            3 => Frame::Data { recv: first, offset: second }.encode(),
            4 => Frame::Credit { bytes: first }.encode(),
            _ => Tag([first, second, third, 0]),
        };
        let bytes = if matches!(kind, 1 | 2 | 4) && third != u64::MAX { 0 } else { bytes };
        self.last = Some((peer, tag, bytes));
        self.arrive(1);
    }

    /// Repeats the last frame.
    fn repeat(&mut self) {
        let times = 1 << (self.byte().unwrap_or(0) % 16);
        self.arrive(times);
    }

    fn arrive(&mut self, times: usize) {
        let Some((peer, tag, bytes)) = self.last else { return };
        let times = times.min(FRAMES_MAX - self.frames);
        self.frames += times;
        (0..times).for_each(|_| self.script.arrive_raw(peer, tag, bytes));
    }

    fn taken(&self) -> [usize; RANKS] {
        std::array::from_fn(|peer| self.script.taken(peer))
    }

    fn look(&mut self) -> Result<()> {
        let former = self.taken();
        let looked = self.script.progress();
        assert!(self.taken().iter().zip(former).all(|(taken, former)| taken - former <= FRAMES_PER_LOOK));
        (1..RANKS).for_each(|peer| drop(self.script.take_sent(peer)));
        self.check_store();
        looked.map(drop)
    }

    fn probe(&mut self, peer: Rank) -> Result<()> {
        let (source, tag) = (self.word(), self.word());
        let source = Some(peer).filter(|_| source % 2 == 0);
        let former = self.taken();
        let found = self.script.probe(source, Some(tag).filter(|&tag| tag <= TAGS));
        assert!(self.taken().iter().zip(former).all(|(taken, former)| taken - former <= FRAMES_PER_PROBE));
        self.check_store();
        found.map(drop)
    }

    /// Checks what this rank stores of each peer.
    fn check_store(&self) {
        let (mut bytes, mut announced) = ([0; RANKS], [0; RANKS]);
        for (info, content) in self.script.messages.matcher.arrived() {
            match content {
                Arrived::Eager(stored) => bytes[info.source] += stored.len() + EAGER_OVERHEAD,
                Arrived::Request(_) => announced[info.source] += 1,
            }
        }
        // Messages of this rank to itself are its own.
        assert!(bytes[1..].iter().all(|&bytes| bytes <= EAGER_CREDIT), "{bytes:?}");
        assert!(announced.iter().all(|&count| count <= ANNOUNCED_MAX), "{announced:?}");
    }
}

const RANKS: usize = 3;
/// Largest tag of a script.
const TAGS: u64 = 3;
/// Frames of a script.
const FRAMES_MAX: usize = 100_000;

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use unisono_transports::rng::Rng;

    #[test]
    fn scripts_of_any_bytes_keep_the_bounds() {
        for seed in 0..3_000 {
            let mut random = Rng::new(seed, 0);
            // Most scripts make few different frames, so that some of them fit together.
            let end = random.choose(&[16, 64, 256]);
            let bytes: Vec<u8> = (0..random.below(400)).map(|_| random.below(end) as u8).collect();
            fuzz(&bytes);
        }
    }
}
