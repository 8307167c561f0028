// What a block is about to move, laid out by one of its threads for all of them.
#pragma once

#include "copies.cuh"
#include "schedule_arguments.cuh"

// A message that came as lines, and one that will go as such; null where there is none.
struct LinesAtHand {
    const u8* arrived;
    u8* leaving;
    // Of the first pass, from there on.
    u64 offset;
    u64 arrived_step;
    u64 leaving_step;
    // Not 0: so many bytes that leave are all to be written, whatever the message's length.
    u64 refresh;
};

// In shared memory: passes of as many sources and targets each.
struct Desk {
    const u8* sources[OPERANDS_MAX];
    u8* targets[OPERANDS_MAX];
    u64 factors[OPERANDS_MAX];
    // Of each pass.
    u64 bytes[OPERANDS_MAX];
    u32 passes;
    u32 source_count;
    u32 target_count;
    // An `Operation`, or `AS_IT_IS`.
    u32 how;
    // What results are divided by; 0: by nothing.
    u32 divisor;
    // Where messages are lines, which are neither among the sources nor the targets then.
    LinesAtHand lines;
};

// Bits are copied.
constexpr u32 AS_IT_IS = ~0u;

// One pass, as `reduce` wants it.
struct Pass {
    const u8* const* sources;
    u8* const* targets;
    const u64* factors;
    u64 count;
    u32 source_count;
    u32 target_count;
    u32 divisor;
};

// Fewer than elsewhere: one kernel has all operations.
template <class E>
constexpr u32 UNROLL<E, Pass> = E::BYTES == 1 ? 1 : E::BYTES == 2 ? 2 : 4;

template <class E>
DEVICE Pass pass_of(const Desk& desk, u32 index) {
    u32 source = index * desk.source_count;
    return {desk.sources + source,
            desk.targets + index * desk.target_count,
            desk.factors + source,
            desk.bytes[index] / E::BYTES,
            desk.source_count,
            desk.target_count,
            desk.divisor};
}

// A sum, that of an average too.
struct SumOrAvg : Sum {
    template <class V>
    static DEVICE V after(V value, u32 divisor) {
        return divisor == 0 ? value : divide(value, divisor);
    }
};

// Says how sources become a result; `scaled`: one of them is multiplied by a factor first.
DEVICE void set_how(Desk& desk, const Interpret& args, bool scaled, bool finish) {
    u32 op = args.op == AVG || (args.op == PRE_MUL_SUM && !scaled) ? u32(SUM) : args.op;
    desk.divisor = args.op == AVG && finish ? args.divisor : 0;
    desk.how = desk.source_count == 1 && desk.divisor == 0 && op != PRE_MUL_SUM ? AS_IT_IS : op;
}

// Does all passes, by all threads of the block.
template <class E>
DEVICE void clear_desk(const Desk& desk) {
    const Team alone = {0, 1};
#pragma unroll 1
    for (u32 index = 0; index < desk.passes; index++) {
        Pass pass = pass_of<E>(desk, index);
        switch (desk.how) {
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
