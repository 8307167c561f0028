// Schedules and one-shots with bugs planted, of which the program's last argument chooses one.
#include "target.cuh"

#include <string.h>

extern const char* planted;

static bool has(const char* bug) { return strcmp(planted, bug) == 0; }

// Counters are raised without an order.
#define store_release(to, value) (has("relaxed_release") ? store_relaxed(to, value) : store_release(to, value))

// Data is handed over while others still move it: the barriers behind the data vote on `moved`.
#undef __syncthreads_and
#define __syncthreads_and(vote) \
    (#vote[0] == 'm' && has("missing_barrier") ? (vote) : emulator::sync_threads(vote, __FILE__, __LINE__))

// A flag goes before the rest of its sixteen bytes.
static void store_torn(u8* to, const Words& value) {
    u64 halves[2];
    memcpy(halves, &value, sizeof halves);
    store_relaxed((u64*)to + 1, halves[1]);
    emulator::published();
    store_relaxed((u64*)to, halves[0]);
}

#define store_128(to, value) (has("torn_lines") ? store_torn(to, value) : store_128(to, value))

#include "slots.cuh"

// The sender counts one slot more than there are.
static u64 one_less(u64 credit) { return credit == 0 ? 0 : credit - 1; }

#define credit_for(fifo, step) \
    (has("too_many_slots") ? one_less(credit_for(fifo, step)) : credit_for(fifo, step))

#include "ll.cuh"

// All lines have the same flag, so that old ones match.
#define flag_of(step) (has("same_flags") ? 1u : flag_of(step))

#include "build_work.cuh"
#include "ll_reduce.cuh"

// A slot is given back before it has been read.
static void give_back(const KernelContext& context, const Instr& instr) {
    if (has("early_credit") && threadIdx.x == 0 && (instr.opcode == RECV || instr.opcode == RECV_REDUCE)) {
        Port& port = port_to(context, instr.peer);
        store_release(port.into.head, port.received + 1);
    }
}

#define run_work give_back(context, instr), run_work
#define run_ll_work give_back(context, instr), run_ll_work

#include "windows.cuh"

// No rank waits for a parity of its window to be free.
#define enter_parity(context) (has("unfree_banks") ? __syncthreads_and(true) : enter_parity(context))

#include "mailbox.cuh"

// All launches use one area of a mailbox. Rank 1 looks for rank 0's lines only when others are
// there.
template <class L>
static OneShotState<L> even(const OneShotState<L>& shot) {
    return {shot.args, shot.launch & ~1ull, shot.flag, shot.start, shot.bytes};
}

template <class L>
static void hold_up(const OneShotState<L>& shot, u32 from, const L* line) {
    u64 start = now_ns();
    LinePayload<L> content;
    bool late = has("one_area") && shot.args.rank == 1 && from == 0, seen = false, there = false;
    while (late && (there || !seen) && now_ns() - start < 5000000000) {
        there = load_line(content, line, shot.flag);
        seen = seen || there;
        relax();
    }
}

#define area_of(shot, to, from) area_of(has("one_area") ? even(shot) : shot, to, from)
#define wait_words(words, lines, flag, waiter) (hold_up(shot, from, lines), wait_words(words, lines, flag, waiter))

#include "schedule_right.cu"
