/* Calls every function with random arguments. Each call must return an error or do what it says, and never crash.
 *
 * Usage: unisono-c-fuzz SECONDS SEED. Set UNISONO_TIMEOUT_MS to a small number: ranks that call differently wait so long. */
#include "check.h"

#include <string.h>
#include <time.h>

#define ARENA (1 << 16)
#define SLOTS 8
#define SLOT_BYTES 4096

/* A rank with its memory. Started operations have slots of their own until they are done. */
struct rank {
    uint64_t random;
    unisono_comm *comm;
    unisono_request *requests[SLOTS];
    char arena[ARENA], slots[SLOTS][2][SLOT_BYTES];
    uint64_t calls, accepted;
};

static size_t below(struct rank *rank, size_t limit) {
    rank->random ^= rank->random << 13;
    rank->random ^= rank->random >> 7;
    rank->random ^= rank->random << 17;
    return rank->random % limit;
}

static size_t one_of(struct rank *rank, const size_t *values, size_t count) {
    return values[below(rank, count)];
}
#define ONE_OF(rank, ...)                                                                                             \
    one_of(rank, (const size_t[]){__VA_ARGS__}, sizeof((const size_t[]){__VA_ARGS__}) / sizeof(size_t))

static unisono_comm *any_comm(struct rank *rank) { return below(rank, 16) ? rank->comm : NULL; }
/* Small counts have memory; the others are more than an address space. */
static size_t any_count(struct rank *rank) {
    return below(rank, 8) ? below(rank, 200) : ONE_OF(rank, SIZE_MAX, SIZE_MAX - 1, SIZE_MAX / 2 + 1, SIZE_MAX / 2 + 9);
}
static void *any_buffer(struct rank *rank) {
    return below(rank, 16) ? rank->arena + below(rank, 8) * (below(rank, 2) ? 1 : 4000) : NULL;
}
static uint32_t any_dtype(struct rank *rank) { return (uint32_t)(below(rank, 16) ? below(rank, 12) : ONE_OF(rank, 12, 255, 256, UINT32_MAX)); }
static uint32_t any_op(struct rank *rank) { return (uint32_t)(below(rank, 16) ? below(rank, 5) : ONE_OF(rank, 5, 6, 256, UINT32_MAX)); }
static size_t any_rank(struct rank *rank) { return below(rank, 8) ? below(rank, 2) : ONE_OF(rank, 2, 1000, SIZE_MAX - 1, SIZE_MAX); }
static uint64_t any_tag(struct rank *rank) { return below(rank, 8) ? below(rank, 3) : ONE_OF(rank, (size_t)1 << 63, SIZE_MAX, SIZE_MAX - 1); }
static const char *any_text(struct rank *rank) {
    static const char *texts[] = {"", "nonsense", "127.0.0.1", "::1", "\xff\xfe", "slots=4", "a=b\nc", NULL};
    return texts[below(rank, 8)];
}
static const size_t *any_counts(struct rank *rank, size_t counts[2]) {
    for (int i = 0; i < 2; i++) counts[i] = any_count(rank);
    return below(rank, 16) ? counts : NULL;
}
static unisono_operation any_operation(struct rank *rank) {
    return (unisono_operation){.collective = (uint32_t)(below(rank, 16) ? below(rank, 11) : ONE_OF(rank, 11, UINT32_MAX)),
                               .dtype = any_dtype(rank),
                               .op = any_op(rank),
                               .root = any_rank(rank),
                               .count = any_count(rank)};
}

static uint32_t call_collective(struct rank *r) {
    unisono_comm *c = any_comm(r);
    const void *in = any_buffer(r);
    void *out = any_buffer(r);
    size_t count = any_count(r), root = any_rank(r), counts[2], more[2];
    uint32_t dtype = any_dtype(r), op = any_op(r);
    unisono_operation operation = any_operation(r);
    switch (below(r, 17)) {
    case 0: return unisono_all_reduce(c, in, out, count, dtype, op);
    case 1: return unisono_all_gather(c, in, out, count, dtype);
    case 2: return unisono_reduce_scatter(c, in, out, count, dtype, op);
    case 3: return unisono_broadcast(c, in, out, count, dtype, root);
    case 4: return unisono_reduce(c, in, out, count, dtype, op, root);
    case 5: return unisono_gather(c, in, out, count, dtype, root);
    case 6: return unisono_scatter(c, in, out, count, dtype, root);
    case 7: return unisono_all_to_all(c, in, out, count, dtype);
    case 8: return unisono_scan(c, in, out, count, dtype, op);
    case 9: return unisono_exscan(c, in, out, count, dtype, op);
    case 10: return unisono_barrier(c);
    case 11: return unisono_run_operation(c, below(r, 16) ? &operation : NULL, in, out);
    case 12: return unisono_all_gather_v(c, in, out, any_counts(r, counts), dtype);
    case 13: return unisono_reduce_scatter_v(c, in, out, any_counts(r, counts), dtype, op);
    case 14: return unisono_all_to_all_v(c, in, any_counts(r, counts), out, any_counts(r, more), dtype);
    case 15: return unisono_gather_v(c, in, count, out, any_counts(r, counts), dtype, root);
    default: return unisono_scatter_v(c, in, any_counts(r, counts), out, count, dtype, root);
    }
}

/* Sends and receives between the other rank and this one, with buffers that may overlap. Few are accepted: both ranks must agree. */
static uint32_t call_group(struct rank *r) {
    unisono_comm *c = any_comm(r);
    void *in = any_buffer(r), *out = any_buffer(r);
    size_t count = any_count(r), to = any_rank(r), from = any_rank(r), members[2] = {any_rank(r), any_rank(r)};
    uint32_t dtype = any_dtype(r), code;
    unisono_group_entry entries[4];
    unisono_comm *group = NULL;
    for (int i = 0; i < 4; i++)
        entries[i] = (unisono_group_entry){.direction = (uint32_t)(below(r, 16) ? below(r, 2) : ONE_OF(r, 2, UINT32_MAX)),
                                          .dtype = any_dtype(r),
                                          .buffer = any_buffer(r),
                                          .count = any_count(r),
                                          .peer = any_rank(r)};
    switch (below(r, 6)) {
    case 0: return unisono_send(c, in, count, dtype, to);
    case 1: return unisono_recv(c, out, count, dtype, from);
    case 2: return unisono_send_recv(c, in, count, to, out, any_count(r), from, dtype);
    case 3: return unisono_barrier_timeout(c, ONE_OF(r, 0, 100, SIZE_MAX));
    case 4: code = unisono_comm_create_group(c, below(r, 8) ? members : NULL, ONE_OF(r, 0, 1, 2, 3, SIZE_MAX), 1, &group); break;
    default: return unisono_group(c, below(r, 16) ? entries : NULL, below(r, 8) ? below(r, 5) : ONE_OF(r, SIZE_MAX, SIZE_MAX / 40));
    }
    CHECK(unisono_comm_destroy(group) == UNISONO_OK);
    return code;
}

static void on_complete(uint32_t code, void *data) {
    (void)code;
    __atomic_fetch_add((uint64_t *)data, 1, __ATOMIC_RELAXED);
}

static uint64_t completions;

static uint32_t call_request(struct rank *r) {
    size_t slot = below(r, SLOTS);
    unisono_request **request = &r->requests[slot];
    char *in = below(r, 16) ? r->slots[slot][0] : NULL, *out = below(r, 16) ? r->slots[slot][1] : NULL;
    size_t count = any_count(r) / 2;
    count = count > 1000 ? SIZE_MAX - count % 8 : count;
    unisono_operation operation = any_operation(r);
    if (operation.count < 200) operation.count /= 2;
    if (*request) {
        unisono_message_info info;
        int done;
        switch (below(r, 6)) {
        case 0: return unisono_test(*request, below(r, 16) ? &done : NULL);
        case 1: return unisono_request_info(*request, below(r, 16) ? &info : NULL);
        case 2: return unisono_request_on_complete(*request, below(r, 16) ? on_complete : NULL, &completions);
        default: break;
        }
        uint32_t code = unisono_wait(*request, below(r, 32) ? (int64_t)below(r, 3) : -1);
        if (code != UNISONO_NOT_DONE && unisono_request_free(*request) == UNISONO_OK) *request = NULL;
        return code;
    }
    unisono_request **place = below(r, 16) ? request : NULL;
    switch (below(r, 3)) {
    case 0: return unisono_isend(any_comm(r), in, count, any_rank(r), any_tag(r), place);
    case 1: return unisono_irecv(any_comm(r), out, count, any_rank(r), any_tag(r), place);
    default: return unisono_start_operation(any_comm(r), below(r, 16) ? &operation : NULL, in, out, place);
    }
}

static uint32_t call_other(struct rank *r) {
    unisono_comm *c = any_comm(r), *made[4] = {NULL};
    unisono_message_info info;
    size_t number = below(r, 2 * ARENA);
    uint64_t value = any_tag(r);
    uint32_t code = UNISONO_OK, state;
    int found;
    char text[200];
    CHECK(unisono_last_error() && unisono_version());
    switch (below(r, 24)) {
    case 0: return unisono_comm_rank(c, below(r, 4) ? &number : NULL);
    case 1: return unisono_comm_size(c, below(r, 4) ? &number : NULL);
    case 2: return unisono_comm_error(c, below(r, 4) ? &state : NULL, below(r, 4) ? text : NULL, below(r, sizeof text));
    case 3: return unisono_flight_record(c, any_buffer(r), below(r, ARENA / 2), below(r, 4) ? &number : NULL);
    case 4: return unisono_probe(c, any_rank(r), any_tag(r), below(r, 4) ? &found : NULL, below(r, 4) ? &info : NULL);
    case 5: return unisono_unique_id(any_text(r), below(r, 4) ? text : NULL, below(r, sizeof text));
    case 6: return unisono_comm_from_env(NULL);
    case 7: code = unisono_comm_local(ONE_OF(r, 0, 1, 3, SIZE_MAX), below(r, 4) ? made : NULL); break;
    case 8: code = unisono_comm_join(any_text(r), any_rank(r), any_rank(r), any_text(r), made); break;
    case 9: code = unisono_comm_split(c, below(r, 4) ? -1 : (int64_t)any_tag(r), (int32_t)any_tag(r), below(r, 4) ? made : NULL); break;
    case 10: code = below(r, 8) ? 0 : unisono_comm_shrink(c, below(r, 4) ? made : NULL); break;
    case 11: return below(r, 8) ? 0 : unisono_comm_abort(c, any_text(r));
    case 12: return unisono_comm_destroy(NULL);
    case 13: code = below(r, 8) ? 0 : unisono_comm_duplicate(c, below(r, 4) ? made : NULL); break;
    case 14: code = unisono_comm_grow(c, any_text(r), any_count(r), below(r, 4) ? made : NULL); break;
    case 15: return unisono_wait(NULL, (int64_t)any_tag(r));
    case 16: return unisono_test(NULL, &found);
    case 17: return unisono_request_info(NULL, &info);
    case 18: return unisono_request_on_complete(NULL, on_complete, NULL);
    case 19: return unisono_request_free(NULL);
    case 20: code = below(r, 8) ? 0 : unisono_comm_shrink_and_agree(c, below(r, 4) ? &value : NULL, below(r, 4) ? made : NULL); break;
    default: return call_request(r);
    }
    for (int i = 0; i < 4; i++) CHECK(unisono_comm_destroy(made[i]) == UNISONO_OK);
    return code;
}

/* Ends what is under way, so that no operation uses memory that is reused. */
static void finish(struct rank *r) {
    CHECK(unisono_comm_abort(r->comm, "the round is over") == UNISONO_OK);
    for (int i = 0; i < SLOTS; i++) {
        if (!r->requests[i]) continue;
        CHECK(unisono_wait(r->requests[i], 20000) != UNISONO_NOT_DONE);
        CHECK(unisono_request_free(r->requests[i]) == UNISONO_OK);
        r->requests[i] = NULL;
    }
    CHECK(unisono_comm_destroy(r->comm) == UNISONO_OK);
}

static void *run_wild(void *argument) {
    struct rank *r = argument;
    uint32_t code = 0;
    for (int i = 0; i < 200; i++) {
        if (unisono_comm_error(r->comm, &code, NULL, 0) != UNISONO_OK || code != 0) break;
        uint32_t (*call)(struct rank *) = below(r, 3) ? call_collective : below(r, 8) ? call_other : call_group;
        r->accepted += call(r) == UNISONO_OK;
        r->calls++;
    }
    finish(r);
    return NULL;
}

int main(int argc, char **argv) {
    double seconds = argc > 1 ? atof(argv[1]) : 1;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1, calls = 0, accepted = 0;
    struct timespec start, now;
    clock_gettime(CLOCK_MONOTONIC, &start);
    struct rank *ranks = calloc(2, sizeof *ranks);
    do {
        /* One rank, two ranks with the same calls, or two with calls of their own. */
        size_t size = seed % 4 == 0 ? 1 : 2;
        unisono_comm *comms[2];
        pthread_t threads[2];
        CHECK(unisono_comm_local(size, comms) == UNISONO_OK);
        for (size_t i = 0; i < size; i++) {
            ranks[i].random = seed * 0x9e3779b97f4a7c15u + (seed % 4 == 3 ? i : 0) + 1;
            ranks[i].comm = comms[i];
            CHECK(pthread_create(&threads[i], NULL, run_wild, &ranks[i]) == 0);
        }
        for (size_t i = 0; i < size; i++) CHECK(pthread_join(threads[i], NULL) == 0);
        seed++;
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((double)(now.tv_sec - start.tv_sec) + (double)(now.tv_nsec - start.tv_nsec) / 1e9 < seconds);
    for (int i = 0; i < 2; i++) calls += ranks[i].calls, accepted += ranks[i].accepted;
    CHECK(accepted > calls / 20 && accepted < calls);
    free(ranks);
    printf("%llu calls, %llu accepted\n", (unsigned long long)calls, (unsigned long long)accepted);
    return 0;
}
