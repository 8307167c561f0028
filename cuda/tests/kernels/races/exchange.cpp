// Two ranks, blocks of one launch, swap a buffer; the argument seeds the order of threads.
#include "arguments.cuh"
#include "emulator.h"

#include <stdio.h>
#include <stdlib.h>
#include <vector>

// With more slots, received data would already tell a rank that its own slots are free, and no
// credit would matter.
constexpr u32 SLOTS = 1, SLOT_BYTES = 256, BYTES = 3000;

struct Rank {
    std::vector<u8> input, output;
    std::vector<Words> slots;
    u64 tail = 0, head = 0;

    explicit Rank(u8 fill) : input(BYTES, fill), output(BYTES), slots(SLOTS * SLOT_BYTES / sizeof(Words)) {}

    // The FIFO to this rank.
    Fifo fifo() { return {(u8*)slots.data(), &tail, &head, SLOTS, SLOT_BYTES}; }

    Channel channel(Rank& peer, u32 rank) {
        return {input.data(), output.data(), BYTES, peer.fifo(), fifo(), 0, rank, 1 - rank};
    }
};

static bool exchange() {
    Rank left(1), right(2);
    Channel channels[] = {left.channel(right, 0), right.channel(left, 1)};
    u32 abort_word = 0, failed = 0;
    WaitReport status = {};
    Exchange arguments = {channels, {&abort_word, &status, 60'000'000'000, &failed}};
    unisono_launch launch = {"exchange", &arguments, 2, 32, 1};
    if (unisono_run(&launch) != 0 || status.state != OK) {
        fprintf(stderr, "%s, state %u\n", unisono_error(), status.state);
        return false;
    }
    return true;
}

int main(int, char** arguments) {
    unisono_set_seed(strtoull(arguments[1], nullptr, 10));
    return exchange() ? 0 : 1;
}
