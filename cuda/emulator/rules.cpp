#include "rules.hpp"

#include "driver.hpp"
#include "emulator.h"

#include <algorithm>
#include <atomic>
#include <stdlib.h>
#include <string.h>

namespace emulator {

namespace {

constexpr const char* DEFAULT_NAME = "unisono software device";

// A rule. `source` says why we take it for the driver's: the CUDA programming guide ("guide"), the
// reference of the driver's functions ("reference"), what users of drivers report ("reports"), or
// nothing better than caution ("assumed").
struct Row {
    const char* name;
    bool by_default;
    const char *effect, *source;
};

constexpr Row ROWS[] = {
    {"capture-modes", true,
     "While a stream is captured, calls that are potentially unsafe are refused and spoil the capture: from any "
     "thread in mode global, from the capturing thread in mode thread-local. A thread is exempt in mode relaxed.",
     "reference: cuThreadExchangeStreamCaptureMode; guide: stream capture, prohibited operations"},
    {"alloc-waits", false, "cuMemAlloc and cuMemCreate wait for running kernels of the GPU.",
     "guide: implicit synchronization; reports say that it is rare"},
    {"pinned-alloc-waits", false, "cuMemHostAlloc and cuMemFreeHost wait for running kernels of the GPU.",
     "guide: implicit synchronization; reports: NCCL issue 70"},
    {"free-waits", true, "cuMemFree waits for running kernels of the GPU.",
     "reports: NCCL issue 70; reference: cudaFree synchronizes"},
    {"pageable-copy-waits", false,
     "Copies between a GPU and memory that is not page-locked wait for running kernels of the GPU.",
     "assumed: the reference allows it, as such copies are staged"},
    {"module-load-waits", true,
     "Loading a module, and the first use of a function, wait for all work of the GPU that is enqueued.",
     "guide: lazy loading, concurrent execution"},
    // Off, because tests of the library run several communicators in one process, whose streams then
    // are more than the queues.
    {"hardware-queues", false,
     "Streams of a GPU share as many queues as CUDA_DEVICE_MAX_CONNECTIONS says, 8 if it says nothing. Work at the "
     "head of a queue that cannot start blocks the work of other streams behind it.",
     "guide: CUDA_DEVICE_MAX_CONNECTIONS, false dependencies of streams"},
    // Off, because a test fills a stream of two entries, and its ranks then cannot launch at all.
    {"context-lock", false,
     "A launch that waits for room in its stream holds the lock of its context, so that other calls wait.",
     "reports: PyTorch watchdogs that hang in cuEventQuery"},
    {"register-occupancy", false,
     "A multiprocessor holds as many blocks as its registers and threads allow; otherwise one. On under another name "
     "than the default one.",
     "guide: hardware multithreading; ptxas for the registers"},
    {"suballocate", true,
     "Allocations of less than 2 MiB share blocks of 2 MiB, which other processes open as a whole.",
     "guide: interprocess communication"},
    {"ipc-block-base", false,
     "An opened handle is the address of the block of 2 MiB, and its range is that block; otherwise those of the "
     "allocation.",
     "assumed: not said by the reference"},
    {"peer-access", true,
     "Copies and launches whose arguments point to another GPU's memory fail without peer access. Pointers in memory "
     "are not checked.",
     "reference: cuCtxEnablePeerAccess; assumed for copies"},
    {"misaligned", true, "A kernel that accesses a value at an address that is no multiple of its size fails.",
     "guide: device memory accesses"},
    {"sticky-errors", true, "After a kernel has failed, every call that needs the context returns its error.",
     "reference: CUDA_ERROR_LAUNCH_FAILED"},
    {"multicast", false, "GPUs have multicast objects.", "reference: attribute MULTICAST_SUPPORTED"},
    {"time-slices", false, "Processes of a user that share a GPU run kernels in turn, for slices of 2 ms.",
     "guide: compute modes and MPS; the length is assumed"},
    {"mps", false, "Processes of a user that share a GPU share its room for blocks.",
     "MPS documentation: kernels of several processes run at once"},
    {"release-pauses", true,
     "A kernel often pauses after it publishes data, so that readers overtake stores that should come before.",
     "no driver: a way to find races"},
};
static_assert(sizeof ROWS / sizeof *ROWS == unsigned(Rule::Count), "a row for each rule");

std::atomic<bool> kept[unsigned(Rule::Count)];

bool set_rule(const std::string& name, bool wanted) {
    for (unsigned index = 0; index < unsigned(Rule::Count); index++) {
        if (name == ROWS[index].name) {
            return kept[index] = wanted, true;
        }
    }
    return false;
}

void set_all(bool wanted) {
    std::for_each(std::begin(kept), std::end(kept), [&](std::atomic<bool>& each) { each = wanted; });
}

// Applies a list like "none,free-waits,-alloc-waits" from left to right. Returns the first name
// that no rule has.
std::string apply(const char* list) {
    for (const char* at = list; *at;) {
        size_t length = strcspn(at, ",");
        std::string name(at, length);
        bool wanted = name[0] != '-';
        std::string rule = name.substr(wanted ? 0 : 1);
        if (name == "all" || name == "none") {
            set_all(name == "all");
        } else if (!name.empty() && !set_rule(rule, wanted)) {
            return rule;
        }
        at += length + (at[length] == ',');
    }
    return "";
}

// A variable's number. Notes as a mistake what is none, or out of range.
int number(const char* variable, int otherwise, int most, std::string& mistake) {
    const char* text = getenv(variable);
    if (!text || !*text) {
        return otherwise;
    }
    char* end;
    long value = strtol(text, &end, 10);
    if (*end || value < 1 || value > most) {
        mistake = std::string(variable) + "=" + text + ": not a number from 1 to " + std::to_string(most);
        return otherwise;
    }
    return int(value);
}

Settings read() {
    Settings read;
    const char* name = getenv("CUDA_EMULATOR_NAME");
    read.name = name && *name ? name : DEFAULT_NAME;
    read.gpus = number("CUDA_EMULATOR_GPUS", 1, GPUS_MAX, read.mistake);
    read.multiprocessors = unsigned(number("CUDA_EMULATOR_MULTIPROCESSORS", 64, 4096, read.mistake));
    read.capability = number("CUDA_EMULATOR_CAPABILITY", 80, 999, read.mistake);
    for (unsigned index = 0; index < unsigned(Rule::Count); index++) {
        kept[index] = ROWS[index].by_default;
    }
    kept[unsigned(Rule::RegisterOccupancy)] = read.name != DEFAULT_NAME;
    const char* rules = getenv("CUDA_EMULATOR_RULES");
    if (std::string unknown = apply(rules ? rules : ""); !unknown.empty()) {
        read.mistake = "CUDA_EMULATOR_RULES: there is no rule " + unknown;
    }
    return read;
}

} // namespace

const Settings& settings() {
    static const Settings& all = *new Settings(read());
    return all;
}

bool on(Rule rule) {
    settings();
    return kept[unsigned(rule)].load(std::memory_order_relaxed);
}

} // namespace emulator

using namespace emulator;

uint32_t unisono_set_rule(const char* name, uint32_t wanted) {
    settings();
    return set_rule(name, wanted != 0);
}

const char* unisono_rule(uint32_t index) { return index < uint32_t(Rule::Count) ? ROWS[index].name : nullptr; }

const char* unisono_rule_effect(uint32_t index) {
    return index < uint32_t(Rule::Count) ? ROWS[index].effect : nullptr;
}

uint32_t unisono_rule_is_on(uint32_t index) { return index < uint32_t(Rule::Count) && on(Rule(index)); }
