// The arguments of the kernels, one struct each. `src/device/arguments.rs` has the host's structs.
// Its table of offsets writes `abi_offsets.cuh`, which asserts the offsets of these.
#pragma once

#include "target.cuh"

constexpr u32 SOURCES_MAX = 16;
constexpr u32 TARGETS_MAX = 16;

// Every target becomes sources[0] + sources[1] + .... A source may be a target.
struct ReduceCopy {
    const u8* sources[SOURCES_MAX];
    u8* targets[TARGETS_MAX];
    // PreMulSum: bits of what each source is multiplied by, in the type that it accumulates in.
    u64 factors[SOURCES_MAX];
    // Number of elements.
    u64 count;
    u32 source_count;
    u32 target_count;
    // Avg: divisor of the sum.
    u32 divisor;
    u32 unused;
};

// Why a launch ended early, for the host. Written by the first of its blocks to give up.
struct WaitReport {
    // One of `WaitState`, written last.
    u32 state;
    // The rank that waited, its peer, and the step.
    u32 rank;
    u32 peer;
    u32 step;
    // The counter value or message length that was waited for, and the one found.
    u64 wanted;
    u64 seen;
    // Operation of this rank and of the peer: sequence number, kind, count, slice.
    u64 local_tag[4];
    u64 remote_tag[4];
    // Instruction at which this rank waited.
    u32 instr;
    u32 lane;
};

enum WaitState : u32 {
    OK = 0,
    // Another thread is writing the report.
    CLAIMED = 1,
    // The counter did not come in time.
    TIMED_OUT = 2,
    // The host raised the abort word.
    ABORTED = 3,
    // A peer is doing something else.
    MISMATCH = 4,
    // A message is longer or shorter than it has to be.
    LENGTH_MISMATCH = 5,
    // The peer has left, and all that it sent has arrived.
    PEER_FINALIZED = 6,
};

// Deadline of the waits of a launch.
struct Deadline {
    // The host sets it to something else than 0 to end all waits.
    const u32* abort;
    // Page-locked memory of the host.
    WaitReport* report;
    u64 timeout_ns;
    // Not 0: a launch has given up. In device memory, because every launch reads it before all
    // else. Null: the state of the report serves instead.
    u32* failed;
};

// Counts launches that have ended, for the host.
struct Completion {
    // Blocks of the running launch that have ended. Null: the launch is not counted.
    u32* blocks;
    // Launches that have ended.
    u64* launches;
    // The same number in page-locked memory of the host.
    u64* done;
};

// One direction between two ranks: slots that are filled and emptied in order.
struct Fifo {
    // Slots, in the receiver's memory.
    u8* slots;
    // Steps sent, in the receiver's memory.
    u64* tail;
    // Steps received, in the sender's memory.
    u64* head;
    u32 slot_count;
    // A multiple of 16.
    u32 slot_bytes;
};

// Arguments of one block: its rank's half of an exchange.
struct Channel {
    const u8* input;
    u8* output;
    // Bytes of both.
    u64 bytes;
    Fifo out;
    Fifo into;
    // Steps that both FIFOs have behind them.
    u64 step;
    u32 rank;
    u32 peer;
};

// Every block sends its channel's input to the peer, and receives the peer's input.
struct Exchange {
    // Channels in device memory, one for each block.
    const Channel* channels;
    Deadline deadline;
};

// Two launches of one block each raise two counters in turn.
struct Ping {
    // Raised by the other launch.
    const u64* own;
    // Raised by this one.
    u64* other;
    // Address of both counters.
    u64 first;
    u64 rounds;
    // 0 begins, 1 answers.
    u32 rank;
    u32 unused;
    Deadline deadline;
};

#include "abi_offsets.cuh"
