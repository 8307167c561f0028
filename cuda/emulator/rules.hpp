// Rules of real drivers that the emulator can keep, each with a switch; and its settings from the
// environment.
#pragma once

#include <string>

namespace emulator {

// In the order of the table in `rules.cpp`, which says what each does.
enum class Rule : unsigned {
    CaptureModes,
    AllocWaits,
    PinnedAllocWaits,
    FreeWaits,
    PageableCopyWaits,
    ModuleLoadWaits,
    HardwareQueues,
    ContextLock,
    RegisterOccupancy,
    Suballocate,
    IpcBlockBase,
    PeerAccess,
    Misaligned,
    StickyErrors,
    Multicast,
    ReleasePauses,
    Count,
};

// Returns true if the rule is kept.
bool on(Rule rule);

// What the variables CUDA_EMULATOR_* say.
struct Settings {
    std::string name;
    int gpus;
    unsigned multiprocessors;
    // Compute capability: ten times the major number, plus the minor one.
    int capability;
    // What is wrong with a variable; empty if nothing is.
    std::string mistake;
};

const Settings& settings();

} // namespace emulator
