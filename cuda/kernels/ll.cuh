// LL lines: data with flags, stored by single accesses, so that a reader that finds a flag has its
// data too. This takes one trip and no counter. Lines carry whole 8-byte words of elements, which
// are 1, 2, 4 or 8 bytes long.
#pragma once

#include "schedule_arguments.cuh"
#include "wait.cuh"

// Two 8-byte words, each of 4 bytes of data and a flag. Every GPU stores 8-byte words by one
// access.
struct LlLine {
    static constexpr u32 WORDS64 = 1;
    u8 bytes[16];
};

// A queue in registers: the first entry is processed, and a new one is appended. The compiler knows
// every index, and emits the code for an entry once.
template <class T, u32 COUNT>
struct RotatingArray {
    T at[COUNT];

    DEVICE void turn(T last) {
#pragma unroll
        for (u32 index = 1; index < COUNT; index++) {
            at[index - 1] = at[index];
        }
        at[COUNT - 1] = last;
    }
};

// The data of a line.
template <class L>
using LinePayload = RotatingArray<u64, L::WORDS64>;

template <class L>
constexpr u64 DATA_BYTES = 8 * L::WORDS64;

// Flags repeat after so many steps; 0 is none, as memory is zero at first.
constexpr u64 FLAGS = 1ull << 31;
// Period after which all lines are written, whatever the length, so that no flag stays long enough
// to match again.
constexpr u64 REFRESH_PERIOD = 1ull << 20;

DEVICE u32 flag_of(u64 step) { return u32(step % FLAGS) + 1; }

// Returns true if a step is one of the last `turns` of its period: one for each alternating place.
DEVICE bool refreshes(u64 step, u64 turns) { return step % REFRESH_PERIOD >= REFRESH_PERIOD - turns; }

DEVICE void store_line(LlLine* line, const LinePayload<LlLine>& content, u32 flag) {
    u64 data = content.at[0], high = u64(flag) << 32;
    store_pair(line->bytes, high | u32(data), high | data >> 32);
}

// False if the line does not have this flag yet.
DEVICE bool load_line(LinePayload<LlLine>& content, const LlLine* line, u32 flag) {
    u64 low, high;
    load_pair(low, high, line->bytes);
    content.at[0] = high << 32 | u32(low);
    return u32(low >> 32) == flag && u32(high >> 32) == flag;
}

#ifdef UNISONO_LL128
// Two halves, each of 12 bytes of data and a flag, for GPUs that store 16 bytes by one access.
struct Ll128Line {
    static constexpr u32 WORDS64 = 3;
    u8 bytes[32];
};

DEVICE bool is_ll128(u32 protocol) { return protocol == LL128; }

DEVICE void store_line(Ll128Line* line, const LinePayload<Ll128Line>& content, u32 flag) {
    u64 first = content.at[0], middle = content.at[1], last = content.at[2];
    Words low = {{u32(first), u32(first >> 32), u32(middle), flag}};
    Words high = {{u32(middle >> 32), u32(last), u32(last >> 32), flag}};
    store_128(line->bytes, low);
    store_128(line->bytes + sizeof(Words), high);
}

DEVICE bool load_line(LinePayload<Ll128Line>& content, const Ll128Line* line, u32 flag) {
    Words low, high;
    load_128(low, line->bytes);
    load_128(high, line->bytes + sizeof(Words));
    content.at[0] = u64(low.words[1]) << 32 | low.words[0];
    content.at[1] = u64(high.words[0]) << 32 | low.words[2];
    content.at[2] = u64(high.words[2]) << 32 | high.words[1];
    return low.words[3] == flag && high.words[3] == flag;
}
#else
// Never used: the host passes LL128 only to kernels that have it.
using Ll128Line = LlLine;

DEVICE constexpr bool is_ll128(u32) { return false; }
#endif

// Returns the number of lines for so many bytes of data.
template <class L>
DEVICE u64 lines_for(u64 bytes) {
    return (bytes + DATA_BYTES<L> - 1) / DATA_BYTES<L>;
}

// Bytes of these lines.
DEVICE u64 line_bytes(u32 protocol, u64 bytes) {
    return is_ll128(protocol) ? lines_for<Ll128Line>(bytes) * sizeof(Ll128Line)
                             : lines_for<LlLine>(bytes) * sizeof(LlLine);
}

template <class L, class W>
DEVICE bool wait_line(LinePayload<L>& content, const L* line, u32 flag, const W& waiter) {
    PollLoop patient;
    while (!load_line(content, line, flag)) {
        if (!patient.keep_polling(waiter, flag, 0)) {
            return false;
        }
    }
    return true;
}

// Stores words in as few lines as carry them. Run by one thread.
template <class L, u32 COUNT>
DEVICE void store_words(L* lines, const u64 (&words)[COUNT], u32 flag) {
#pragma unroll
    for (u32 first = 0; first < COUNT; first += L::WORDS64) {
        LinePayload<L> content;
#pragma unroll
        for (u32 index = 0; index < L::WORDS64; index++) {
            content.at[index] = first + index < COUNT ? words[first + index] : 0;
        }
        store_line(lines + first / L::WORDS64, content, flag);
    }
}

// False: given up.
template <class L, u32 COUNT, class W>
DEVICE bool wait_words(u64 (&words)[COUNT], const L* lines, u32 flag, const W& waiter) {
#pragma unroll
    for (u32 first = 0; first < COUNT; first += L::WORDS64) {
        LinePayload<L> content;
        if (!wait_line(content, lines + first / L::WORDS64, flag, waiter)) {
            return false;
        }
#pragma unroll
        for (u32 index = 0; index < L::WORDS64; index++) {
            if (first + index < COUNT) {
                words[first + index] = content.at[index];
            }
        }
    }
    return true;
}

// Writes the lines from `first` to `last` without data. Run by all threads of a block.
template <class L>
DEVICE void refresh_lines(L* lines, u64 first, u64 last, u32 flag) {
#pragma unroll 1
    for (u64 line = first + threadIdx.x; line < last; line += blockDim.x) {
        store_line(lines + line, LinePayload<L>{}, flag);
    }
}
