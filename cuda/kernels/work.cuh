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
    // Divisor of results, for `PRE_MUL_SUM` the bits of a float, by which also partial sums of a scaled average are
    // divided. 0: they are not divided.
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
    template <class E>
    static DEVICE typename E::Value after(typename E::Value value, u32 divisor) {
        return divisor == 0 ? value : divide(value, divisor);
    }
};

// A pre-multiplied sum, or one of a scaled average, which has the bits of a float as its divisor.
struct PreMulSumOrAvg : PreMulSum {
    template <class E>
    static DEVICE typename E::Value after(typename E::Value value, u32 divisor) {
        return divisor == 0 ? value : E::scaled_average(value, float_of(divisor));
    }
};

// Returns the bits of what is left to divide by: each source was divided by the least power of two that is not below
// `divisor`, so that no partial sum leaves the range of its type.
DEVICE u32 scaled_divisor(u32 divisor) {
    u32 power = 1;
    while (power < divisor) {
        power *= 2;
    }
    return bits_of(float(divisor) / float(power));
}

// Sets the operation on sources. `scaled`: one of them is multiplied by a factor first.
DEVICE void set_op(WorkDesc& work, const ScheduleArgs& args, bool scaled, bool post_op) {
    bool is_average = args.op == AVG, is_scaled_average = args.op == PRE_MUL_SUM && args.divisor > 1;
    work.divisor = is_average && post_op ? args.divisor : 0;
    if (is_scaled_average && (post_op || work.source_count > 1)) {
        work.divisor = post_op ? scaled_divisor(args.divisor) : bits_of(1.0f);
    }
    bool sums = is_average || (args.op == PRE_MUL_SUM && !scaled && work.divisor == 0);
    u32 op = sums ? u32(SUM) : args.op;
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
            reduce<E, PreMulSumOrAvg>(pass, alone);
            break;
        default:
            copy_all<E>(pass);
        }
    }
}
