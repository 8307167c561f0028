// The arguments of the kernels that carry out schedules; `src/device/schedule.rs` has them for the host, with what
// every field means.
#pragma once

#include "arguments.cuh"

enum Verb : u8 { SEND, RECV, RECV_REDUCE, COPY, REDUCE, SIGNAL, WAIT };

enum Space : u32 { INPUT, OUTPUT, SCRATCH, WINDOW };

enum Protocol : u32 { SLOTS, LINES, WIDE_LINES };

enum Operation : u32 { SUM, PROD, MIN, MAX, AVG, PRE_MUL_SUM };

constexpr u32 NOBODY = ~0u;
constexpr u32 OPERANDS_MAX = 64;
constexpr u32 LANES = 2;
constexpr u64 HEAD_BYTES = 64;

struct Act {
    u8 verb;
    u8 finish;
    u16 operands;
    u16 targets;
    u16 together;
    u32 peer;
    u32 forward;
    u32 signals;
    u32 first_place;
};

struct Place {
    u32 rank;
    u32 space;
    u32 index;
};

struct Strand {
    u32 lane;
    u32 first_act;
    u32 acts;
};

struct Share {
    u64 start;
    u64 bytes;
    u64 stride;
};

struct Extent {
    u8* base;
    const Share* table;
    u64 share_bytes;
    u64 stride;
    u32 parts;
    u32 unused;
};

struct Port {
    Fifo out;
    Fifo into;
    u64 sent;
    u64 received;
};

struct Neighbour {
    u8* window;
    u64* inbox;
};

// The buffers of one rank, where others reach them: cut as this rank's are.
struct Lent {
    u8* input;
    u8* output;
};

struct Interpret {
    const Act* acts;
    const Place* places;
    const Strand* strands;
    Port* ports;
    const Neighbour* neighbours;
    u64* instances;
    u8* scratch;
    u64* lengths;
    Extent input;
    Extent output;
    u64 slice_bytes;
    u64 bank_bytes;
    u64 pieces;
    u64 sequence;
    u64 what;
    u64 count;
    u64 factor;
    u64 one;
    u32 ranks;
    u32 rank;
    u32 channels;
    u32 channels_max;
    u32 strand_count;
    u32 scratch_blocks;
    u32 op;
    u32 divisor;
    u32 uses_window;
    u32 protocol;
    const Lent* lent;
    const u64* left;
    Patience patience;
};

struct OneShot {
    const u8* input;
    u8* output;
    u8* const* mailboxes;
    u64* launches;
    u64 bytes;
    u64 block_bytes;
    u64 sequence;
    u64 what;
    u64 count;
    u64 factor;
    u32 ranks;
    u32 rank;
    u32 blocks_max;
    u32 op;
    u32 divisor;
    u32 protocol;
    const u64* left;
    Patience patience;
};

#include "schedule_layout.cuh"
