// Resources of kernels, which decide how many blocks a multiprocessor holds.
#include "launch.hpp"
#include "rules.hpp"

#include <algorithm>
#include <string.h>

namespace emulator {

namespace {

// Registers of a thread by the beginning of a kernel's name, as ptxas allots them for
// capability 9.0, rounded up.
struct Row {
    const char* prefix;
    unsigned registers;
};

constexpr Row ROWS[] = {{"schedule_", 128}, {"reduce_copy_", 128}, {"one_shot_", 96}};
constexpr unsigned OTHERS = 64;

// Units in which a multiprocessor allots them, and the most blocks that it holds.
constexpr unsigned REGISTER_UNIT = 256, WARP = 32, BLOCKS = 32;

// Registers of a warp.
unsigned of_warp(const Kernel& kernel) {
    return (registers(kernel) * WARP + REGISTER_UNIT - 1) / REGISTER_UNIT * REGISTER_UNIT;
}

} // namespace

unsigned registers(const Kernel& kernel) {
    for (const Row& row : ROWS) {
        if (strncmp(kernel.name, row.prefix, strlen(row.prefix)) == 0) {
            return row.registers;
        }
    }
    return OTHERS;
}

unsigned threads_max(const Kernel& kernel) {
    return on(Rule::RegisterOccupancy) ? std::min(1024u, REGISTERS / of_warp(kernel) * WARP) : 1024u;
}

unsigned blocks_together(const Kernel& kernel, unsigned threads) {
    if (!on(Rule::RegisterOccupancy)) {
        return 1;
    }
    unsigned warps = (threads + WARP - 1) / WARP;
    return std::min({BLOCKS, THREADS / std::max(warps * WARP, 1u), REGISTERS / std::max(warps * of_warp(kernel), 1u)});
}

} // namespace emulator
