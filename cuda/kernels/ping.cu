// A counter that two blocks raise in turn, by each way to poll and each way to publish: measures
// flag latency.
#include "wait.cuh"

// Polls with acquiring loads until the counter has reached `wanted`.
DEVICE bool acquire_until(const u64* counter, u64 wanted, const Waiter& waiter) {
    u64 start = now_ns();
    for (u32 polls = 1;; polls++) {
        u64 seen = load_acquire(counter);
        if (seen >= wanted) {
            return true;
        }
        WaitState why = polls % POLLS_PER_CHECK == 0 ? reason(waiter.deadline, start) : OK;
        if (why != OK) {
            report_failure(waiter, why, wanted, seen);
            return false;
        }
        relax();
    }
}

template <bool ACQUIRING, bool FENCED>
DEVICE void ping(const Ping& args) {
    if (threadIdx.x != 0) {
        return;
    }
    for (u64 round = args.first + 1; round <= args.first + args.rounds; round++) {
        Waiter waiter = {args.deadline, args.rank, 1 - args.rank, round};
        // Rank 0 begins: it waits for the answer of the round before, and rank 1 for this round.
        u64 wanted = args.rank == 0 ? round - 1 : round;
        bool seen = ACQUIRING ? acquire_until(args.own, wanted, waiter) : wait_until(args.own, wanted, waiter);
        if (!seen) {
            return;
        }
        if (FENCED) {
            fence();
            store_relaxed(args.other, round);
        } else {
            store_release(args.other, round);
        }
    }
}

UNISONO_KERNEL(ping_relaxed_release, Ping) { ping<false, false>(args); }
UNISONO_KERNEL(ping_relaxed_fence, Ping) { ping<false, true>(args); }
UNISONO_KERNEL(ping_acquire_release, Ping) { ping<true, false>(args); }
UNISONO_KERNEL(ping_acquire_fence, Ping) { ping<true, true>(args); }
