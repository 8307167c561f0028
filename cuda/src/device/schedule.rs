//! Argument structs of the kernels that execute schedules.

use super::arguments::{Completion, Deadline, Fifo};
use super::table::arguments;

arguments! {
    /// One instruction of a program: an operation on [`ChunkRef`]s.
    ///
    /// Its chunks are consecutive, from `first_place` on. For a message they are its blocks. For
    /// [`Opcode::RecvReduce`] the operands come first, then the targets. Otherwise the chunks that
    /// are read come first, then those that are written.
    Instr: 24 {
        /// A [`Opcode`] as a number.
        0 => opcode: u8,
        /// Not 0: results are complete, and the post-operation is applied.
        1 => post_op: u8,
        /// Blocks of the message, or 1 for a copy, or the operands of a reduction. At most
        /// [`Instr::OPERANDS_MAX`].
        2 => operands: u16,
        /// Number of chunks that get the result of a copy or a reduction, at most
        /// [`Instr::OPERANDS_MAX`].
        4 => targets: u16,
        /// Number of instructions from here on that run as one group. 0 and 1 mean this one alone.
        /// Set by [`Instr::mark_groups`].
        6 => group_size: u16,
        /// Whom it concerns: sender, receiver, or who must have signaled.
        8 => peer: u32,
        /// Rank that gets the results of [`Opcode::Recv`] and [`Opcode::RecvReduce`] as one
        /// message, in the same pass, or [`Instr::NO_PEER`]. The received message keeps its slot
        /// meanwhile, so one more slot is needed.
        12 => forward: u32,
        /// Signals that the peer must have given in this slice, for [`Opcode::Wait`].
        16 => signals: u32,
        /// Index of the first chunk in the table of chunks.
        20 => first_chunk: u32,
    }

    /// One block of a rank's memory.
    #[derive(PartialEq, Eq)]
    ChunkRef: 12 {
        /// Rank that has the block. Another rank only for blocks of windows and of [`PeerBuffers`].
        0 => rank: u32,
        /// A [`MemorySpace`] as a number.
        4 => space: u32,
        /// Index of the block.
        8 => index: u32,
    }

    /// Instructions that one block of threads for each channel executes in order.
    LaneProgram: 12 {
        /// Lane, of the [`ScheduleArgs::LANES`] of its channel.
        0 => lane: u32,
        /// Index of the first instruction in the table of instructions.
        4 => first_instr: u32,
        /// Number of instructions.
        8 => instr_count: u32,
    }

    /// Position of one rank's share in bytes, where shares are uneven.
    Share: 24 {
        /// Offset from the start of the buffer.
        0 => start: u64,
        /// Bytes of the share.
        8 => bytes: u64,
        /// Distance from one block to the next.
        16 => stride: u64,
    }

    /// A buffer, and its division into shares and blocks: the engine's layout, with strides
    /// computed by the host.
    BufferLayout: 40 {
        /// First byte of the buffer.
        0 => base: *mut u8,
        /// Shares in device memory, one for each rank. Null if all are equal.
        8 => table: *const Share,
        /// Bytes of every share, if all are equal.
        16 => share_bytes: u64,
        /// Distance from block to block, if all are equal.
        24 => stride: u64,
        /// Blocks of a share.
        32 => chunks_per_share: u32,
        /// Room that has no meaning.
        36 => unused: u32,
    }

    /// The messages between this rank and a peer on one lane. The kernel updates the counters, so
    /// that a launch that a graph repeats continues after the last one.
    Port: 80 {
        /// Messages to the peer. A slot is a header and data: see [`Port::slot_bytes`].
        0 => out: Fifo,
        /// FIFO from the peer.
        32 => into: Fifo,
        /// Messages sent.
        64 => sent: u64,
        /// Messages received.
        72 => received: u64,
    }

    /// Memory of one rank that every rank can access.
    PeerWindow: 16 {
        /// Window of the rank: two banks for each channel.
        0 => window: *mut u8,
        /// Counters of the rank, raised by others: a word for each lane and rank (signals), then
        /// words that only kernels use. There are [`ScheduleArgs::inbox_words`]. They are in the
        /// memory of that rank, because it waits for them.
        8 => inbox: *mut u64,
    }

    /// User buffers of one rank as others access them, divided as the others' are. Null where no
    /// program names them.
    PeerBuffers: 16 {
        /// The send buffer's first byte.
        0 => input: *mut u8,
        /// First byte of the receive buffer.
        8 => output: *mut u8,
    }

    /// Arguments of the kernels `schedule_*`: one rank's part of a collective.
    ///
    /// A launch has `channels` times `lane_program_count` blocks. Block `channel *
    /// lane_program_count + index` runs the lane program of that index. All blocks of all ranks
    /// must be resident at once.
    ScheduleArgs: 320 {
        /// Instructions. This and all other tables are in device memory.
        0 => instrs: *const Instr,
        /// Chunks of all instructions.
        8 => chunks: *const ChunkRef,
        /// `lane_program_count` of them.
        16 => lane_programs: *const LaneProgram,
        /// Port `(channel * LANES + lane) * ranks + peer`.
        24 => ports: *mut Port,
        /// One for each rank, this one included.
        32 => peer_windows: *const PeerWindow,
        /// Instances of window programs that each channel has run; kept up to date by the kernel.
        40 => window_sequences: *mut u64,
        /// Scratch, with room for `scratch_chunks` of `slice_bytes` for each block of the launch.
        48 => scratch: *mut u8,
        /// For each block of the launch, `scratch_blocks` words.
        56 => lengths: *mut u64,
        /// Send buffer. In place, it is a part of the output.
        64 => input: BufferLayout,
        /// The receive buffer.
        104 => output: BufferLayout,
        /// Bytes of the slices of a block, a multiple of 64.
        144 => slice_bytes: u64,
        /// Bytes of one of the two banks of a channel.
        152 => parity_bytes: u64,
        /// Slices of the longest block, at least one.
        160 => slices: u64,
        /// Number of the operation: reported, and not compared.
        168 => sequence: u64,
        /// Kind, type, operation, algorithm, root: compared with each peer's.
        176 => fingerprint: u64,
        /// Elements: compared with each peer's.
        184 => count: u64,
        /// Factor of the input for
        /// [`ReduceKind::PreMulSum`](unisono_reducers::ReduceKind::PreMulSum), made by
        /// [`ReduceCopy::factor`](super::ReduceCopy::factor).
        192 => factor: u64,
        /// 1, for the same.
        200 => one: u64,
        /// Ranks of the communicator.
        208 => ranks: u32,
        /// This one.
        212 => rank: u32,
        /// Channels that take part.
        216 => channels: u32,
        /// Channels of the communicator.
        220 => channels_max: u32,
        /// Lane programs of the program: at least one, and exactly one if it uses windows.
        224 => lane_program_count: u32,
        /// Scratch chunks of the program.
        228 => scratch_chunks: u32,
        /// A [`ReduceKind`](unisono_reducers::ReduceKind) as a number.
        232 => op: u32,
        /// Divisor of complete sums for [`ReduceKind::Avg`](unisono_reducers::ReduceKind::Avg).
        236 => divisor: u32,
        /// Not 0: the program uses windows, so that window sequences are counted.
        240 => uses_window: u32,
        /// A [`Protocol`] as a number; both sides of every port have the same.
        244 => protocol: u32,
        /// User buffers of each rank, in device memory. Null unless the program names buffers of
        /// peers.
        248 => peer_buffers: *const PeerBuffers,
        /// A word for each rank: not 0 once it has left with all of its work done. Null: no rank
        /// leaves.
        256 => finalized: *const u64,
        /// Deadline of all waits.
        264 => deadline: Deadline,
        /// Counters of launches that have ended.
        296 => completion: Completion,
    }

    /// Arguments of the kernels `one_shot_*`: an all_reduce in which each rank stores its data into
    /// the mailboxes of all. Every block takes the next `block_bytes` of the buffer.
    OneShotArgs: 168 {
        /// The send buffer.
        0 => input: *const u8,
        /// The receive buffer; may be the input.
        8 => output: *mut u8,
        /// Each rank's mailbox of [`OneShotArgs::mailbox_bytes`], in device memory. Mailboxes are
        /// zero before the first launch.
        16 => mailboxes: *const *mut u8,
        /// Launch count of each block, in device memory. The kernel updates it.
        24 => launches: *mut u64,
        /// Bytes of the buffers.
        32 => bytes: u64,
        /// Bytes of each block, a multiple of 64. All launches with these mailboxes use the same
        /// value.
        40 => block_bytes: u64,
        /// Same as in [`ScheduleArgs`].
        48 => sequence: u64,
        /// Same as in [`ScheduleArgs`].
        56 => fingerprint: u64,
        /// Same as in [`ScheduleArgs`].
        64 => count: u64,
        /// Same as in [`ScheduleArgs`].
        72 => factor: u64,
        /// Ranks of the communicator.
        80 => ranks: u32,
        /// This one.
        84 => rank: u32,
        /// Number of blocks that the mailboxes have room for.
        88 => blocks_max: u32,
        /// A [`ReduceKind`](unisono_reducers::ReduceKind) as a number.
        92 => op: u32,
        /// Same as in [`ScheduleArgs`].
        96 => divisor: u32,
        /// [`Protocol::Ll`] or [`Protocol::Ll128`] as a number. All launches with these mailboxes
        /// use the same value.
        100 => protocol: u32,
        /// Same as in [`ScheduleArgs`].
        104 => finalized: *const u64,
        /// Deadline of all waits.
        112 => deadline: Deadline,
        /// Counters of launches that have ended.
        144 => completion: Completion,
    }
}

/// Protocols that pass messages between ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Protocol {
    /// Data in a slot, then a counter: for bandwidth.
    Simple,
    /// Data and flags together, for low latency: every 8-byte word has 4 bytes of data and a flag.
    /// Such ports are never used with another protocol, and their slots are zero at first.
    Ll,
    /// Same as [`Protocol::Ll`] in 16-byte lines, each with 12 bytes of data and a flag, stored by
    /// one access. It needs GPUs that [support it](super::Gpu::has_ll128), and does not serve
    /// user-defined reductions.
    Ll128,
}

impl Protocol {
    /// All of them, by number.
    pub const ALL: [Self; 3] = [Self::Simple, Self::Ll, Self::Ll128];
}

/// Operations of an [`Instr`]: the steps of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Opcode {
    /// Sends blocks as one message.
    Send,
    /// Stores a message into blocks.
    Recv,
    /// Combines blocks with those of a message.
    RecvReduce,
    /// Copies one chunk to others.
    Copy,
    /// Combines chunks in their order.
    Reduce,
    /// Tells every rank that all instructions of this lane program so far are done.
    Signal,
    /// Waits for such a signal.
    Wait,
}

/// Memory of a rank that a [`ChunkRef`] lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum MemorySpace {
    /// The send buffer.
    Input,
    /// The receive buffer.
    Output,
    /// Scratch of the lane program, for one slice. A block has the length of the data that was last
    /// stored there.
    Scratch,
    /// Window that peers access, for one slice.
    Window,
}

impl Instr {
    /// No rank, as the receiver of what is forwarded.
    pub const NO_PEER: u32 = u32::MAX;
    /// Maximum of the operands and of the targets of one reduction, and of the instructions of one
    /// group.
    pub const OPERANDS_MAX: usize = 64;

    /// Marks groups of instructions in a lane program: waits, and copies that touch no memory that
    /// another one of the group reads or writes. This holds wherever the buffers lie. Waits move to
    /// the front of a group. Peers see no difference, because a later signal announces the copies.
    pub fn mark_groups(acts: &mut [Instr], places: &[ChunkRef]) {
        let mut remaining = acts;
        while !remaining.is_empty() {
            let width = CopyGroup::default().width(remaining, places);
            remaining[0].group_size = width as u16;
            remaining = &mut remaining[width..];
        }
    }

    fn is(&self, verb: Opcode) -> bool {
        self.opcode == verb as u8
    }
}

/// Copies of one group: the memory they read and write.
#[derive(Default)]
struct CopyGroup {
    read: [bool; 3],
    written: [bool; 3],
    targets: Vec<ChunkRef>,
}

impl CopyGroup {
    /// Number of the first instructions that can form a group, at least one.
    fn width(mut self, acts: &[Instr], places: &[ChunkRef]) -> usize {
        let together = acts.iter().take(Instr::OPERANDS_MAX).take_while(|act| self.takes(act, places));
        together.count().max(1)
    }

    /// Adds the instruction to the group if it fits, and returns true if it did.
    fn takes(&mut self, act: &Instr, places: &[ChunkRef]) -> bool {
        if act.is(Opcode::Wait) {
            return true;
        }
        let first = act.first_chunk as usize;
        let (true, 1, Some([source, target])) =
            (act.is(Opcode::Copy), act.targets, places.get(first..first + 2))
        else {
            return false;
        };
        let (read, written) = (source.region(), target.region());
        let touches = self.written[read] || self.read[written] || read == written;
        let free = !touches && !self.targets.contains(target);
        self.read[read] = true;
        self.written[written] = true;
        self.targets.push(target.clone());
        free
    }
}

impl ChunkRef {
    /// Memory that may overlap has one number: input and output may be one buffer, and windows
    /// count as one.
    fn region(&self) -> usize {
        match self.space {
            space if space == MemorySpace::Scratch as u32 => 1,
            space if space == MemorySpace::Window as u32 => 2,
            _ => 0,
        }
    }
}

impl Port {
    /// Bytes of the header of a slot: tag and length of its message. Each block after it begins at
    /// a multiple of 16 bytes.
    pub const HEADER_BYTES: usize = 64;

    /// Bytes of a slot for messages of so many blocks of `slice_bytes`, a multiple of 64.
    pub const fn slot_bytes(protocol: Protocol, blocks: usize, slice_bytes: usize) -> usize {
        let bytes = Self::HEADER_BYTES + blocks * slice_bytes;
        match protocol {
            Protocol::Simple => bytes,
            // Half is flags.
            Protocol::Ll => 2 * bytes,
            // A quarter is flags, and each 64 bytes of a block take at most three pairs of lines.
            Protocol::Ll128 => 3 * bytes.div_ceil(2),
        }
    }
}

impl OneShotArgs {
    /// Bytes of the mailbox of one rank: an area for each rank and block, twice, for alternating
    /// launches. 0 for [`Protocol::Simple`].
    pub const fn mailbox_bytes(
        protocol: Protocol,
        ranks: usize,
        blocks_max: usize,
        block_bytes: usize,
    ) -> usize {
        2 * ranks * blocks_max * Self::area_bytes(protocol, block_bytes)
    }

    /// Bytes of a header and its lines.
    const fn area_bytes(protocol: Protocol, block_bytes: usize) -> usize {
        match protocol {
            Protocol::Simple => 0,
            Protocol::Ll => Port::HEADER_BYTES + 2 * block_bytes,
            Protocol::Ll128 => Port::HEADER_BYTES + block_bytes.div_ceil(LL128_DATA_BYTES) * LL128_LINE_BYTES,
        }
    }
}

/// Two 16-byte accesses.
const LL128_LINE_BYTES: usize = 32;
/// and what they carry.
const LL128_DATA_BYTES: usize = 24;

impl ScheduleArgs {
    /// Words of a tag: sequence number, kind, count, slice.
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

    /// Groups of instructions, given by their memory: from and into, or `None` for a wait.
    fn grouped(acts: &[Option<(ChunkRef, ChunkRef)>]) -> Vec<u16> {
        let mut places = Vec::new();
        let act = |step: &Option<(ChunkRef, ChunkRef)>| {
            let verb = if step.is_some() { Opcode::Copy } else { Opcode::Wait };
            let first_place = places.len() as u32;
            places.extend(step.iter().flat_map(|(source, target)| [source.clone(), target.clone()]));
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
        let copy = |index| Some((at(MemorySpace::Input, index), at(MemorySpace::Output, index)));
        assert_eq!(grouped(&[copy(0), copy(1)]), [1, 1], "in place, blocks may overlap");
        let out = Some((at(MemorySpace::Output, 0), at(MemorySpace::Scratch, 0)));
        let back = Some((at(MemorySpace::Scratch, 1), at(MemorySpace::Output, 1)));
        assert_eq!(grouped(&[out, back]), [1, 1]);
    }
}
