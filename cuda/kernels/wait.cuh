// Waiting for a counter that a peer raises: never for ever. One thread of a block polls.
#pragma once

#include "arguments.cuh"

// Polls between two looks at the clock and at the abort word.
constexpr u32 POLLS_PER_LOOK = 64;

// Who waits.
struct Waiter {
    const Patience& patience;
    u32 rank;
    u32 peer;
    u64 step;
};

// Tells the host, unless somebody has already.
DEVICE void give_up(const Waiter& waiter, State state, u64 wanted, u64 seen) {
    Status* status = waiter.patience.status;
    if (claim(&status->state, CLAIMED)) {
        status->rank = waiter.rank;
        status->peer = waiter.peer;
        status->step = u32(waiter.step);
        status->wanted = wanted;
        status->seen = seen;
        store_release(&status->state, u32(state));
    }
}

// Why to give up now, if there is a reason.
DEVICE State reason(const Patience& patience, u64 start) {
    if (load_relaxed(patience.abort) != 0) {
        return ABORTED;
    }
    return now_ns() - start > patience.limit_ns ? LATE : NOTHING;
}

// Whether `counter` has reached `wanted`; what was written before it did is then seen by this thread.
DEVICE bool wait_until(const u64* counter, u64 wanted, const Waiter& waiter) {
    u64 start = 0;
    for (u32 polls = 1;; polls++) {
        // Relaxed, as acquiring flushes L1 each time.
        u64 seen = load_relaxed(counter);
        if (seen >= wanted) {
            load_acquire(counter);
            return true;
        }
        if (polls % POLLS_PER_LOOK == 0) {
            start = start == 0 ? now_ns() : start;
            State why = reason(waiter.patience, start);
            if (why != NOTHING) {
                give_up(waiter, why, wanted, seen);
                return false;
            }
        }
        relax();
    }
}
