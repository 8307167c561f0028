//! The argument structs of the kernels that know no schedule.

use super::table::arguments;
use std::ptr::{null, null_mut};
use unisono_reducers::{DType, ReduceKind, Scalar};

arguments! {
    /// Arguments of the kernels `reduce_copy_*`. Every target becomes the first source ⊕ the second
    /// ⊕ ….
    ///
    /// A source may be a target. Otherwise targets overlap nothing.
    ReduceCopy: 408 {
        /// Device memory of `count` elements each; the first `source_count` are read.
        0 => sources: [*const u8; ReduceCopy::SOURCES_MAX],
        /// Device memory of `count` elements each; the first `target_count` are written.
        128 => targets: [*mut u8; ReduceCopy::TARGETS_MAX],
        /// Factors for [`ReduceKind::PreMulSum`]: each source is multiplied by its factor first.
        /// Made by [`ReduceCopy::factor`].
        256 => factors: [u64; ReduceCopy::SOURCES_MAX],
        /// Number of elements.
        384 => count: u64,
        /// At least one.
        392 => source_count: u32,
        /// Number of pointers in `targets`.
        396 => target_count: u32,
        /// Divisor of the sum for [`ReduceKind::Avg`].
        400 => divisor: u32,
        /// Room that has no meaning.
        404 => unused: u32,
    }

    /// Why a launch ended early, for the host; written by the first of its blocks to give up.
    WaitReport: 104 {
        /// A [`WaitState`] as a number, written last.
        0 => state: u32,
        /// Rank that waited.
        4 => rank: u32,
        /// For whom.
        8 => peer: u32,
        /// Step, in the exchange or in the program.
        12 => step: u32,
        /// Counter value that was waited for. For [`WaitState::LengthMismatch`], the expected bytes
        /// of the message.
        16 => wanted: u64,
        /// Counter value that was read. For [`WaitState::LengthMismatch`], the bytes of the
        /// message.
        24 => seen: u64,
        /// Operation of this rank, for kernels that execute schedules: sequence number, kind,
        /// count, slice.
        32 => local_tag: [u64; 4],
        /// Operation of the peer, for [`WaitState::Mismatch`] and [`WaitState::LengthMismatch`].
        64 => remote_tag: [u64; 4],
        /// Instruction of the program at which this rank waited. All bits are set where there is
        /// none.
        96 => instr: u32,
        /// The lane.
        100 => lane: u32,
    }

    /// Deadline of the waits of a launch.
    Deadline: 32 {
        /// Something else than 0 there ends all waits.
        0 => abort: *const u32,
        /// All zeros before the launch.
        8 => report: *mut WaitReport,
        /// For each wait.
        16 => timeout_ns: u64,
        /// Word in device memory that launches which give up set to something else than 0. Every
        /// launch reads it first. Null: the state of the report serves instead.
        24 => failed: *mut u32,
    }

    /// Counters by which the host learns without a call of the driver how many launches have ended.
    Completion: 24 {
        /// Blocks of the running launch that have ended, in device memory. Null: the launch is not
        /// counted.
        0 => blocks: *mut u32,
        /// Launches that have ended, in device memory.
        8 => launches: *mut u64,
        /// The same number in page-locked memory.
        16 => done: *mut u64,
    }

    /// One direction between two ranks: slots that are filled and emptied in order.
    Fifo: 32 {
        /// Slots, in the receiver's memory.
        0 => slots: *mut u8,
        /// Steps sent, in the receiver's memory.
        8 => tail: *mut u64,
        /// Steps received, in the sender's memory.
        16 => head: *mut u64,
        /// Slots that there are.
        24 => slot_count: u32,
        /// Bytes of one slot, a multiple of 16.
        28 => slot_bytes: u32,
    }

    /// Arguments of one block: its rank's half of an exchange.
    Channel: 104 {
        /// Data to send.
        0 => input: *const u8,
        /// Destination of the received data.
        8 => output: *mut u8,
        /// Bytes of both.
        16 => bytes: u64,
        /// FIFO to the peer.
        24 => out: Fifo,
        /// FIFO from the peer.
        56 => into: Fifo,
        /// Steps that both FIFOs have behind them.
        88 => step: u64,
        /// This rank.
        96 => rank: u32,
        /// Rank of the peer.
        100 => peer: u32,
    }

    /// Arguments of the kernel `exchange`. Every block sends its channel's input to the peer, and
    /// receives the peer's input.
    Exchange: 40 {
        /// Channels in device memory, one for each block.
        0 => channels: *const Channel,
        /// For all of its waits.
        8 => deadline: Deadline,
    }

    /// Arguments of the kernels `ping_*`. Two launches of one block each raise two counters in
    /// turn.
    Ping: 72 {
        /// Raised by the other launch.
        0 => own: *const u64,
        /// Raised by this one.
        8 => other: *mut u64,
        /// Address of both counters.
        16 => first: u64,
        /// Number of rounds.
        24 => rounds: u64,
        /// 0 begins, 1 answers.
        32 => rank: u32,
        /// Room that has no meaning.
        36 => unused: u32,
        /// For all of its waits.
        40 => deadline: Deadline,
    }
}

impl ReduceCopy {
    /// Sources that one launch can have.
    pub const SOURCES_MAX: usize = 16;
    /// Targets that one launch can have.
    pub const TARGETS_MAX: usize = 16;

    /// `count` elements of `targets` from those of `sources`, neither scaled nor divided.
    ///
    /// # Panics
    /// If there is no source or no target, or more than one launch can have.
    pub fn new(targets: &[*mut u8], sources: &[*const u8], count: usize) -> Self {
        assert!((1..=Self::SOURCES_MAX).contains(&sources.len()), "{} sources", sources.len());
        assert!((1..=Self::TARGETS_MAX).contains(&targets.len()), "{} targets", targets.len());
        let mut new = Self {
            sources: [null(); Self::SOURCES_MAX],
            targets: [null_mut(); Self::TARGETS_MAX],
            factors: [0; Self::SOURCES_MAX],
            count: count as u64,
            source_count: sources.len() as u32,
            target_count: targets.len() as u32,
            divisor: 1,
            unused: 0,
        };
        new.sources[..sources.len()].copy_from_slice(sources);
        new.targets[..targets.len()].copy_from_slice(targets);
        new
    }

    /// The name of the kernel for this type and operation.
    pub fn kernel(dtype: DType, op: ReduceKind) -> String {
        format!("reduce_copy_{dtype}_{op}")
    }

    /// A factor as the kernel for `dtype` wants it: bits of the type in which it accumulates.
    pub fn factor(dtype: DType, scalar: Scalar) -> u64 {
        match (dtype.is_float(), scalar) {
            (false, Scalar::Int(factor)) => factor as u64,
            (false, Scalar::Uint(factor)) => factor,
            (false, Scalar::Float(factor)) => factor as i64 as u64,
            (true, Scalar::Int(factor)) if dtype == DType::F64 => (factor as f64).to_bits(),
            (true, Scalar::Uint(factor)) if dtype == DType::F64 => (factor as f64).to_bits(),
            (true, Scalar::Float(factor)) if dtype == DType::F64 => factor.to_bits(),
            (true, Scalar::Int(factor)) => (factor as f32).to_bits().into(),
            (true, Scalar::Uint(factor)) => (factor as f32).to_bits().into(),
            (true, Scalar::Float(factor)) => (factor as f32).to_bits().into(),
        }
    }
}

/// Outcomes of the waits of a launch, from [`WaitReport::state`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitState {
    /// All waits ended with success.
    Ok,
    /// The report is being written: not all of its fields are valid yet.
    Claimed,
    /// A counter did not reach what it had to in time.
    TimedOut,
    /// The abort word was raised.
    Aborted,
    /// A peer is doing something else.
    Mismatch,
    /// A message is longer or shorter than it has to be.
    LengthMismatch,
    /// The peer has left before it did what is waited for.
    PeerFinalized,
}

impl Completion {
    /// No counters: the launch is not counted.
    pub const NONE: Completion = Completion { blocks: null_mut(), launches: null_mut(), done: null_mut() };
}

impl WaitReport {
    /// The record of a launch in which no wait was given up.
    pub const OK: WaitReport = WaitReport {
        state: 0,
        rank: 0,
        peer: 0,
        step: 0,
        wanted: 0,
        seen: 0,
        local_tag: [0; 4],
        remote_tag: [0; 4],
        instr: 0,
        lane: 0,
    };

    /// Returns the state, or `None` for a number that no kernel writes.
    pub fn state(&self) -> Option<WaitState> {
        let states = [
            WaitState::Ok,
            WaitState::Claimed,
            WaitState::TimedOut,
            WaitState::Aborted,
            WaitState::Mismatch,
            WaitState::LengthMismatch,
            WaitState::PeerFinalized,
        ];
        states.get(self.state as usize).copied()
    }
}
