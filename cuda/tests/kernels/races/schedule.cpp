// Two ranks, launches of one device, carry out a program over and over; the arguments are the seed of the order of threads,
// which program, and how long waits last. Ends with 1 if the result is wrong or does not come.
#include "schedule_arguments.cuh"
#include "software.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <string>
#include <thread>
#include <vector>

// As few slots as there can be, so that every credit matters.
constexpr u32 RANKS = 2, SLOT_COUNT = 1, SLICE_BYTES = 64, SLOT_BYTES = 2 * (HEAD_BYTES + SLICE_BYTES);
constexpr u32 COUNT = 96, PARTS = 2, BANK_BYTES = PARTS * SLICE_BYTES, LAUNCHES = 2;
constexpr u64 TAGS = 2 * 4;

struct Program {
    std::vector<Act> acts;
    std::vector<Place> places;
    bool windows = false;

    void act(Verb verb, u32 peer, u32 operands, u32 targets, std::vector<Place> with, u32 signals = 0) {
        acts.push_back({verb, 0, u16(operands), u16(targets), 0, peer, NOBODY, signals, u32(places.size())});
        places.insert(places.end(), with.begin(), with.end());
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

// Rank 0 adds what rank 1 lays out, which hears of it by nothing but banks that become free.
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
    Memory window{2 * BANK_BYTES}, slots{SLOT_COUNT * SLOT_BYTES};
    u64 tail = 0, head = 0, instance = 0;
    Status status = {};

    // What goes to this rank.
    Fifo fifo(Rank& sender) { return {slots.start(), &tail, &sender.head, SLOT_COUNT, SLOT_BYTES}; }
};

// Raised when a rank has given up.
static u32 abort_word = 0;
static u64 limit_ns;

static Extent extent(std::vector<i32>& buffer) {
    return {(u8*)buffer.data(), nullptr, COUNT * 4, COUNT * 4 / PARTS, PARTS, 0};
}

static bool run(Rank& rank, u32 index, Strand& strand, const std::vector<Neighbour>& neighbours, Protocol protocol) {
    strand = {0, 0, u32(rank.program.acts.size())};
    Interpret args = {};
    args.acts = rank.program.acts.data();
    args.places = rank.program.places.data();
    args.strands = &strand;
    args.ports = rank.ports.data();
    args.neighbours = neighbours.data();
    args.instances = &rank.instance;
    args.input = extent(rank.input);
    args.output = extent(rank.output);
    args.slice_bytes = SLICE_BYTES;
    args.bank_bytes = BANK_BYTES;
    args.pieces = (COUNT * 4 / PARTS + SLICE_BYTES - 1) / SLICE_BYTES;
    args.ranks = RANKS;
    args.rank = index;
    args.channels = args.channels_max = args.strand_count = 1;
    args.uses_window = rank.program.windows;
    args.protocol = protocol;
    args.patience = {&abort_word, &rank.status, limit_ns};
    unisono_launch launch = {"schedule_int32", &args, 1, 32, 1};
    bool fine = unisono_run(&launch) == 0 && rank.status.state == NOTHING;
    if (!fine) {
        __atomic_store_n(&abort_word, 1, __ATOMIC_RELAXED);
    }
    return fine;
}

static bool is_right(std::vector<Rank>& ranks, bool both) {
    for (u32 rank = 0; rank < RANKS; rank++) {
        for (u32 index = 0; index < COUNT; index++) {
            i32 sum = ranks[0].input[index] + ranks[1].input[index];
            if (ranks[rank].output[index] != (rank == 0 || both ? sum : ranks[1].input[index])) {
                return fprintf(stderr, "rank %u, [%u]: %d\n", rank, index, ranks[rank].output[index]), false;
            }
        }
    }
    return true;
}

// All launches of all ranks, each rank's in a thread.
static bool run_all(std::vector<Rank>& ranks, Protocol protocol, bool both) {
    std::vector<Neighbour> neighbours;
    for (u32 rank = 0; rank < RANKS; rank++) {
        ranks[rank].ports[1 - rank] = {ranks[1 - rank].fifo(ranks[rank]), ranks[rank].fifo(ranks[1 - rank]), 0, 0};
        neighbours.push_back({ranks[rank].window.start(), ranks[rank].inbox.data()});
    }
    bool fine = true;
    for (u32 launch = 0; launch < LAUNCHES && fine; launch++) {
        Strand strands[RANKS];
        bool ended[RANKS];
        for (u32 rank = 0; rank < RANKS; rank++) {
            for (u32 index = 0; index < COUNT; index++) {
                ranks[rank].input[index] = i32(index * 3 + rank * 1000 + launch * 100000);
            }
        }
        std::thread other([&] { ended[1] = run(ranks[1], 1, strands[1], neighbours, protocol); });
        ended[0] = run(ranks[0], 0, strands[0], neighbours, protocol);
        other.join();
        fine = ended[0] && ended[1] && is_right(ranks, both);
    }
    return fine;
}

int main(int, char** arguments) {
    unisono_set_seed(strtoull(arguments[1], nullptr, 10));
    std::string which = arguments[2];
    limit_ns = strtoull(arguments[3], nullptr, 10) * 1000000;
    std::vector<Rank> ranks(RANKS);
    for (u32 rank = 0; rank < RANKS; rank++) {
        ranks[rank].program = which == "two_shot" ? two_shot(rank) : which == "one_way" ? one_way(rank) : messages(rank);
    }
    bool fine = run_all(ranks, which == "lines" ? LINES : SLOTS, which != "one_way");
    if (!fine) {
        fprintf(stderr, "%s, states %u %u\n", unisono_error(), ranks[0].status.state, ranks[1].status.state);
    }
    return fine ? 0 : 1;
}
