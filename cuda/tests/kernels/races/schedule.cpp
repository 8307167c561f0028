// Two ranks, launches of one device, execute a program repeatedly. The arguments are the seed of
// the thread order, the program, the deadline of waits, and the planted bug. Exits with 1 if the
// result is wrong or missing.
#include "schedule_arguments.cuh"
#include "emulator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string>
#include <thread>
#include <vector>

constexpr u32 RANKS = 2, SLOTS_MAX = 2, SLICE_BYTES = 64, SLOT_BYTES = 2 * (HEADER_BYTES + SLICE_BYTES);
constexpr u32 COUNT = 96, PARTS = 2, BANK_BYTES = PARTS * SLICE_BYTES, LAUNCHES = 3;
constexpr u64 TAGS = 2 * 4;

struct Program {
    std::vector<Instr> instrs;
    std::vector<ChunkRef> chunks;
    bool windows = false;

    void act(Opcode opcode, u32 peer, u32 operands, u32 targets, std::vector<ChunkRef> with, u32 signals = 0) {
        instrs.push_back({opcode, 0, u16(operands), u16(targets), 0, peer, NO_PEER, signals, u32(chunks.size())});
        chunks.insert(chunks.end(), with.begin(), with.end());
    }
};

// An all_reduce by messages: each rank reduces its half and sends it back.
static Program messages(u32 rank) {
    u32 peer = 1 - rank;
    Program program;
    program.act(SEND, peer, 1, 0, {{rank, INPUT, peer}});
    program.act(RECV_REDUCE, peer, 1, 0, {{rank, INPUT, rank}, {rank, OUTPUT, rank}});
    program.act(SEND, peer, 1, 0, {{rank, OUTPUT, rank}});
    program.act(RECV, peer, 1, 0, {{rank, OUTPUT, peer}});
    return program;
}

// Same as above, with results sent back in the same pass.
static Program fused(u32 rank) {
    u32 peer = 1 - rank;
    Program program;
    program.act(SEND, peer, 1, 0, {{rank, INPUT, peer}});
    program.act(RECV_REDUCE, peer, 1, 0, {{rank, INPUT, rank}, {rank, OUTPUT, rank}});
    program.instrs.back().forward = peer;
    program.act(RECV, peer, 1, 0, {{rank, OUTPUT, peer}});
    return program;
}

// The same over windows.
static Program two_shot(u32 rank) {
    u32 peer = 1 - rank;
    Program program;
    program.windows = true;
    program.act(COPY, 0, 1, 1, {{rank, INPUT, peer}, {rank, WINDOW, peer}});
    program.act(SIGNAL, 0, 0, 0, {});
    program.act(WAIT, peer, 0, 0, {}, 1);
    program.act(REDUCE, 0, 2, 2,
                {{rank, INPUT, rank}, {peer, WINDOW, rank}, {rank, WINDOW, rank}, {rank, OUTPUT, rank}});
    program.act(SIGNAL, 0, 0, 0, {});
    program.act(WAIT, peer, 0, 0, {}, 2);
    program.act(COPY, 0, 1, 1, {{peer, WINDOW, peer}, {rank, OUTPUT, peer}});
    return program;
}

// Rank 0 adds data that rank 1 places in its window. Rank 1 learns of progress only by parities
// that become free.
static Program one_way(u32 rank) {
    Program program;
    program.windows = true;
    for (u32 part = 0; part < PARTS; part++) {
        if (rank == 1) {
            program.act(COPY, 0, 1, 1, {{1, INPUT, part}, {1, WINDOW, part}});
            program.act(SIGNAL, 0, 0, 0, {});
            program.act(COPY, 0, 1, 1, {{1, INPUT, part}, {1, OUTPUT, part}});
        } else {
            program.act(WAIT, 1, 0, 0, {}, part + 1);
            program.act(REDUCE, 0, 2, 1, {{0, INPUT, part}, {1, WINDOW, part}, {0, OUTPUT, part}});
        }
    }
    return program;
}

struct Memory {
    std::vector<Words> words;
    explicit Memory(u64 bytes) : words(bytes / sizeof(Words) + 1) {}
    u8* start() { return (u8*)words.data(); }
};

struct Rank {
    Program program;
    std::vector<Port> ports = std::vector<Port>(LANES * RANKS);
    std::vector<u64> inbox = std::vector<u64>((LANES + 1 + TAGS) * RANKS);
    std::vector<i32> input = std::vector<i32>(COUNT), output = std::vector<i32>(COUNT);
    Memory window{2 * BANK_BYTES}, slots{SLOTS_MAX * SLOT_BYTES}, mailbox{2 * RANKS * (HEADER_BYTES + 2 * COUNT * 4)};
    u64 tail = 0, head = 0, window_sequence = 0, shots = 0;
    WaitReport status = {};
    // Whether a launch has given up, and the counts of launches that have ended.
    u32 failed = 0, blocks_ended = 0;
    u64 launches_ended = 0, done = 0;

    // The FIFO to this rank.
    Fifo fifo(Rank& sender, u32 count) { return {slots.start(), &tail, &sender.head, count, SLOT_BYTES}; }
};

// Raised when a rank has given up.
static u32 abort_word = 0;
static u64 timeout_ns;
const char* planted;

// State that all ranks share, once it has been set up.
struct World {
    std::string which;
    std::vector<Rank> ranks = std::vector<Rank>(RANKS);
    std::vector<PeerWindow> peer_windows;
    std::vector<u8*> mailboxes;

    explicit World(std::string name) : which(name) {
        // As few slots as possible, so that every credit matters.
        u32 slots = which == "fused" ? 2 : 1;
        for (u32 rank = 0; rank < RANKS; rank++) {
            Rank &own = ranks[rank], &peer = ranks[1 - rank];
            own.program = which == "two_shot"  ? two_shot(rank)
                          : which == "one_way" ? one_way(rank)
                          : which == "fused"   ? fused(rank)
                                               : messages(rank);
            own.ports[1 - rank] = {peer.fifo(own, slots), own.fifo(peer, slots), 0, 0};
            peer_windows.push_back({own.window.start(), own.inbox.data()});
            mailboxes.push_back(own.mailbox.start());
        }
    }
};

static BufferLayout extent(std::vector<i32>& buffer) {
    return {(u8*)buffer.data(), nullptr, COUNT * 4, COUNT * 4 / PARTS, PARTS, 0};
}

static int launch_schedule(World& world, u32 index) {
    Rank& rank = world.ranks[index];
    LaneProgram lane_program = {0, 0, u32(rank.program.instrs.size())};
    ScheduleArgs args = {};
    args.instrs = rank.program.instrs.data();
    args.chunks = rank.program.chunks.data();
    args.lane_programs = &lane_program;
    args.ports = rank.ports.data();
    args.peer_windows = world.peer_windows.data();
    args.window_sequences = &rank.window_sequence;
    args.input = extent(rank.input);
    args.output = extent(rank.output);
    args.slice_bytes = SLICE_BYTES;
    args.parity_bytes = BANK_BYTES;
    args.slices = (COUNT * 4 / PARTS + SLICE_BYTES - 1) / SLICE_BYTES;
    args.ranks = RANKS;
    args.rank = index;
    args.channels = args.channels_max = args.lane_program_count = 1;
    args.uses_window = rank.program.windows;
    args.protocol = world.which == "wide_lines" ? LL128 : world.which == "lines" ? LL : SIMPLE;
    args.deadline = {&abort_word, &rank.status, timeout_ns, &rank.failed};
    args.completion = {&rank.blocks_ended, &rank.launches_ended, &rank.done};
    unisono_launch launch = {"schedule_int32", &args, 1, 32, 1};
    return unisono_run(&launch);
}

static int launch_one_shot(World& world, u32 index) {
    Rank& rank = world.ranks[index];
    OneShotArgs args = {};
    args.input = (u8*)rank.input.data();
    args.output = (u8*)rank.output.data();
    args.mailboxes = world.mailboxes.data();
    args.launches = &rank.shots;
    args.bytes = args.block_bytes = COUNT * 4;
    args.ranks = RANKS;
    args.rank = index;
    args.blocks_max = 1;
    args.protocol = world.which == "wide_one_shot" ? LL128 : LL;
    args.deadline = {&abort_word, &rank.status, timeout_ns, &rank.failed};
    args.completion = {&rank.blocks_ended, &rank.launches_ended, &rank.done};
    unisono_launch launch = {"one_shot_int32", &args, 1, 32, 1};
    return unisono_run(&launch);
}

static i32 number(u32 rank, u32 index, u32 launch) { return i32(index * 3 + rank * 1000 + launch * 100000); }

static bool is_right(const Rank& rank, u32 launch, bool sums) {
    for (u32 index = 0; index < COUNT; index++) {
        i32 wanted = number(1, index, launch) + (sums ? number(0, index, launch) : 0);
        if (rank.output[index] != wanted) {
            return fprintf(stderr, "[%u]: %d, not %d\n", index, rank.output[index], wanted), false;
        }
    }
    return true;
}

// One rank's launches, one after the other. Ranks wait for each other in kernels only.
static bool run(World& world, u32 index) {
    Rank& rank = world.ranks[index];
    bool one_shot = world.which == "one_shot" || world.which == "wide_one_shot";
    for (u32 launch = 0; launch < (one_shot ? 4 * LAUNCHES : LAUNCHES); launch++) {
        for (u32 at = 0; at < COUNT; at++) {
            rank.input[at] = number(index, at, launch);
        }
        int failed = one_shot ? launch_one_shot(world, index) : launch_schedule(world, index);
        if (failed || rank.status.state != OK || !is_right(rank, launch, world.which != "one_way" || index == 0)) {
            fprintf(stderr, "rank %u, launch %u: %s, state %u\n", index, launch, unisono_error(), rank.status.state);
            __atomic_store_n(&abort_word, 1, __ATOMIC_RELAXED);
            return false;
        }
    }
    return true;
}

int main(int, char** arguments) {
    unisono_set_seed(strtoull(arguments[1], nullptr, 10));
    World world(arguments[2]);
    timeout_ns = strtoull(arguments[3], nullptr, 10) * 1000000;
    planted = arguments[4];
    bool ended[RANKS];
    std::thread other([&] { ended[1] = run(world, 1); });
    ended[0] = run(world, 0);
    other.join();
    return ended[0] && ended[1] ? 0 : 1;
}
