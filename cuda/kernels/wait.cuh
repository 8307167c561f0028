// Waits for a counter that a peer raises, with a deadline and an abort check. One thread of a block
// polls it.
#pragma once

#include "arguments.cuh"

// Polls between two checks of the clock and of the abort word.
constexpr u32 POLLS_PER_CHECK = 64;

// The waiting rank and its step.
struct Waiter {
    const Deadline& deadline;
    u32 rank;
    u32 peer;
    u64 step;

    DEVICE bool has_finalized() const { return false; }

    DEVICE void describe(WaitReport* status) const {
        status->rank = rank;
        status->peer = peer;
        status->step = u32(step);
    }
};

// Returns true if a peer has left, by a table with a word for each rank. Null: no rank leaves.
DEVICE bool is_finalized(const u64* left, u32 peer) { return left && load_acquire(left + peer) != 0; }

// Returns the word that launches which give up set.
DEVICE u32* failed_word(const Deadline& deadline) {
    return deadline.failed ? deadline.failed : &deadline.report->state;
}

// Reports to the host, unless another thread has already.
template <class W>
DEVICE void report_failure(const W& waiter, WaitState state, u64 wanted, u64 seen) {
    WaitReport* status = waiter.deadline.report;
    if (claim(failed_word(waiter.deadline), CLAIMED)) {
        waiter.describe(status);
        status->wanted = wanted;
        status->seen = seen;
        store_release(&status->state, u32(state));
    }
}

// Returns true if a block of this launch, or of one before it, has given up.
DEVICE bool has_failed(const Deadline& deadline) { return load_relaxed(failed_word(deadline)) != OK; }

// After a launch that gave up, later launches end at once. Run by all threads of a block.
DEVICE bool is_healthy(const Deadline& deadline) {
    return __syncthreads_and(threadIdx.x != 0 || !has_failed(deadline));
}

// Returns the reason to give up, if there is one.
DEVICE WaitState reason(const Deadline& deadline, u64 start) {
    if (load_relaxed(deadline.abort) != 0 || has_failed(deadline)) {
        return ABORTED;
    }
    return now_ns() - start > deadline.timeout_ns ? TIMED_OUT : OK;
}

// A wait under way.
struct PollLoop {
    u32 polls = 0;
    // Rank that had left at the last check.
    u32 left = ~0u;
    u64 start = 0;

    // Called after each poll that found `seen`: returns true to go on.
    template <class W>
    DEVICE bool keep_polling(const W& waiter, u64 wanted, u64 seen) {
        if (++polls % POLLS_PER_CHECK == 0) {
            start = start == 0 ? now_ns() : start;
            WaitState why = reason(waiter.deadline, start);
            if (why == OK && waiter.has_finalized()) {
                // All that it said was there by the last look: the polls since would have found it.
                why = left == waiter.peer ? PEER_FINALIZED : OK;
                left = waiter.peer;
            }
            if (why != OK) {
                report_failure(waiter, why, wanted, seen);
                return false;
            }
        }
        relax();
        return true;
    }
};

// Waits until `counter` has reached `wanted`. Writes before it are then visible to this thread.
template <class W>
DEVICE bool wait_until(const u64* counter, u64 wanted, const W& waiter) {
    PollLoop patient;
    for (;;) {
        // Relaxed, as acquiring flushes L1 each time.
        u64 seen = load_relaxed(counter);
        if (seen >= wanted) {
            load_acquire(counter);
            return true;
        }
        if (!patient.keep_polling(waiter, wanted, seen)) {
            return false;
        }
    }
}

// Counts the launch once all of its blocks have ended. Run by all threads of each block, at its end.
DEVICE void count_completed(const Completion& completion) {
    if (!completion.blocks) {
        return;
    }
    // The barrier orders what all threads of the block have stored before the addition.
    __syncthreads();
    if (threadIdx.x == 0 && add_acq_rel(completion.blocks, 1) + 1 == gridDim.x) {
        // The next launch begins after this one, so the last block may write without atomics.
        store_relaxed(completion.blocks, 0u);
        u64 launches = *completion.launches + 1;
        *completion.launches = launches;
        store_release(completion.done, launches);
    }
}
