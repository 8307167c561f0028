// Two ranks, blocks of one launch, swap a buffer, in several orders of threads.
#include "arguments.cuh"
#include "software.h"

#include <stdio.h>
#include <string.h>
#include <vector>

constexpr u32 SLOTS = 2, SLOT_BYTES = 256, BYTES = 3000;

struct Rank {
    std::vector<u8> input, output;
    std::vector<Words> slots;
    u64 tail = 0, head = 0;

    explicit Rank(u8 fill) : input(BYTES, fill), output(BYTES), slots(SLOTS * SLOT_BYTES / sizeof(Words)) {}

    // What goes to this rank.
    Fifo fifo() { return {(u8*)slots.data(), &tail, &head, SLOTS, SLOT_BYTES}; }

    Channel channel(Rank& peer, u32 rank) {
        return {input.data(), output.data(), BYTES, peer.fifo(), fifo(), 0, rank, 1 - rank};
    }
};

static bool exchange() {
    Rank left(1), right(2);
    Channel channels[] = {left.channel(right, 0), right.channel(left, 1)};
    u32 abort_word = 0;
    Status status = {};
    Exchange arguments = {channels, {&abort_word, &status, 60'000'000'000}};
    unisono_launch launch = {"exchange", &arguments, 2, 32, 1};
    if (unisono_run(&launch) != 0 || status.state != NOTHING) {
        fprintf(stderr, "%s, state %u\n", unisono_error(), status.state);
        return false;
    }
    return true;
}

int main() {
    for (u64 seed = 1; seed <= 5; seed++) {
        unisono_set_seed(seed);
        if (!exchange()) {
            return 1;
        }
    }
}
