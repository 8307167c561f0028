// Lines: data among its flags, stored in such pieces that who finds a flag has the data beside it: one trip, and no counter.
// They carry whole eights of bytes, as elements are 1, 2, 4 or 8 bytes long.
#pragma once

#include "schedule_arguments.cuh"
#include "wait.cuh"

// Two words, each of four bytes of data and a flag: every GPU stores words whole.
struct NarrowLine {
    static constexpr u32 EIGHTS = 1;
    u8 bytes[16];
};

// Things of which the first is worked on, and what comes of it goes behind the last. The compiler knows every index, so that
// all of them are in registers, and the work stands there once.
template <class T, u32 COUNT>
struct Turns {
    T at[COUNT];

    DEVICE void turn(T last) {
#pragma unroll
        for (u32 index = 1; index < COUNT; index++) {
            at[index - 1] = at[index];
        }
        at[COUNT - 1] = last;
    }
};

// What a line carries.
template <class L>
using Content = Turns<u64, L::EIGHTS>;

template <class L>
constexpr u64 DATA_BYTES = 8 * L::EIGHTS;

// Flags repeat after so many steps; 0 is none, as memory is zero at first.
constexpr u64 FLAGS = 1ull << 31;
// So often all lines are written, whatever the length: no flag is left over from so long ago that it comes again.
constexpr u64 STEPS_TO_REFRESH = 1ull << 20;

DEVICE u32 flag_of(u64 step) { return u32(step % FLAGS) + 1; }

// Whether a step is one of the last `turns` of its period, one for each place that takes turns.
DEVICE bool refreshes(u64 step, u64 turns) { return step % STEPS_TO_REFRESH >= STEPS_TO_REFRESH - turns; }

DEVICE void store_line(NarrowLine* line, const Content<NarrowLine>& content, u32 flag) {
    u64 data = content.at[0], high = u64(flag) << 32;
    store_pair(line->bytes, high | u32(data), high | data >> 32);
}

// False if the line does not have this flag yet.
DEVICE bool load_line(Content<NarrowLine>& content, const NarrowLine* line, u32 flag) {
    u64 low, high;
    load_pair(low, high, line->bytes);
    content.at[0] = high << 32 | u32(low);
    return u32(low >> 32) == flag && u32(high >> 32) == flag;
}

#ifdef UNISONO_WIDE
// Two halves, each of twelve bytes of data and a flag, where sixteen bytes are stored whole.
struct WideLine {
    static constexpr u32 EIGHTS = 3;
    u8 bytes[32];
};

DEVICE bool is_wide(u32 protocol) { return protocol == WIDE_LINES; }

DEVICE void store_line(WideLine* line, const Content<WideLine>& content, u32 flag) {
    u64 first = content.at[0], middle = content.at[1], last = content.at[2];
    Words low = {{u32(first), u32(first >> 32), u32(middle), flag}};
    Words high = {{u32(middle >> 32), u32(last), u32(last >> 32), flag}};
    store_whole(line->bytes, low);
    store_whole(line->bytes + sizeof(Words), high);
}

DEVICE bool load_line(Content<WideLine>& content, const WideLine* line, u32 flag) {
    Words low, high;
    load_whole(low, line->bytes);
    load_whole(high, line->bytes + sizeof(Words));
    content.at[0] = u64(low.words[1]) << 32 | low.words[0];
    content.at[1] = u64(high.words[0]) << 32 | low.words[2];
    content.at[2] = u64(high.words[2]) << 32 | high.words[1];
    return low.words[3] == flag && high.words[3] == flag;
}
#else
// Nobody asks for wide ones here: the host knows which kernels it has loaded.
using WideLine = NarrowLine;

DEVICE constexpr bool is_wide(u32) { return false; }
#endif

// How many lines so many bytes of data need.
template <class L>
DEVICE u64 lines_for(u64 bytes) {
    return (bytes + DATA_BYTES<L> - 1) / DATA_BYTES<L>;
}

// Bytes of these lines.
DEVICE u64 line_bytes(u32 protocol, u64 bytes) {
    return is_wide(protocol) ? lines_for<WideLine>(bytes) * sizeof(WideLine)
                             : lines_for<NarrowLine>(bytes) * sizeof(NarrowLine);
}

template <class L, class W>
DEVICE bool wait_line(Content<L>& content, const L* line, u32 flag, const W& waiter) {
    Patient patient;
    while (!load_line(content, line, flag)) {
        if (!patient.goes_on(waiter, flag, 0)) {
            return false;
        }
    }
    return true;
}

// Words in as few lines as carry them. By one thread.
template <class L, u32 COUNT>
DEVICE void store_words(L* lines, const u64 (&words)[COUNT], u32 flag) {
#pragma unroll
    for (u32 first = 0; first < COUNT; first += L::EIGHTS) {
        Content<L> content;
#pragma unroll
        for (u32 index = 0; index < L::EIGHTS; index++) {
            content.at[index] = first + index < COUNT ? words[first + index] : 0;
        }
        store_line(lines + first / L::EIGHTS, content, flag);
    }
}

// False: given up.
template <class L, u32 COUNT, class W>
DEVICE bool wait_words(u64 (&words)[COUNT], const L* lines, u32 flag, const W& waiter) {
#pragma unroll
    for (u32 first = 0; first < COUNT; first += L::EIGHTS) {
        Content<L> content;
        if (!wait_line(content, lines + first / L::EIGHTS, flag, waiter)) {
            return false;
        }
#pragma unroll
        for (u32 index = 0; index < L::EIGHTS; index++) {
            if (first + index < COUNT) {
                words[first + index] = content.at[index];
            }
        }
    }
    return true;
}

// Lines from `first` on, up to `last`, without meaning. By all threads of a block.
template <class L>
DEVICE void refresh_lines(L* lines, u64 first, u64 last, u32 flag) {
#pragma unroll 1
    for (u64 line = first + threadIdx.x; line < last; line += blockDim.x) {
        store_line(lines + line, Content<L>{}, flag);
    }
}
