//! The argument structs of the kernels that carry out schedules.

use super::arguments::{Fifo, Patience};
use super::table::arguments;

arguments! {
    /// One step of a program as the device has it: what is done with which [`Place`]s.
    ///
    /// Its places lie in a row, from `first_place` on: the blocks of a message (for [`Verb::RecvReduce`] first all that are combined,
    /// then all that get results), or what is read, and behind that what is written.
    Act: 24 {
        /// A [`Verb`] as a number.
        0 => verb: u8,
        /// Not 0: results are complete, so that an average is divided.
        1 => finish: u8,
        /// Blocks of the message; of a copy 1; of a reduction what is combined, [`Act::OPERANDS_MAX`] at most.
        2 => operands: u16,
        /// Of a copy or a reduction: how many places get the result, [`Act::OPERANDS_MAX`] at most.
        4 => targets: u16,
        /// How many acts from here on are done at once; 0 and 1: this one alone. Set by [`Act::group`].
        6 => together: u16,
        /// Whom it concerns: sender, receiver, or who must have signalled.
        8 => peer: u32,
        /// Of [`Verb::Recv`] and [`Verb::RecvReduce`]: who gets the results as one message, in the same pass; or [`Act::NOBODY`].
        /// The message received keeps its slot meanwhile: one slot more is needed than without.
        12 => forward: u32,
        /// Of [`Verb::Wait`]: how many signals the peer must have given in this piece.
        16 => signals: u32,
        /// In the table of places.
        20 => first_place: u32,
    }

    /// One block of a rank's memory.
    #[derive(PartialEq, Eq)]
    Place: 12 {
        /// Whose: another rank's only if it is a window's, or that of a [`Lent`] buffer.
        0 => rank: u32,
        /// A [`Space`] as a number.
        4 => space: u32,
        /// Which block.
        8 => index: u32,
    }

    /// Acts that are done one after the other, by one block of threads for each channel.
    Strand: 12 {
        /// Of the [`Interpret::LANES`] of its channel.
        0 => lane: u32,
        /// In the table of acts.
        4 => first_act: u32,
        /// How many.
        8 => acts: u32,
    }

    /// Where one share lies, where shares are uneven. In bytes.
    Share: 24 {
        /// From the start of the buffer.
        0 => start: u64,
        /// Of the share.
        8 => bytes: u64,
        /// From the start of one block to that of the next.
        16 => stride: u64,
    }

    /// A buffer, and how it is cut into shares and blocks: the engine's layout, whose strides the host computes.
    Extent: 40 {
        /// Its first byte.
        0 => base: *mut u8,
        /// In device memory, one for each share; none if all are alike.
        8 => table: *const Share,
        /// Of every share, if they are alike.
        16 => share_bytes: u64,
        /// From block to block, if they are alike.
        24 => stride: u64,
        /// Blocks of a share.
        32 => parts: u32,
        /// Room that has no meaning.
        36 => unused: u32,
    }

    /// The messages between this rank and a peer on one lane. The kernel keeps the counters up to date, so that a launch
    /// that a graph repeats goes on where the last one ended.
    Port: 80 {
        /// To the peer. A slot is a head and data, [`Port::slot_bytes`].
        0 => out: Fifo,
        /// From the peer.
        32 => into: Fifo,
        /// Messages sent.
        64 => sent: u64,
        /// Messages received.
        72 => received: u64,
    }

    /// What every rank reaches of one rank.
    Neighbour: 16 {
        /// Its window: two banks for each channel.
        0 => window: *mut u8,
        /// Its counters, raised by others: a word for each lane and rank (signals), then what only
        /// kernels know; [`Interpret::inbox_words`] in all. In the memory of that rank, as it is the one that waits for them.
        8 => inbox: *mut u64,
    }

    /// The buffers of one rank, where others reach them: cut as theirs are. Null where no program names them.
    Lent: 16 {
        /// The send buffer's first byte.
        0 => input: *mut u8,
        /// That of the receive buffer.
        8 => output: *mut u8,
    }

    /// Arguments of the kernels `schedule_*`: one rank's part in a collective. Launched with `channels` times `strand_count` blocks,
    /// block `channel * strand_count + strand`; all blocks of all ranks must be resident at once.
    Interpret: 288 {
        /// In device memory, as all tables here.
        0 => acts: *const Act,
        /// Of all acts.
        8 => places: *const Place,
        /// `strand_count` of them.
        16 => strands: *const Strand,
        /// Port `(channel * LANES + lane) * ranks + peer`.
        24 => ports: *mut Port,
        /// One for each rank, this one too.
        32 => neighbours: *const Neighbour,
        /// Instances of window programs that each channel has run; kept up to date by the kernel.
        40 => instances: *mut u64,
        /// For each block of the launch, room for `scratch_blocks` of `slice_bytes`.
        48 => scratch: *mut u8,
        /// For each block of the launch, `scratch_blocks` words.
        56 => lengths: *mut u64,
        /// The send buffer; in place, a part of the output.
        64 => input: Extent,
        /// The receive buffer.
        104 => output: Extent,
        /// Of the slices of a block, a multiple of 64.
        144 => slice_bytes: u64,
        /// Of one of the two banks of a channel.
        152 => bank_bytes: u64,
        /// Slices of the longest block, at least one.
        160 => pieces: u64,
        /// Number of the operation: reported, and not compared.
        168 => sequence: u64,
        /// Kind, type, operation, algorithm, root: compared with each peer's.
        176 => what: u64,
        /// Elements: compared with each peer's.
        184 => count: u64,
        /// For [`Op::PreMulSum`](crate::Op::PreMulSum): what the input is multiplied by, made by [`ReduceCopy::factor`](super::ReduceCopy::factor).
        192 => factor: u64,
        /// 1, for the same.
        200 => one: u64,
        /// Of the communicator.
        208 => ranks: u32,
        /// This one.
        212 => rank: u32,
        /// That take part.
        216 => channels: u32,
        /// That the communicator has.
        220 => channels_max: u32,
        /// Of the program, at least one; exactly one if it uses windows.
        224 => strand_count: u32,
        /// Of the program.
        228 => scratch_blocks: u32,
        /// An [`Op`](crate::Op) as a number.
        232 => op: u32,
        /// For [`Op::Avg`](crate::Op::Avg): what complete sums are divided by.
        236 => divisor: u32,
        /// Not 0: the program uses windows, so that instances are counted.
        240 => uses_window: u32,
        /// A [`Protocol`] as a number; both sides of every port have the same.
        244 => protocol: u32,
        /// In device memory, one for each rank; none unless the program names buffers of peers.
        248 => lent: *const Lent,
        /// A word for each rank: not 0 once it has left, with all that it had to do done. None: nobody does.
        256 => left: *const u64,
        /// For all of its waits.
        264 => patience: Patience,
    }

    /// Arguments of the kernels `one_shot_*`: an all_reduce in which each rank stores what it has into the mailboxes of all. Every
    /// block takes the next `block_bytes` of the buffer.
    OneShot: 136 {
        /// The send buffer.
        0 => input: *const u8,
        /// The receive buffer; may be the input.
        8 => output: *mut u8,
        /// In device memory: each rank's mailbox of [`OneShot::mailbox_bytes`], all zeros before the first launch.
        16 => mailboxes: *const *mut u8,
        /// In device memory, for each block: how often it was launched. Kept up to date by the kernel.
        24 => launches: *mut u64,
        /// Of the buffers.
        32 => bytes: u64,
        /// Of each block, a multiple of 64; the same in all launches with these mailboxes.
        40 => block_bytes: u64,
        /// As in [`Interpret`].
        48 => sequence: u64,
        /// As in [`Interpret`].
        56 => what: u64,
        /// As in [`Interpret`].
        64 => count: u64,
        /// As in [`Interpret`].
        72 => factor: u64,
        /// Of the communicator.
        80 => ranks: u32,
        /// This one.
        84 => rank: u32,
        /// Blocks that the mailboxes have room for.
        88 => blocks_max: u32,
        /// An [`Op`](crate::Op) as a number.
        92 => op: u32,
        /// As in [`Interpret`].
        96 => divisor: u32,
        /// [`Protocol::Lines`] or [`Protocol::WideLines`] as a number; the same in all launches with these mailboxes.
        100 => protocol: u32,
        /// As in [`Interpret`].
        104 => left: *const u64,
        /// For all of its waits.
        112 => patience: Patience,
    }
}

/// How messages are handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Protocol {
    /// Data in a slot, then a counter: for bandwidth.
    Slots,
    /// Data and flags together, for latency: every word of 8 bytes has 4 of data, and a flag. Such ports are never used with
    /// another protocol, and their slots are zero at first.
    Lines,
    /// The same, but in pieces of 16 bytes, each with 12 of data and a flag, which are stored whole: for GPUs that
    /// [know how](super::Gpu::has_wide_lines), and not with kernels of one's own.
    WideLines,
}

impl Protocol {
    /// All of them, by number.
    pub const ALL: [Self; 3] = [Self::Slots, Self::Lines, Self::WideLines];
}

/// What an [`Act`] does; the steps of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Verb {
    /// Sends blocks as one message.
    Send,
    /// Stores a message into blocks.
    Recv,
    /// Combines blocks with those of a message.
    RecvReduce,
    /// Copies one place to others.
    Copy,
    /// Combines places, in their order.
    Reduce,
    /// Tells every rank that all acts of this strand so far are done.
    Signal,
    /// Waits for such a signal.
    Wait,
}

/// Which of a rank's memories a [`Place`] is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Space {
    /// The send buffer.
    Input,
    /// The receive buffer.
    Output,
    /// The strand's own, for one piece. A block is as long as what was last put there.
    Scratch,
    /// What peers reach, for one piece.
    Window,
}

impl Act {
    /// No rank, as the receiver of what is forwarded.
    pub const NOBODY: u32 = u32::MAX;
    /// Places that one reduction can combine, or that get its result, and acts that can be done together.
    pub const OPERANDS_MAX: usize = 64;

    /// Marks acts of a strand that can be done at once: waits, and copies of which none touches what another reads or writes, wherever
    /// buffers lie. The waits come first then, which makes no difference to peers: they hear of the copies by a later signal.
    pub fn group(acts: &mut [Act], places: &[Place]) {
        let mut rest = acts;
        while !rest.is_empty() {
            let width = Group::default().width(rest, places);
            rest[0].together = width as u16;
            rest = &mut rest[width..];
        }
    }

    fn is(&self, verb: Verb) -> bool {
        self.verb == verb as u8
    }
}

/// Copies that are done at once: what they read and write.
#[derive(Default)]
struct Group {
    read: [bool; 3],
    written: [bool; 3],
    targets: Vec<Place>,
}

impl Group {
    /// How many of the first acts can be done at once, at least one.
    fn width(mut self, acts: &[Act], places: &[Place]) -> usize {
        let together = acts.iter().take(Act::OPERANDS_MAX).take_while(|act| self.takes(act, places));
        together.count().max(1)
    }

    /// Whether the act can be one of them; then it is.
    fn takes(&mut self, act: &Act, places: &[Place]) -> bool {
        if act.is(Verb::Wait) {
            return true;
        }
        let first = act.first_place as usize;
        let (true, 1, Some([from, into])) = (act.is(Verb::Copy), act.targets, places.get(first..first + 2))
        else {
            return false;
        };
        let (read, written) = (from.region(), into.region());
        let touches = self.written[read] || self.read[written] || read == written;
        let free = !touches && !self.targets.contains(into);
        self.read[read] = true;
        self.written[written] = true;
        self.targets.push(into.clone());
        free
    }
}

impl Place {
    /// Memory that may overlap has one number: buffers may be one, and windows are taken for one.
    fn region(&self) -> usize {
        match self.space {
            space if space == Space::Scratch as u32 => 1,
            space if space == Space::Window as u32 => 2,
            _ => 0,
        }
    }
}

impl Port {
    /// What a slot begins with: tag and length of its message. Each block of it then begins at a multiple of 16 bytes.
    pub const HEAD_BYTES: usize = 64;

    /// Of a slot for messages of so many blocks of `slice_bytes`, a multiple of 64.
    pub const fn slot_bytes(protocol: Protocol, blocks: usize, slice_bytes: usize) -> usize {
        let bytes = Self::HEAD_BYTES + blocks * slice_bytes;
        match protocol {
            Protocol::Slots => bytes,
            // Half is flags.
            Protocol::Lines => 2 * bytes,
            // A quarter is flags; and every 64 bytes, of which blocks consist, are three lines at most.
            Protocol::WideLines => 3 * bytes.div_ceil(2),
        }
    }
}

impl OneShot {
    /// Of the mailbox of one rank: twice, for launches in turn, an area for each rank and block. Nothing by [`Protocol::Slots`].
    pub const fn mailbox_bytes(
        protocol: Protocol,
        ranks: usize,
        blocks_max: usize,
        block_bytes: usize,
    ) -> usize {
        2 * ranks * blocks_max * Self::area_bytes(protocol, block_bytes)
    }

    /// A head, and lines.
    const fn area_bytes(protocol: Protocol, block_bytes: usize) -> usize {
        match protocol {
            Protocol::Slots => 0,
            Protocol::Lines => Port::HEAD_BYTES + 2 * block_bytes,
            Protocol::WideLines => {
                Port::HEAD_BYTES + block_bytes.div_ceil(WIDE_LINE_DATA_BYTES) * WIDE_LINE_BYTES
            }
        }
    }
}

/// Two pieces of 16 bytes,
const WIDE_LINE_BYTES: usize = 32;
/// and what they carry.
const WIDE_LINE_DATA_BYTES: usize = 24;

impl Interpret {
    /// Words of a tag: sequence, what, count, piece.
    const TAG_WORDS: usize = 4;
    /// Lanes that each channel has.
    pub const LANES: usize = 2;

    /// Words of a rank's [`Neighbour::inbox`].
    pub const fn inbox_words(channels_max: usize, ranks: usize) -> usize {
        channels_max * (Self::LANES + 1 + 2 * Self::TAG_WORDS) * ranks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Acts by their memory: from and into, or a wait.
    fn grouped(acts: &[Option<(Place, Place)>]) -> Vec<u16> {
        let mut places = Vec::new();
        let act = |step: &Option<(Place, Place)>| {
            let verb = if step.is_some() { Verb::Copy } else { Verb::Wait };
            let first_place = places.len() as u32;
            places.extend(step.iter().flat_map(|(from, into)| [from.clone(), into.clone()]));
            let targets = step.iter().len() as u16;
            let (finish, together, peer, forward, signals) = (0, 0, 1, Act::NOBODY, 1);
            Act {
                verb: verb as u8,
                finish,
                operands: targets,
                targets,
                together,
                peer,
                forward,
                signals,
                first_place,
            }
        };
        let mut acts: Vec<Act> = acts.iter().map(act).collect();
        Act::group(&mut acts, &places);
        acts.iter().map(|act| act.together).collect()
    }

    fn at(space: Space, index: u32) -> Place {
        Place { rank: 0, space: space as u32, index }
    }

    #[test]
    fn waits_and_copies_from_windows_are_one() {
        let get = |index| Some((at(Space::Window, index), at(Space::Output, index)));
        assert_eq!(grouped(&[None, get(0), None, get(1)]), [4, 0, 0, 0]);
        assert_eq!(grouped(&[get(0), get(0)]), [1, 1], "both write one block");
        assert_eq!(grouped(&vec![None; 65])[..2], [64, 0]);
        assert_eq!(grouped(&vec![None; 65])[64], 1);
    }

    #[test]
    fn copies_that_may_touch_stay_apart() {
        let own = |index| Some((at(Space::Input, index), at(Space::Output, index)));
        assert_eq!(grouped(&[own(0), own(1)]), [1, 1], "in place, blocks may overlap");
        let out = Some((at(Space::Output, 0), at(Space::Scratch, 0)));
        let back = Some((at(Space::Scratch, 1), at(Space::Output, 1)));
        assert_eq!(grouped(&[out, back]), [1, 1]);
    }
}
