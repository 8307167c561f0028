//! A rank that has the job's secret and breaks the protocol, for tests.
//!
//! [`break_protocol`] wraps the fabric of a rank that has met the others. The rank then takes part
//! in the job by the code of any rank, until a moment that the seed chooses. At that moment it does
//! one wrong thing: to its frames, with bytes of its own on a connection, with words of shared
//! memory, or with control messages.

mod control;
mod frame;
mod link;
mod unframed;

use crate::rng::Rng;
use crate::shm::raw_memory::RawMemory;
use crate::{Fabric, Header, Link, MAX_CONTROL_MSG_BYTES};
use control::RawControl;
use frame::Frame;
use link::RawLink;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// A wrong thing that a peer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// A frame is longer or shorter than it should be.
    Length,
    /// A frame comes several times.
    Repeat,
    /// Two frames change places.
    Swap,
    /// A frame never comes.
    Withhold,
    /// A word of a frame's tag is another: its sequence number, its operation, its count.
    Tag,
    /// A frame comes on another lane.
    Lane,
    /// The contents of frames are others: lengths of objects, tickets of groups, offsets.
    Contents,
    /// A frame comes again later, when its operation has ended.
    Late,
    /// A frame of an operation to come.
    Early,
    /// Frames of messages that nobody expects: announcements, grants, data, credit.
    Message,
    /// Bytes that are no frame: unknown kinds, lengths and lanes, half a frame, too much credit.
    Unframed,
    /// Words of shared memory: counters, stamps, lengths, tags.
    Memory,
    /// Control messages of failures, waits, goodbyes and memberships.
    Control,
    /// Bytes on a control connection that are no message.
    UnframedControl,
    /// Nothing comes any more.
    Silence,
    /// A connection ends.
    Close,
}

impl Wrong {
    /// All that a peer can do over connections.
    pub const OVER_TCP: &[Self] = &[
        Self::Length,
        Self::Repeat,
        Self::Swap,
        Self::Withhold,
        Self::Tag,
        Self::Lane,
        Self::Contents,
        Self::Late,
        Self::Early,
        Self::Message,
        Self::Unframed,
        Self::Control,
        Self::UnframedControl,
        Self::Silence,
        Self::Close,
    ];
    /// All that a peer can do in shared memory.
    pub const IN_MEMORY: &[Self] = &[
        Self::Memory,
        Self::Length,
        Self::Memory,
        Self::Repeat,
        Self::Memory,
        Self::Swap,
        Self::Memory,
        Self::Withhold,
        Self::Tag,
        Self::Lane,
        Self::Contents,
        Self::Late,
        Self::Early,
        Self::Message,
        Self::Control,
        Self::Silence,
    ];

    /// Returns whether results may be others than those of an honest peer. The others leave every
    /// frame with its tag and its contents.
    pub fn may_change_results(self) -> bool {
        let honest =
            [Self::Withhold, Self::Late, Self::Control, Self::UnframedControl, Self::Silence, Self::Close];
        !honest.contains(&self)
    }
}

/// The peer, as its own thread sees it.
pub struct RawPeer {
    state: Arc<Mutex<State>>,
    /// A thread that writes into shared memory.
    writer: Option<JoinHandle<()>>,
}

/// The state that the links and the control channel of the peer share.
struct State {
    random: Rng,
    wrong: Wrong,
    /// Number of events until the wrong thing; frames that are sent and looks for frames count.
    events_left: usize,
    counts_looks: bool,
    has_acted: bool,
    /// Nothing is sent any more.
    is_silent: bool,
    lanes: usize,
    slot_bytes: usize,
    memory: Option<RawMemory>,
    /// The last frames that this rank sent.
    sent: VecDeque<Frame>,
    /// The tags of the last frames that arrived.
    arrived: VecDeque<Frame>,
    /// Control messages to post.
    notes: Vec<control::Note>,
}

/// Returns the fabric of a rank that does `wrong` once. The seed chooses when, and how.
pub fn break_protocol(fabric: Fabric, wrong: Wrong, seed: u64) -> (Fabric, RawPeer) {
    let mut random = Rng::new(seed, 1);
    // These need a frame with its contents, which frames that were sent before have not.
    let counts_looks = !matches!(wrong, Wrong::Contents | Wrong::Late) && random.one_in(3);
    let memory = fabric.window.as_ref().map(|window| {
        let (segments, layout) = window.memory();
        RawMemory { rank: fabric.rank, segments, layout }
    });
    let state = State {
        events_left: random.below(if counts_looks { 30 } else { 5 }),
        random,
        wrong,
        counts_looks,
        has_acted: false,
        is_silent: false,
        lanes: fabric.geometry.lanes,
        slot_bytes: fabric.geometry.slot_bytes,
        memory,
        sent: VecDeque::new(),
        arrived: VecDeque::new(),
        notes: Vec::new(),
    };
    let state = Arc::new(Mutex::new(state));
    let wrapped = |link: Option<Box<dyn Link>>| {
        link.map(|link| Box::new(RawLink::new(link, Arc::clone(&state))) as Box<dyn Link>)
    };
    let control = Box::new(RawControl { inner: fabric.control, state: Arc::clone(&state) });
    let links = fabric.links.into_iter().map(wrapped).collect();
    (Fabric { links, control, ..fabric }, RawPeer { state, writer: None })
}

impl RawPeer {
    /// Lets a peer whose wrong thing concerns neither a frame nor a look do it now, or from now on.
    pub fn between_calls(&mut self) {
        let mut state = lock(&self.state);
        if matches!(state.wrong, Wrong::Memory | Wrong::Control | Wrong::UnframedControl | Wrong::Silence)
            && state.random.one_in(2)
        {
            state.has_acted = true;
            let (wrong, on_thread) = (state.wrong, state.random.one_in(2));
            match wrong {
                Wrong::Memory if on_thread && self.writer.is_none() => {
                    let (memory, random) = (state.memory.clone(), state.random.clone());
                    self.writer = memory.map(|memory| std::thread::spawn(|| write_on(memory, random)));
                }
                Wrong::Memory => state.write_memory(),
                Wrong::Silence => state.is_silent = true,
                _ => state.make_notes(),
            }
        }
    }

    /// Returns whether the peer has done its wrong thing.
    pub fn has_acted(&self) -> bool {
        lock(&self.state).has_acted
    }
}

impl Drop for RawPeer {
    fn drop(&mut self) {
        // A panic of the writer is one of this code, and the test notes it.
        self.writer.take().map(JoinHandle::join);
    }
}

/// Writes words into shared memory, beside the calls of all ranks.
fn write_on(memory: RawMemory, mut random: Rng) {
    for _ in 0..WRITES {
        let value = random.next_u64() >> random.below(64);
        memory.write(&mut random, value);
        if random.one_in(8) {
            std::thread::yield_now();
        }
    }
}

fn lock(state: &Mutex<State>) -> std::sync::MutexGuard<'_, State> {
    state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl State {
    /// Counts a frame to send, or a look for one. Returns true if it is time.
    fn is_time(&mut self, is_look: bool) -> bool {
        if self.has_acted || is_look != self.counts_looks {
            return false;
        }
        self.has_acted = self.events_left == 0;
        self.events_left = self.events_left.saturating_sub(1);
        self.has_acted
    }

    /// Returns a number that means something to the protocol.
    fn number(&mut self) -> u64 {
        let slot_bytes = self.slot_bytes as u64;
        let small = self.random.below(7) as u64;
        match self.random.below(16) {
            0..6 => small,
            6 => u64::MAX - small,
            7 => (1 << 63) + small,
            8 => (1 << 62) - small,
            9 => (1 << 32) - small,
            10 => slot_bytes + small,
            11 => slot_bytes - small,
            // Limits of messages: stored bytes, and the longest that is sent without a grant.
            12 => (2 << 20) - 64 * small,
            13 => (128 << 10) + small,
            14 => 64 * small,
            _ => self.random.next_u64() >> self.random.below(64),
        }
    }

    /// Returns a number of the protocol: of a tag that was sent or has arrived, or another.
    fn word(&mut self) -> u64 {
        let frames = if self.random.one_in(2) { &self.sent } else { &self.arrived };
        let tag = frames.get(self.random.below(frames.len())).map(|frame| frame.tag);
        match tag.filter(|_| self.random.one_in(2)) {
            Some(tag) => tag.0[1 + self.random.below(3)],
            None => self.number(),
        }
    }

    /// Returns a tag of the protocol, or one with a word of another value.
    fn tag(&mut self) -> crate::Tag {
        let frames = if self.random.one_in(2) { &self.sent } else { &self.arrived };
        let known = frames.get(self.random.below(frames.len())).map(|frame| frame.tag);
        let mut tag = known.unwrap_or_default();
        if known.is_none() || self.random.one_in(2) {
            self.change_tag(&mut tag);
        }
        tag
    }

    /// Changes a word of a tag.
    fn change_tag(&mut self, tag: &mut crate::Tag) {
        let word = self.random.below(4);
        let now = tag.0[word];
        tag.0[word] = match self.random.below(4) {
            0 => now.wrapping_add(1),
            1 => now.wrapping_sub(1),
            2 => now ^ 1 << self.random.below(64),
            _ => self.number(),
        };
    }

    /// Writes words of shared memory, in the midst of what others do.
    fn write_memory(&mut self) {
        let times = self.random.choose(&[1, 3, 30, 300]);
        for time in 0..times {
            let value = self.number();
            let lane = self.random.below(2 * self.lanes).min(self.lanes - 1);
            // Many are whole messages, whose lengths are read first.
            let kind = self.random.choose(&[0, 1, 1, 1, 1, 2, 3, 4, 5, 6]);
            // The last lane is that of messages.
            let tag = if lane + 1 == self.lanes { self.message_tag(kind) } else { self.tag() };
            let Some(memory) = &self.memory else { return };
            match self.random.below(4) {
                0 => memory.forge(&mut self.random, lane, Header { tag, bytes: value as usize }),
                _ => memory.write(&mut self.random, value),
            }
            if time % 16 == 15 {
                std::thread::yield_now();
            }
        }
    }

    /// Makes control messages that the control channel posts next.
    fn make_notes(&mut self) {
        let times = self.random.choose(&[1, 1, 2, 20, 2_000]);
        for _ in 0..times {
            let note = control::note(self);
            self.notes.push(note);
        }
    }

    /// Keeps a frame, to repeat it or a part of it.
    fn keep(frames: &mut VecDeque<Frame>, frame: Frame) {
        frames.truncate(KEPT_MAX - 1);
        frames.push_front(frame);
    }

    /// Returns random bytes.
    fn noise(&mut self, bytes: usize) -> Vec<u8> {
        (0..bytes).map(|_| self.random.next_u64() as u8).collect()
    }
}

/// Words that a thread writes.
const WRITES: usize = 3_000;
/// Frames that are kept.
const KEPT_MAX: usize = 8;
const _: () =
    assert!(MAX_CONTROL_MSG_BYTES < u16::MAX as usize, "lengths of control messages have two bytes");
