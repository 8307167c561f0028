// Descriptor of the data that a block moves, built by one of its threads for all of them.
#pragma once

#include "multi_copy.cuh"
#include "schedule_arguments.cuh"

// A message that came as lines, and one that will go as such; null where there is none.
struct LlState {
    const u8* arrived;
    u8* leaving;
    // Offset of the first pass.
    u64 offset;
    u64 arrived_step;
    u64 leaving_step;
    // Not 0: so many bytes of outgoing lines are all written, whatever the message's length.
    u64 refresh;
};

// In shared memory: passes with the same numbers of sources and targets.
struct WorkDesc {
    const u8* sources[OPERANDS_MAX];
    u8* targets[OPERANDS_MAX];
    u64 factors[OPERANDS_MAX];
    // Bytes of each pass.
    u64 bytes[OPERANDS_MAX];
    u32 passes;
    u32 source_count;
    u32 target_count;
    // An `ReduceKind`, or `OP_COPY`.
    u32 op;
    // Divisor of results. 0: they are not divided.
    u32 divisor;
    // Messages in LL lines, which are then neither among the sources nor the targets.
    LlState lines;
};

// Bits are copied.
constexpr u32 OP_COPY = ~0u;

// One pass, as an argument of `reduce`.
struct Pass {
    const u8* const* sources;
    u8* const* targets;
    const u64* factors;
    u64 count;
    u32 source_count;
    u32 target_count;
    u32 divisor;
};

// Fewer than elsewhere, because one kernel has all operations.
template <class E>
constexpr u32 UNROLL<E, Pass> = E::BYTES == 1 ? 1 : E::BYTES == 2 ? 2 : 4;

template <class E>
DEVICE Pass pass_of(const WorkDesc& work, u32 index) {
    u32 source = index * work.source_count;
    return {work.sources + source,
            work.targets + index * work.target_count,
            work.factors + source,
            work.bytes[index] / E::BYTES,
            work.source_count,
            work.target_count,
            work.divisor};
}

// A sum, that of an average too.
struct SumOrAvg : Sum {
    template <class V>
    static DEVICE V after(V value, u32 divisor) {
        return divisor == 0 ? value : divide(value, divisor);
    }
};

// Sets the operation on sources. `scaled`: one of them is multiplied by a factor first.
DEVICE void set_op(WorkDesc& work, const ScheduleArgs& args, bool scaled, bool post_op) {
    u32 op = args.op == AVG || (args.op == PRE_MUL_SUM && !scaled) ? u32(SUM) : args.op;
    work.divisor = args.op == AVG && post_op ? args.divisor : 0;
    work.op = work.source_count == 1 && work.divisor == 0 && op != PRE_MUL_SUM ? OP_COPY : op;
}

// Runs all passes, by all threads of the block.
template <class E>
DEVICE void run_work(const WorkDesc& work) {
    const BlockTeam alone = {0, 1};
#pragma unroll 1
    for (u32 index = 0; index < work.passes; index++) {
        Pass pass = pass_of<E>(work, index);
        switch (work.op) {
        case SUM:
            reduce<E, SumOrAvg>(pass, alone);
            break;
        case PROD:
            reduce<E, Prod>(pass, alone);
            break;
        case MIN:
            reduce<E, Min>(pass, alone);
            break;
        case MAX:
            reduce<E, Max>(pass, alone);
            break;
        case PRE_MUL_SUM:
            reduce<E, PreMulSum>(pass, alone);
            break;
        default:
            copy_all<E>(pass);
        }
    }
}
