/* Calls the collectives on threads as ranks, and checks the results. */
#include "check.h"

#include <string.h>

#define RANKS 3
#define COUNT 1000

static void fill(int32_t *values, size_t rank, size_t count) {
    for (size_t i = 0; i < count; i++) values[i] = (int32_t)(rank * 100000 + i);
}

static void check_reductions(unisono_comm *comm, size_t rank) {
    static const int32_t ranks_sum = 100000 * (RANKS * (RANKS - 1) / 2);
    int32_t one[COUNT], out[COUNT], all[RANKS * COUNT];
    fill(one, rank, COUNT);
    CHECK(unisono_all_reduce(comm, one, out, COUNT, UNISONO_I32, UNISONO_SUM) == UNISONO_OK);
    for (int i = 0; i < COUNT; i++) CHECK(out[i] == ranks_sum + RANKS * i);
    CHECK(unisono_all_reduce(comm, one, one, COUNT, UNISONO_I32, UNISONO_MAX) == UNISONO_OK);
    for (int i = 0; i < COUNT; i++) CHECK(one[i] == 100000 * (RANKS - 1) + i);
    fill(all, rank, RANKS * COUNT);
    CHECK(unisono_reduce_scatter(comm, all, out, COUNT, UNISONO_I32, UNISONO_SUM) == UNISONO_OK);
    for (int i = 0; i < COUNT; i++) CHECK(out[i] == ranks_sum + RANKS * ((int)rank * COUNT + i));
    int32_t *own = all + rank * COUNT;
    CHECK(unisono_reduce_scatter(comm, all, own, COUNT, UNISONO_I32, UNISONO_SUM) == UNISONO_OK);
    CHECK(memcmp(own, out, sizeof out) == 0);
    fill(one, rank, COUNT);
    CHECK(unisono_reduce(comm, one, rank == 1 ? out : NULL, COUNT, UNISONO_I32, UNISONO_MIN, 1) == UNISONO_OK);
    for (int i = 0; rank == 1 && i < COUNT; i++) CHECK(out[i] == i);
}

static void check_copies(unisono_comm *comm, size_t rank) {
    int32_t one[COUNT], all[RANKS * COUNT], expected[RANKS * COUNT], back[COUNT];
    for (size_t peer = 0; peer < RANKS; peer++) fill(expected + peer * COUNT, peer, COUNT);
    fill(one, rank, COUNT);
    CHECK(unisono_all_gather(comm, one, all, COUNT, UNISONO_I32) == UNISONO_OK);
    CHECK(memcmp(all, expected, sizeof all) == 0);
    memset(all, 0, sizeof all);
    fill(all + rank * COUNT, rank, COUNT);
    CHECK(unisono_all_gather(comm, all + rank * COUNT, all, COUNT, UNISONO_I32) == UNISONO_OK);
    CHECK(memcmp(all, expected, sizeof all) == 0);
    memset(all, 0, sizeof all);
    CHECK(unisono_gather(comm, one, rank == 2 ? all : NULL, COUNT, UNISONO_I32, 2) == UNISONO_OK);
    CHECK(rank != 2 || memcmp(all, expected, sizeof all) == 0);
    CHECK(unisono_scatter(comm, rank == 2 ? all : NULL, back, COUNT, UNISONO_I32, 2) == UNISONO_OK);
    CHECK(memcmp(back, one, sizeof one) == 0);
    CHECK(unisono_broadcast(comm, rank == 1 ? one : NULL, back, COUNT, UNISONO_I32, 1) == UNISONO_OK);
    CHECK(memcmp(back, expected + COUNT, sizeof back) == 0);
    fill(expected, rank, RANKS * COUNT);
    CHECK(unisono_all_to_all(comm, expected, all, COUNT, UNISONO_I32) == UNISONO_OK);
    for (size_t peer = 0; peer < RANKS; peer++)
        for (int i = 0; i < COUNT; i++) CHECK(all[peer * COUNT + i] == (int32_t)(peer * 100000 + rank * COUNT + i));
    CHECK(unisono_all_to_all(comm, expected, expected, COUNT, UNISONO_I32) == UNISONO_OK);
    CHECK(memcmp(expected, all, sizeof all) == 0);
    int32_t prefix[2] = {1, (int32_t)rank}, below[2] = {-1, -1};
    CHECK(unisono_exscan(comm, prefix, below, 2, UNISONO_I32, UNISONO_SUM) == UNISONO_OK);
    CHECK(rank == 0 ? below[0] == -1 : below[0] == (int32_t)rank && below[1] == (int32_t)(rank * (rank - 1) / 2));
    CHECK(unisono_scan(comm, prefix, prefix, 2, UNISONO_I32, UNISONO_SUM) == UNISONO_OK);
    CHECK(prefix[0] == (int32_t)rank + 1 && prefix[1] == (int32_t)(rank * (rank + 1) / 2));
    CHECK(unisono_scan(comm, prefix, below, 2, UNISONO_I32, UNISONO_AVG) == UNISONO_INVALID_USAGE);
    CHECK(unisono_barrier(comm) == UNISONO_OK);
}

/* Rank i has i + 1 elements, at an address that is not aligned. */
static void check_uneven(unisono_comm *comm, size_t rank) {
    static const size_t counts[RANKS] = {1, 2, 3};
    char memory[2][1 + 6 * sizeof(int32_t)];
    void *in = memory[0] + 1, *out = memory[1] + 1;
    int32_t all[6], part[6], expected[6] = {0, 100000, 100001, 200000, 200001, 200002};
    fill(part, rank, 6);
    memcpy(in, part, sizeof part);
    CHECK(unisono_all_gather_v(comm, in, out, counts, UNISONO_I32) == UNISONO_OK);
    CHECK(memcmp(out, expected, sizeof expected) == 0);
    CHECK(unisono_all_gather_v(comm, in, in, counts, UNISONO_I32) == UNISONO_INVALID_USAGE);
    CHECK(strstr(unisono_last_error(), "overlap"));
    CHECK(unisono_gather_v(comm, in, rank + 1, rank == 1 ? all : NULL, rank == 1 ? counts : NULL, UNISONO_I32, 1) ==
          UNISONO_OK);
    CHECK(rank != 1 || memcmp(all, expected, sizeof all) == 0);
    memset(out, 0, sizeof part);
    CHECK(unisono_scatter_v(comm, rank == 1 ? all : NULL, rank == 1 ? counts : NULL, out, rank + 1, UNISONO_I32, 1) ==
          UNISONO_OK);
    CHECK(memcmp(out, part, (rank + 1) * sizeof(int32_t)) == 0);
    CHECK(unisono_reduce_scatter_v(comm, in, out, counts, UNISONO_I32, UNISONO_SUM) == UNISONO_OK);
    memcpy(all, out, (rank + 1) * sizeof(int32_t));
    for (size_t i = 0; i <= rank; i++) CHECK(all[i] == (int32_t)(300000 + RANKS * (rank * (rank + 1) / 2 + i)));
    CHECK(unisono_reduce_scatter_v(comm, part, all, counts, UNISONO_I32, UNISONO_MAX) == UNISONO_OK);
    for (size_t i = 0; i <= rank; i++) CHECK(all[i] == (int32_t)(200000 + rank * (rank + 1) / 2 + i));
    /* Rank i sends j + 1 elements to rank j, and receives i + 1 elements from each. */
    size_t receives[RANKS] = {rank + 1, rank + 1, rank + 1};
    int32_t from_all[RANKS * RANKS];
    CHECK(unisono_all_to_all_v(comm, in, counts, from_all, receives, UNISONO_I32) == UNISONO_OK);
    for (size_t peer = 0; peer < RANKS; peer++)
        for (size_t i = 0; i <= rank; i++)
            CHECK(from_all[peer * (rank + 1) + i] == (int32_t)(peer * 100000 + rank * (rank + 1) / 2 + i));
    size_t huge[RANKS] = {SIZE_MAX, 1, 1};
    CHECK(unisono_all_gather_v(comm, in, out, huge, UNISONO_I32) == UNISONO_INVALID_USAGE);
    CHECK(unisono_all_gather_v(comm, in, out, NULL, UNISONO_I32) == UNISONO_INVALID_USAGE);
}

static void check_errors(unisono_comm *comm) {
    int32_t values[2 * COUNT];
    memset(values, 0, sizeof values);
    CHECK(unisono_all_reduce(NULL, values, values, 1, UNISONO_I32, UNISONO_SUM) == UNISONO_INVALID_USAGE);
    CHECK(strstr(unisono_last_error(), "the communicator is NULL"));
    CHECK(unisono_all_reduce(comm, NULL, values, 1, UNISONO_I32, UNISONO_SUM) == UNISONO_INVALID_USAGE);
    CHECK(strstr(unisono_last_error(), "a buffer is NULL"));
    CHECK(unisono_all_reduce(comm, values, values + 1, COUNT, UNISONO_I32, UNISONO_SUM) == UNISONO_INVALID_USAGE);
    CHECK(strstr(unisono_last_error(), "overlap"));
    CHECK(unisono_all_reduce(comm, values, values, COUNT, 77, UNISONO_SUM) == UNISONO_INVALID_USAGE);
    CHECK(strstr(unisono_last_error(), "77 is no element type"));
    CHECK(unisono_all_reduce(comm, values, values, COUNT, UNISONO_I32, 5) == UNISONO_INVALID_USAGE);
    CHECK(unisono_all_reduce(comm, values, values, SIZE_MAX, UNISONO_F64, UNISONO_SUM) == UNISONO_INVALID_USAGE);
    CHECK(unisono_broadcast(comm, values, values, COUNT, UNISONO_I32, RANKS) == UNISONO_INVALID_USAGE);
    CHECK(strstr(unisono_last_error(), "the root is rank 3 of 3"));
    CHECK(unisono_all_reduce(comm, NULL, NULL, 0, UNISONO_I32, UNISONO_SUM) == UNISONO_OK);
}

static void *run_rank(void *argument) {
    unisono_comm *comm = argument;
    size_t rank, size;
    CHECK(unisono_comm_rank(comm, &rank) == UNISONO_OK && unisono_comm_size(comm, &size) == UNISONO_OK);
    CHECK(size == RANKS && rank < size);
    check_reductions(comm, rank);
    check_copies(comm, rank);
    check_uneven(comm, rank);
    check_errors(comm);
    wait_for_all_at_rank_0(comm, rank, size);
    if (rank == 0) CHECK(unisono_comm_abort(comm, "as it was told") == UNISONO_OK);
    if (rank != 0) CHECK(unisono_barrier(comm) == UNISONO_ABORTED && strstr(unisono_last_error(), "as it was told"));
    CHECK(unisono_comm_destroy(comm) == UNISONO_OK);
    return NULL;
}

struct joining {
    const char *id;
    size_t rank;
};

static void *join_rank(void *argument) {
    const struct joining *joining = argument;
    unisono_comm *comm;
    CHECK(unisono_comm_join(joining->id, joining->rank, 2, "transport=tcp\ntimeout_ms=20000", &comm) == UNISONO_OK);
    double value = (double)joining->rank + 1;
    CHECK(unisono_all_reduce(comm, &value, &value, 1, UNISONO_F64, UNISONO_PROD) == UNISONO_OK && value == 2.0);
    CHECK(unisono_barrier(comm) == UNISONO_OK);
    CHECK(unisono_comm_destroy(comm) == UNISONO_OK);
    return NULL;
}

int main(void) {
    unisono_comm *comms[RANKS];
    pthread_t threads[RANKS];
    CHECK(unisono_comm_local(0, comms) == UNISONO_INVALID_USAGE);
    CHECK(unisono_comm_local(RANKS, comms) == UNISONO_OK);
    for (int i = 0; i < RANKS; i++) CHECK(pthread_create(&threads[i], NULL, run_rank, comms[i]) == 0);
    for (int i = 0; i < RANKS; i++) CHECK(pthread_join(threads[i], NULL) == 0);

    char id[160];
    CHECK(unisono_unique_id("127.0.0.1", id, 3) == UNISONO_INVALID_USAGE);
    CHECK(unisono_unique_id("127.0.0.1", id, sizeof id) == UNISONO_OK);
    struct joining joining[2] = {{id, 0}, {id, 1}};
    for (int i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, join_rank, &joining[i]) == 0);
    for (int i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);

    unisono_comm *comm;
    CHECK(unisono_comm_join(id, 0, 1, "slots=4", &comm) == UNISONO_INVALID_USAGE && comm == NULL);
    CHECK(strstr(unisono_last_error(), "UNISONO_FIFO_DEPTH"));
    CHECK(unisono_comm_join("nonsense", 0, 1, NULL, &comm) == UNISONO_INVALID_USAGE);
    CHECK(unisono_comm_from_env(&comm) != UNISONO_OK && comm == NULL);
    CHECK(unisono_comm_destroy(NULL) == UNISONO_OK);
    puts("all right");
    return 0;
}
