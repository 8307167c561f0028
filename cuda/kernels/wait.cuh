// Waiting for a counter that a peer raises: never for ever. One thread of a block polls it.
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

    DEVICE bool is_left() const { return false; }

    DEVICE void describe(Status* status) const {
        status->rank = rank;
        status->peer = peer;
        status->step = u32(step);
    }
};

// Whether a peer has left, by a table with a word for each; null: nobody does.
DEVICE bool has_left(const u64* left, u32 peer) { return left && load_acquire(left + peer) != 0; }

// Tells the host, unless somebody has already.
template <class W>
DEVICE void give_up(const W& waiter, State state, u64 wanted, u64 seen) {
    Status* status = waiter.patience.status;
    if (claim(&status->state, CLAIMED)) {
        waiter.describe(status);
        status->wanted = wanted;
        status->seen = seen;
        store_release(&status->state, u32(state));
    }
}

// Whether a block of this launch, or of one before it, has given up.
DEVICE bool is_lost(const Patience& patience) { return load_relaxed(&patience.status->state) != NOTHING; }

// After a launch that ended early, those behind it end at once. By all threads of a block.
DEVICE bool is_sound(const Patience& patience) {
    return __syncthreads_and(threadIdx.x != 0 || !is_lost(patience));
}

// Why to give up now, if there is a reason.
DEVICE State reason(const Patience& patience, u64 start) {
    if (load_relaxed(patience.abort) != 0 || is_lost(patience)) {
        return ABORTED;
    }
    return now_ns() - start > patience.limit_ns ? LATE : NOTHING;
}

// A wait under way.
struct Patient {
    u32 polls = 0;
    // Who had left at the last look.
    u32 left = ~0u;
    u64 start = 0;

    // Called after each poll that found `seen`: whether to go on.
    template <class W>
    DEVICE bool goes_on(const W& waiter, u64 wanted, u64 seen) {
        if (++polls % POLLS_PER_LOOK == 0) {
            start = start == 0 ? now_ns() : start;
            State why = reason(waiter.patience, start);
            if (why == NOTHING && waiter.is_left()) {
                // All that it said was there by the last look: the polls since would have found it.
                why = left == waiter.peer ? LEFT : NOTHING;
                left = waiter.peer;
            }
            if (why != NOTHING) {
                give_up(waiter, why, wanted, seen);
                return false;
            }
        }
        relax();
        return true;
    }
};

// Whether `counter` has reached `wanted`; what was written before it did is then seen by this thread.
template <class W>
DEVICE bool wait_until(const u64* counter, u64 wanted, const W& waiter) {
    Patient patient;
    for (;;) {
        // Relaxed, as acquiring flushes L1 each time.
        u64 seen = load_relaxed(counter);
        if (seen >= wanted) {
            load_acquire(counter);
            return true;
        }
        if (!patient.goes_on(waiter, wanted, seen)) {
            return false;
        }
    }
}
