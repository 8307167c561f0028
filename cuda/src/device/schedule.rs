//! The argument structs of the kernels that carry out schedules.

use super::arguments::{Deadline, Fifo};
use super::table::arguments;

arguments! {
    /// One step of a program as the device has it: what is done with which [`ChunkRef`]s.
    ///
    /// Its places lie in a row, from `first_place` on: the blocks of a message (for [`Opcode::RecvReduce`] first all that are combined,
    /// then all that get results), or what is read, and behind that what is written.
    Instr: 24 {
        /// A [`Opcode`] as a number.
        0 => opcode: u8,
        /// Not 0: results are complete, so that an average is divided.
        1 => post_op: u8,
        /// Blocks of the message; of a copy 1; of a reduction what is combined, [`Instr::OPERANDS_MAX`] at most.
        2 => operands: u16,
        /// Of a copy or a reduction: how many places get the result, [`Instr::OPERANDS_MAX`] at most.
        4 => targets: u16,
        /// How many acts from here on are done at once; 0 and 1: this one alone. Set by [`Instr::group`].
        6 => group_size: u16,
        /// Whom it concerns: sender, receiver, or who must have signalled.
        8 => peer: u32,
        /// Of [`Opcode::Recv`] and [`Opcode::RecvReduce`]: who gets the results as one message, in the same pass; or [`Instr::NOBODY`].
        /// The message received keeps its slot meanwhile: one slot more is needed than without.
        12 => forward: u32,
        /// Of [`Opcode::WaitSpan`]: how many signals the peer must have given in this piece.
        16 => signals: u32,
        /// In the table of places.
        20 => first_chunk: u32,
    }

    /// One block of a rank's memory.
    #[derive(PartialEq, Eq)]
    ChunkRef: 12 {
        /// Whose: another rank's only if it is a window's, or that of a [`PeerBuffers`] buffer.
        0 => rank: u32,
        /// A [`MemorySpace`] as a number.
        4 => space: u32,
        /// Which block.
        8 => index: u32,
    }

    /// Acts that are done one after the other, by one block of threads for each channel.
    LaneProgram: 12 {
        /// Of the [`ScheduleArgs::LANES`] of its channel.
        0 => lane: u32,
        /// In the table of acts.
        4 => first_instr: u32,
        /// How many.
        8 => instr_count: u32,
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
    BufferLayout: 40 {
        /// Its first byte.
        0 => base: *mut u8,
        /// In device memory, one for each share; none if all are alike.
        8 => table: *const Share,
        /// Of every share, if they are alike.
        16 => share_bytes: u64,
        /// From block to block, if they are alike.
        24 => stride: u64,
        /// Blocks of a share.
        32 => chunks_per_share: u32,
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
    PeerWindow: 16 {
        /// Its window: two banks for each channel.
        0 => window: *mut u8,
        /// Its counters, raised by others: a word for each lane and rank (signals), then what only
        /// kernels know; [`ScheduleArgs::inbox_words`] in all. In the memory of that rank, as it is the one that waits for them.
        8 => inbox: *mut u64,
    }

    /// The buffers of one rank, where others reach them: cut as theirs are. Null where no program names them.
    PeerBuffers: 16 {
        /// The send buffer's first byte.
        0 => input: *mut u8,
        /// That of the receive buffer.
        8 => output: *mut u8,
    }

    /// Arguments of the kernels `schedule_*`: one rank's part in a collective. Launched with `channels` times `strand_count` blocks,
    /// block `channel * strand_count + strand`; all blocks of all ranks must be resident at once.
    ScheduleArgs: 288 {
        /// In device memory, as all tables here.
        0 => instrs: *const Instr,
        /// Of all acts.
        8 => chunks: *const ChunkRef,
        /// `strand_count` of them.
        16 => lane_programs: *const LaneProgram,
        /// Port `(channel * LANES + lane) * ranks + peer`.
        24 => ports: *mut Port,
        /// One for each rank, this one too.
        32 => peer_windows: *const PeerWindow,
        /// Instances of window programs that each channel has run; kept up to date by the kernel.
        40 => window_sequences: *mut u64,
        /// For each block of the launch, room for `scratch_blocks` of `slice_bytes`.
        48 => scratch: *mut u8,
        /// For each block of the launch, `scratch_blocks` words.
        56 => lengths: *mut u64,
        /// The send buffer; in place, a part of the output.
        64 => input: BufferLayout,
        /// The receive buffer.
        104 => output: BufferLayout,
        /// Of the slices of a block, a multiple of 64.
        144 => slice_bytes: u64,
        /// Of one of the two banks of a channel.
        152 => parity_bytes: u64,
        /// Slices of the longest block, at least one.
        160 => slices: u64,
        /// Number of the operation: reported, and not compared.
        168 => sequence: u64,
        /// Kind, type, operation, algorithm, root: compared with each peer's.
        176 => fingerprint: u64,
        /// Elements: compared with each peer's.
        184 => count: u64,
        /// For [`ReduceKind::PreMulSum`](crate::ReduceKind::PreMulSum): what the input is multiplied by, made by [`ReduceCopy::factor`](super::ReduceCopy::factor).
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
        224 => lane_program_count: u32,
        /// Of the program.
        228 => scratch_chunks: u32,
        /// An [`ReduceKind`](crate::Op) as a number.
        232 => op: u32,
        /// For [`ReduceKind::Avg`](crate::ReduceKind::Avg): what complete sums are divided by.
        236 => divisor: u32,
        /// Not 0: the program uses windows, so that instances are counted.
        240 => uses_window: u32,
        /// A [`Protocol`] as a number; both sides of every port have the same.
        244 => protocol: u32,
        /// In device memory, one for each rank; none unless the program names buffers of peers.
        248 => peer_buffers: *const PeerBuffers,
        /// A word for each rank: not 0 once it has left, with all that it had to do done. None: nobody does.
        256 => finalized: *const u64,
        /// For all of its waits.
        264 => deadline: Deadline,
    }

    /// Arguments of the kernels `one_shot_*`: an all_reduce in which each rank stores what it has into the mailboxes of all. Every
    /// block takes the next `block_bytes` of the buffer.
    OneShotArgs: 136 {
        /// The send buffer.
        0 => input: *const u8,
        /// The receive buffer; may be the input.
        8 => output: *mut u8,
        /// In device memory: each rank's mailbox of [`OneShotArgs::mailbox_bytes`], all zeros before the first launch.
        16 => mailboxes: *const *mut u8,
        /// In device memory, for each block: how often it was launched. Kept up to date by the kernel.
        24 => launches: *mut u64,
        /// Of the buffers.
        32 => bytes: u64,
        /// Of each block, a multiple of 64; the same in all launches with these mailboxes.
        40 => block_bytes: u64,
        /// As in [`ScheduleArgs`].
        48 => sequence: u64,
        /// As in [`ScheduleArgs`].
        56 => fingerprint: u64,
        /// As in [`ScheduleArgs`].
        64 => count: u64,
        /// As in [`ScheduleArgs`].
        72 => factor: u64,
        /// Of the communicator.
        80 => ranks: u32,
        /// This one.
        84 => rank: u32,
        /// Blocks that the mailboxes have room for.
        88 => blocks_max: u32,
        /// An [`ReduceKind`](crate::Op) as a number.
        92 => op: u32,
        /// As in [`ScheduleArgs`].
        96 => divisor: u32,
        /// [`Protocol::Lines`] or [`Protocol::WideLines`] as a number; the same in all launches with these mailboxes.
        100 => protocol: u32,
        /// As in [`ScheduleArgs`].
        104 => finalized: *const u64,
        /// For all of its waits.
        112 => deadline: Deadline,
    }
}

/// How messages are handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Protocol {
    /// Data in a slot, then a counter: for bandwidth.
    Simple,
    /// Data and flags together, for latency: every word of 8 bytes has 4 of data, and a flag. Such ports are never used with
    /// another protocol, and their slots are zero at first.
    Ll,
    /// The same, but in pieces of 16 bytes, each with 12 of data and a flag, which are stored whole: for GPUs that
    /// [know how](super::Gpu::has_wide_lines), and not with kernels of one's own.
    Ll128,
}

impl Protocol {
    /// All of them, by number.
    pub const ALL: [Self; 3] = [Self::Simple, Self::Ll, Self::Ll128];
}

/// What an [`Instr`] does; the steps of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Opcode {
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

/// Which of a rank's memories a [`ChunkRef`] is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum MemorySpace {
    /// The send buffer.
    Input,
    /// The receive buffer.
    Output,
    /// The strand's own, for one piece. A block is as long as what was last put there.
    Scratch,
    /// What peers reach, for one piece.
    Window,
}

impl Instr {
    /// No rank, as the receiver of what is forwarded.
    pub const NO_PEER: u32 = u32::MAX;
    /// Places that one reduction can combine, or that get its result, and acts that can be done together.
    pub const OPERANDS_MAX: usize = 64;

    /// Marks acts of a strand that can be done at once: waits, and copies of which none touches what another reads or writes, wherever
    /// buffers lie. The waits come first then, which makes no difference to peers: they hear of the copies by a later signal.
    pub fn mark_groups(acts: &mut [Instr], places: &[ChunkRef]) {
        let mut rest = acts;
        while !rest.is_empty() {
            let width = CopyGroup::default().width(rest, places);
            rest[0].group_size = width as u16;
            rest = &mut rest[width..];
        }
    }

    fn is(&self, verb: Opcode) -> bool {
        self.opcode == verb as u8
    }
}

/// Copies that are done at once: what they read and write.
#[derive(Default)]
struct CopyGroup {
    read: [bool; 3],
    written: [bool; 3],
    targets: Vec<ChunkRef>,
}

impl CopyGroup {
    /// How many of the first acts can be done at once, at least one.
    fn width(mut self, acts: &[Instr], places: &[ChunkRef]) -> usize {
        let together = acts.iter().take(Instr::OPERANDS_MAX).take_while(|act| self.takes(act, places));
        together.count().max(1)
    }

    /// Whether the act can be one of them; then it is.
    fn takes(&mut self, act: &Instr, places: &[ChunkRef]) -> bool {
        if act.is(Opcode::Wait) {
            return true;
        }
        let first = act.first_chunk as usize;
        let (true, 1, Some([from, into])) = (act.is(Opcode::Copy), act.targets, places.get(first..first + 2))
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

impl ChunkRef {
    /// Memory that may overlap has one number: buffers may be one, and windows are taken for one.
    fn region(&self) -> usize {
        match self.space {
            space if space == MemorySpace::Scratch as u32 => 1,
            space if space == MemorySpace::Window as u32 => 2,
            _ => 0,
        }
    }
}

impl Port {
    /// What a slot begins with: tag and length of its message. Each block of it then begins at a multiple of 16 bytes.
    pub const HEADER_BYTES: usize = 64;

    /// Of a slot for messages of so many blocks of `slice_bytes`, a multiple of 64.
    pub const fn slot_bytes(protocol: Protocol, blocks: usize, slice_bytes: usize) -> usize {
        let bytes = Self::HEADER_BYTES + blocks * slice_bytes;
        match protocol {
            Protocol::Simple => bytes,
            // Half is flags.
            Protocol::Ll => 2 * bytes,
            // A quarter is flags; and every 64 bytes, of which blocks consist, are three lines at most.
            Protocol::Ll128 => 3 * bytes.div_ceil(2),
        }
    }
}

impl OneShotArgs {
    /// Of the mailbox of one rank: twice, for launches in turn, an area for each rank and block. Nothing by [`Protocol::Ring`].
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
            Protocol::Simple => 0,
            Protocol::Ll => Port::HEADER_BYTES + 2 * block_bytes,
            Protocol::Ll128 => Port::HEADER_BYTES + block_bytes.div_ceil(LL128_DATA_BYTES) * LL128_LINE_BYTES,
        }
    }
}

/// Two pieces of 16 bytes,
const LL128_LINE_BYTES: usize = 32;
/// and what they carry.
const LL128_DATA_BYTES: usize = 24;

impl ScheduleArgs {
    /// Words of a tag: sequence, what, count, piece.
    const TAG_WORDS: usize = 4;
    /// Lanes that each channel has.
    pub const LANES: usize = 2;

    /// Words of a rank's [`PeerWindow::inbox`].
    pub const fn inbox_words(channels_max: usize, ranks: usize) -> usize {
        channels_max * (Self::LANES + 1 + 2 * Self::TAG_WORDS) * ranks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Acts by their memory: from and into, or a wait.
    fn grouped(acts: &[Option<(ChunkRef, ChunkRef)>]) -> Vec<u16> {
        let mut places = Vec::new();
        let act = |step: &Option<(ChunkRef, ChunkRef)>| {
            let verb = if step.is_some() { Opcode::Copy } else { Opcode::Wait };
            let first_place = places.len() as u32;
            places.extend(step.iter().flat_map(|(from, into)| [from.clone(), into.clone()]));
            let targets = step.iter().len() as u16;
            let (finish, together, peer, forward, signals) = (0, 0, 1, Instr::NO_PEER, 1);
            Instr {
                opcode: verb as u8,
                post_op: finish,
                operands: targets,
                targets,
                group_size: together,
                peer,
                forward,
                signals,
                first_chunk: first_place,
            }
        };
        let mut acts: Vec<Instr> = acts.iter().map(act).collect();
        Instr::mark_groups(&mut acts, &places);
        acts.iter().map(|act| act.group_size).collect()
    }

    fn at(space: MemorySpace, index: u32) -> ChunkRef {
        ChunkRef { rank: 0, space: space as u32, index }
    }

    #[test]
    fn mark_groups_waits_and_window_copies_share_a_group() {
        let get = |index| Some((at(MemorySpace::Window, index), at(MemorySpace::Output, index)));
        assert_eq!(grouped(&[None, get(0), None, get(1)]), [4, 0, 0, 0]);
        assert_eq!(grouped(&[get(0), get(0)]), [1, 1], "both write one block");
        assert_eq!(grouped(&vec![None; 65])[..2], [64, 0]);
        assert_eq!(grouped(&vec![None; 65])[64], 1);
    }

    #[test]
    fn mark_groups_overlapping_copies_are_separate() {
        let own = |index| Some((at(MemorySpace::Input, index), at(MemorySpace::Output, index)));
        assert_eq!(grouped(&[own(0), own(1)]), [1, 1], "in place, blocks may overlap");
        let out = Some((at(MemorySpace::Output, 0), at(MemorySpace::Scratch, 0)));
        let back = Some((at(MemorySpace::Scratch, 1), at(MemorySpace::Output, 1)));
        assert_eq!(grouped(&[out, back]), [1, 1]);
    }
}
