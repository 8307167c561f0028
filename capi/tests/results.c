/* Runs random collectives on threads as ranks, in place or not, and compares each result with a naive one.
 *
 * Usage: unisono-c-results SECONDS SEED */
#include "check.h"

#include <string.h>
#include <time.h>

#define RANKS 3
#define COUNT_MAX 300
#define BYTES (RANKS * COUNT_MAX * 8 + 8)

/* A call, equal on all ranks. */
struct call {
    uint32_t collective, dtype, op;
    size_t root, count, shift;
    int in_place, starts;
};

struct rank {
    unisono_comm *comm;
    size_t rank;
    uint64_t seed;
    double seconds;
    uint64_t checked;
    char in[BYTES], out[BYTES];
};

static const uint32_t dtypes[] = {UNISONO_U8, UNISONO_I32, UNISONO_I64, UNISONO_F32, UNISONO_F64};
static const size_t sizes[] = {1, 4, 8, 4, 8};

static size_t below(uint64_t *random, size_t limit) {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    return *random % limit;
}

static void put(const struct call *call, char *place, long value) {
    uint8_t u8 = (uint8_t)value;
    int32_t i32 = (int32_t)value;
    int64_t i64 = value;
    float f32 = (float)value;
    double f64 = (double)value;
    const void *values[] = {&u8, &i32, &i64, &f32, &f64};
    memcpy(place, values[call->dtype], sizes[call->dtype]);
}

static long input_value(size_t rank, size_t index) { return (long)(1 + (rank * 5 + index * 7) % 20); }

static long reduced(uint32_t op, size_t ranks, size_t index) {
    long value = input_value(0, index);
    for (size_t rank = 1; rank < ranks; rank++) {
        long next = input_value(rank, index);
        if (op == UNISONO_SUM) value += next;
        if (op == UNISONO_MIN && next < value) value = next;
        if (op == UNISONO_MAX && next > value) value = next;
    }
    return value;
}

static int reduces(uint32_t collective) {
    return collective == UNISONO_ALL_REDUCE || collective == UNISONO_REDUCE_SCATTER || collective == UNISONO_REDUCE ||
           collective == UNISONO_SCAN || collective == UNISONO_EXSCAN;
}

/* Returns the value at `index` of a rank's output, or -1 where nothing is written. */
static long expected(const struct call *call, size_t rank, size_t index) {
    size_t count = call->count, share = index / count, rest = index % count;
    switch (call->collective) {
    case UNISONO_ALL_REDUCE:
    case UNISONO_REDUCE: return reduced(call->op, RANKS, index);
    case UNISONO_REDUCE_SCATTER: return reduced(call->op, RANKS, rank * count + index);
    case UNISONO_SCAN: return reduced(call->op, rank + 1, index);
    case UNISONO_EXSCAN: return rank == 0 ? -1 : reduced(call->op, rank, index);
    case UNISONO_BROADCAST: return input_value(call->root, index);
    case UNISONO_SCATTER: return input_value(call->root, rank * count + index);
    case UNISONO_ALL_TO_ALL: return input_value(share, rank * count + rest);
    default: return input_value(share, rest);
    }
}

static size_t input_shares(const struct call *call, size_t rank) {
    switch (call->collective) {
    case UNISONO_REDUCE_SCATTER:
    case UNISONO_ALL_TO_ALL: return RANKS;
    case UNISONO_SCATTER: return rank == call->root ? RANKS : 0;
    case UNISONO_BROADCAST: return rank == call->root;
    default: return call->collective != UNISONO_BARRIER;
    }
}

static size_t output_shares(const struct call *call, size_t rank) {
    switch (call->collective) {
    case UNISONO_ALL_GATHER:
    case UNISONO_ALL_TO_ALL: return RANKS;
    case UNISONO_GATHER: return rank == call->root ? RANKS : 0;
    case UNISONO_REDUCE: return rank == call->root;
    default: return call->collective != UNISONO_BARRIER;
    }
}

static uint32_t run(struct rank *r, const struct call *call, const void *in, void *out) {
    unisono_operation operation = {call->collective, dtypes[call->dtype], call->op, call->root, call->count};
    if (!call->starts) return unisono_run_operation(r->comm, &operation, in, out);
    unisono_request *request;
    uint32_t code = unisono_start_operation(r->comm, &operation, in, out, &request);
    if (code != UNISONO_OK) return code;
    code = unisono_wait(request, -1);
    CHECK(unisono_request_free(request) == UNISONO_OK);
    return code;
}

/* Makes one call. It is refused exactly if its values say so, else each element is right. */
static void check(struct rank *r, const struct call *call) {
    size_t size = sizes[call->dtype], inputs = input_shares(call, r->rank), outputs = output_shares(call, r->rank);
    size_t share = call->count * size, own = r->rank * share;
    char *in = r->in + call->shift, *out = r->out + call->shift;
    memset(r->out, 0xee, sizeof r->out);
    if (call->in_place && inputs > 0 && outputs > 0) {
        in = out = r->out + call->shift;
        if (inputs < outputs) in += own;
        if (inputs > outputs) out += own;
    }
    for (size_t i = 0; i < inputs * call->count; i++) put(call, in + i * size, input_value(r->rank, i));
    uint32_t code = run(r, call, inputs ? in : NULL, outputs ? out : NULL);
    int is_rooted = call->collective >= UNISONO_BROADCAST && call->collective <= UNISONO_SCATTER;
    int refused = (is_rooted && call->root >= RANKS) || call->collective > UNISONO_EXSCAN ||
                  (reduces(call->collective) && call->op > UNISONO_AVG);
    CHECK(code == (refused ? UNISONO_INVALID_USAGE : UNISONO_OK));
    for (size_t i = 0; !refused && i < outputs * call->count; i++) {
        char value[8];
        long wanted = expected(call, r->rank, i);
        if (wanted < 0) continue;
        put(call, value, wanted);
        CHECK(memcmp(out + i * size, value, size) == 0);
        r->checked++;
    }
    CHECK(call->shift == 0 || (unsigned char)r->out[0] == 0xee);
}

static void *run_rank(void *argument) {
    struct rank *r = argument;
    struct timespec start, now;
    uint64_t random = r->seed;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (int32_t goes_on = 1; goes_on;) {
        for (int i = 0; i < 100; i++) {
            static const uint32_t ops[] = {UNISONO_SUM, UNISONO_MIN, UNISONO_MAX, 77};
            struct call call = {.collective = (uint32_t)below(&random, 12),
                                .dtype = (uint32_t)below(&random, 5),
                                .op = ops[below(&random, 16) ? below(&random, 3) : 3],
                                .root = below(&random, 16) ? below(&random, RANKS) : RANKS,
                                .count = below(&random, 8) ? below(&random, COUNT_MAX) : 0,
                                .shift = below(&random, 8),
                                .in_place = (int)below(&random, 2),
                                .starts = below(&random, 4) == 0};
            check(r, &call);
        }
        clock_gettime(CLOCK_MONOTONIC, &now);
        goes_on = (double)(now.tv_sec - start.tv_sec) + (double)(now.tv_nsec - start.tv_nsec) / 1e9 < r->seconds;
        CHECK(unisono_broadcast(r->comm, &goes_on, &goes_on, 1, UNISONO_I32, 0) == UNISONO_OK);
    }
    CHECK(r->checked > 1000);
    CHECK(unisono_comm_destroy(r->comm) == UNISONO_OK);
    return NULL;
}

int main(int argc, char **argv) {
    unisono_comm *comms[RANKS];
    pthread_t threads[RANKS];
    struct rank *ranks = calloc(RANKS, sizeof *ranks);
    CHECK(unisono_comm_local(RANKS, comms) == UNISONO_OK);
    for (size_t i = 0; i < RANKS; i++) {
        ranks[i].comm = comms[i];
        ranks[i].rank = i;
        ranks[i].seconds = argc > 1 ? atof(argv[1]) : 1;
        ranks[i].seed = (argc > 2 ? strtoull(argv[2], NULL, 10) : 1) * 0x9e3779b97f4a7c15u + 1;
        CHECK(pthread_create(&threads[i], NULL, run_rank, &ranks[i]) == 0);
    }
    for (size_t i = 0; i < RANKS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    printf("%llu elements\n", (unsigned long long)ranks[0].checked);
    free(ranks);
    return 0;
}
