// Lines of 16 bytes: eight of data, and after every four a flag. Words are written whole, so that who finds the flag
// has the data: one trip, and no counter.
#pragma once

#include "wait.cuh"

constexpr u64 LINE_BYTES = 16;
constexpr u64 LINE_DATA_BYTES = 8;

// Lines for so much data, in bytes.
DEVICE u64 line_bytes(u64 bytes) { return (bytes + LINE_DATA_BYTES - 1) / LINE_DATA_BYTES * LINE_BYTES; }

// Flags repeat after so many steps; 0 is none, as memory is zero at first.
constexpr u64 FLAGS = 1ull << 31;
// So often all lines are written, whatever the length: no flag is left over from so long ago that it comes again.
constexpr u64 STEPS_TO_REFRESH = 1ull << 20;

DEVICE u32 flag_of(u64 step) { return u32(step % FLAGS) + 1; }

// Whether a step is one of the last `turns` of its period, one for each place that takes turns.
DEVICE bool refreshes(u64 step, u64 turns) { return step % STEPS_TO_REFRESH >= STEPS_TO_REFRESH - turns; }

DEVICE void store_line(u8* line, u64 data, u32 flag) {
    u64 high = u64(flag) << 32;
    store_pair(line, high | u32(data), high | data >> 32);
}

// False if the line does not have this flag yet.
DEVICE bool load_line(u64& data, const u8* line, u32 flag) {
    u64 low, high;
    load_pair(low, high, line);
    data = high << 32 | u32(low);
    return u32(low >> 32) == flag && u32(high >> 32) == flag;
}

template <class W>
DEVICE bool wait_line(u64& data, const u8* line, u32 flag, const W& waiter) {
    Patient patient;
    while (!load_line(data, line, flag)) {
        if (!patient.goes_on(waiter, flag, 0)) {
            return false;
        }
    }
    return true;
}

// Lines from `first` on, up to `last`, without meaning. By all threads of a block.
DEVICE void refresh_lines(u8* lines, u64 first, u64 last, u32 flag) {
#pragma unroll 1
    for (u64 line = first + threadIdx.x; line < last; line += blockDim.x) {
        store_line(lines + line * LINE_BYTES, 0, flag);
    }
}
