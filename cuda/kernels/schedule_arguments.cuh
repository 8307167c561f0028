// The arguments of the kernels that execute schedules. `src/device/schedule.rs` has the host's
// structs, and explains every field.
#pragma once

#include "arguments.cuh"

enum Opcode : u8 { SEND, RECV, RECV_REDUCE, COPY, REDUCE, SIGNAL, WAIT };

enum MemorySpace : u32 { INPUT, OUTPUT, SCRATCH, WINDOW };

enum Protocol : u32 { SIMPLE, LL, LL128 };

enum ReduceKind : u32 { SUM, PROD, MIN, MAX, AVG, PRE_MUL_SUM };

constexpr u32 NO_PEER = ~0u;
constexpr u32 OPERANDS_MAX = 64;
constexpr u32 LANES = 2;
constexpr u64 HEADER_BYTES = 64;

struct Instr {
    u8 opcode;
    u8 post_op;
    u16 operands;
    u16 targets;
    u16 group_size;
    u32 peer;
    u32 forward;
    u32 signals;
    u32 first_chunk;
};

struct ChunkRef {
    u32 rank;
    u32 space;
    u32 index;
};

struct LaneProgram {
    u32 lane;
    u32 first_instr;
    u32 instr_count;
};

struct Share {
    u64 start;
    u64 bytes;
    u64 stride;
};

struct BufferLayout {
    u8* base;
    const Share* table;
    u64 share_bytes;
    u64 stride;
    u32 chunks_per_share;
    u32 unused;
};

struct Port {
    Fifo out;
    Fifo into;
    u64 sent;
    u64 received;
};

struct PeerWindow {
    u8* window;
    u64* inbox;
};

// The buffers of one rank, where others reach them: cut as this rank's are.
struct PeerBuffers {
    u8* input;
    u8* output;
};

struct ScheduleArgs {
    const Instr* instrs;
    const ChunkRef* chunks;
    const LaneProgram* lane_programs;
    Port* ports;
    const PeerWindow* peer_windows;
    u64* window_sequences;
    u8* scratch;
    u64* lengths;
    BufferLayout input;
    BufferLayout output;
    u64 slice_bytes;
    u64 parity_bytes;
    u64 slices;
    u64 sequence;
    u64 fingerprint;
    u64 count;
    u64 factor;
    u64 one;
    u32 ranks;
    u32 rank;
    u32 channels;
    u32 channels_max;
    u32 lane_program_count;
    u32 scratch_chunks;
    u32 op;
    u32 divisor;
    u32 uses_window;
    u32 protocol;
    const PeerBuffers* peer_buffers;
    const u64* finalized;
    Deadline deadline;
    Completion completion;
};

struct OneShotArgs {
    const u8* input;
    u8* output;
    u8* const* mailboxes;
    u64* launches;
    u64 bytes;
    u64 block_bytes;
    u64 sequence;
    u64 fingerprint;
    u64 count;
    u64 factor;
    u32 ranks;
    u32 rank;
    u32 blocks_max;
    u32 op;
    u32 divisor;
    u32 protocol;
    const u64* finalized;
    Deadline deadline;
    Completion completion;
};

#include "schedule_abi_offsets.cuh"
