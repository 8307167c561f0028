/* Sends, receives, groups of them, and communicators made from others, on threads as ranks. */
#include "check.h"

#include <string.h>

#define RANKS 3
#define LARGE 100000

static void check_sends(unisono_comm *comm, size_t rank) {
    float values[2] = {(float)rank, 1};
    if (rank == 0) {
        CHECK(unisono_send(comm, values, 2, UNISONO_F32, 1) == UNISONO_OK);
        values[0] = 7;
        CHECK(unisono_send(comm, values, 1, UNISONO_F32, 1) == UNISONO_OK);
        CHECK(unisono_send(comm, NULL, 0, UNISONO_U8, 1) == UNISONO_OK);
    } else if (rank == 1) {
        float got[3] = {9, 9, 9};
        CHECK(unisono_recv(comm, got, 2, UNISONO_F32, 0) == UNISONO_OK);
        CHECK(unisono_recv(comm, got + 2, 1, UNISONO_F32, 0) == UNISONO_OK);
        CHECK(unisono_recv(comm, NULL, 0, UNISONO_U8, 0) == UNISONO_OK);
        CHECK(got[0] == 0 && got[1] == 1 && got[2] == 7);
    }
}

/* All ranks send first, with buffers that no transport takes at once. */
static void check_rings(unisono_comm *comm, size_t rank) {
    size_t next = (rank + 1) % RANKS, before = (rank + RANKS - 1) % RANKS;
    int32_t *out = malloc(LARGE * sizeof *out), *in = malloc(LARGE * sizeof *in);
    for (int32_t i = 0; i < LARGE; i++) out[i] = (int32_t)rank + i;
    CHECK(unisono_send_recv(comm, out, LARGE, next, in, LARGE, before, UNISONO_I32) == UNISONO_OK);
    for (int32_t i = 0; i < LARGE; i++) CHECK(in[i] == (int32_t)before + i);
    /* Lengths to and from differ: each rank gives as many elements as its own number says. */
    CHECK(unisono_send_recv(comm, out, rank, next, in, before, before, UNISONO_I32) == UNISONO_OK);
    free(out);
    free(in);
}

static void check_group(unisono_comm *comm, size_t rank) {
    uint8_t own[4] = {(uint8_t)rank, 1, 2, 3}, from[RANKS][4], twice[4];
    double real = 0.5, got[RANKS];
    unisono_group_entry entries[4 * RANKS];
    size_t count = 0;
    for (size_t peer = 0; peer < RANKS; peer++) {
        entries[count++] = (unisono_group_entry){UNISONO_SEND, UNISONO_U8, own, 4, peer};
        entries[count++] = (unisono_group_entry){UNISONO_RECV, UNISONO_U8, from[peer], 4, peer};
        entries[count++] = (unisono_group_entry){UNISONO_SEND, UNISONO_F64, &real, 1, peer};
        entries[count++] = (unisono_group_entry){UNISONO_RECV, UNISONO_F64, &got[peer], 1, peer};
    }
    CHECK(unisono_group(comm, entries, count) == UNISONO_OK);
    for (size_t peer = 0; peer < RANKS; peer++)
        CHECK(from[peer][0] == peer && memcmp(from[peer] + 1, own + 1, 3) == 0 && got[peer] == 0.5);
    CHECK(unisono_group(comm, NULL, 0) == UNISONO_OK);

    /* Receives that overlap another buffer, a message to this rank that it does not receive, and no direction. */
    unisono_group_entry send = {UNISONO_SEND, UNISONO_U8, own, 4, rank}, recv = {UNISONO_RECV, UNISONO_U8, own + 3, 1, rank};
    CHECK(unisono_group(comm, (unisono_group_entry[]){send, recv}, 2) == UNISONO_INVALID_USAGE);
    CHECK(strstr(unisono_last_error(), "overlaps another buffer"));
    unisono_group_entry first = {UNISONO_RECV, UNISONO_U8, twice, 3, rank}, second = {UNISONO_RECV, UNISONO_U8, twice + 2, 1, rank};
    CHECK(unisono_group(comm, (unisono_group_entry[]){first, second}, 2) == UNISONO_INVALID_USAGE);
    CHECK(unisono_group(comm, &send, 1) == UNISONO_INVALID_USAGE);
    send.direction = 2;
    CHECK(unisono_group(comm, &send, 1) == UNISONO_INVALID_USAGE && strstr(unisono_last_error(), "no direction"));
    CHECK(unisono_group(comm, NULL, 1) == UNISONO_INVALID_USAGE);
    CHECK(unisono_group(comm, &send, SIZE_MAX) == UNISONO_INVALID_USAGE);
}

static void check_refusals(unisono_comm *comm, size_t rank) {
    char byte = 0;
    size_t next = (rank + 1) % RANKS;
    CHECK(unisono_send(comm, &byte, 1, UNISONO_U8, RANKS) == UNISONO_INVALID_USAGE);
    CHECK(unisono_send(comm, &byte, 1, UNISONO_U8, rank) == UNISONO_INVALID_USAGE);
    CHECK(unisono_send(comm, &byte, 1, 99, next) == UNISONO_INVALID_USAGE);
    CHECK(unisono_send(comm, NULL, 1, UNISONO_U8, next) == UNISONO_INVALID_USAGE);
    CHECK(unisono_send(NULL, &byte, 1, UNISONO_U8, next) == UNISONO_INVALID_USAGE);
    CHECK(unisono_recv(comm, &byte, SIZE_MAX / 2, UNISONO_F64, next) == UNISONO_INVALID_USAGE);
    CHECK(unisono_send_recv(comm, &byte, 1, next, &byte, 1, next, UNISONO_U8) == UNISONO_INVALID_USAGE);
}

static void check_made(unisono_comm *made, size_t expected_size, size_t expected_rank) {
    size_t size, rank;
    int64_t sum = 1;
    CHECK(unisono_comm_size(made, &size) == UNISONO_OK && size == expected_size);
    CHECK(unisono_comm_rank(made, &rank) == UNISONO_OK && rank == expected_rank);
    CHECK(unisono_all_reduce(made, &sum, &sum, 1, UNISONO_I64, UNISONO_SUM) == UNISONO_OK && sum == (int64_t)size);
}

static void check_children(unisono_comm *comm, size_t rank) {
    unisono_comm *made;
    CHECK(unisono_comm_duplicate(comm, &made) == UNISONO_OK);
    check_made(made, RANKS, rank);
    CHECK(unisono_comm_destroy(made) == UNISONO_OK);
    CHECK(unisono_comm_duplicate(NULL, &made) == UNISONO_INVALID_USAGE && made == NULL);

    const size_t members[] = {2, 0}, twice[] = {rank, rank};
    if (rank != 1) {
        CHECK(unisono_comm_create_group(comm, members, 2, 5, &made) == UNISONO_OK);
        check_made(made, 2, rank == 2 ? 0 : 1);
        CHECK(unisono_comm_destroy(made) == UNISONO_OK);
    } else {
        CHECK(unisono_comm_create_group(comm, members, 2, 5, &made) == UNISONO_INVALID_USAGE && made == NULL);
    }
    CHECK(unisono_comm_create_group(comm, twice, 2, 5, &made) == UNISONO_INVALID_USAGE);
    CHECK(unisono_comm_create_group(comm, members, SIZE_MAX, 5, &made) == UNISONO_INVALID_USAGE);
    CHECK(unisono_comm_create_group(comm, NULL, 1, 5, &made) == UNISONO_INVALID_USAGE);

    char id[160];
    CHECK(unisono_unique_id("127.0.0.1", id, sizeof id) == UNISONO_OK);
    CHECK(unisono_comm_grow(comm, id, 1, &made) == UNISONO_UNSUPPORTED && made == NULL);
    CHECK(unisono_comm_grow(comm, "nonsense", 1, &made) != UNISONO_OK && unisono_comm_grow(comm, NULL, 1, &made) != UNISONO_OK);
    CHECK(unisono_barrier_timeout(comm, 60000) == UNISONO_OK);
}

/* Rank 1 does not come. */
static void check_missing_rank(unisono_comm *comm, size_t rank) {
    if (rank == 1) return;
    CHECK(unisono_barrier_timeout(comm, 100) == UNISONO_BARRIER_TIMEOUT);
    CHECK(strstr(unisono_last_error(), "1"));
}

static void *run_rank(void *argument) {
    unisono_comm *comm = argument;
    size_t rank;
    CHECK(unisono_comm_rank(comm, &rank) == UNISONO_OK);
    check_sends(comm, rank);
    check_rings(comm, rank);
    check_group(comm, rank);
    check_refusals(comm, rank);
    check_children(comm, rank);
    check_missing_rank(comm, rank);
    return NULL;
}

static char first_id[160], second_id[160];

/* The third rank joins the two that grow. */
static void *join_later(void *argument) {
    (void)argument;
    unisono_comm *comm;
    CHECK(unisono_comm_join(second_id, 2, 3, "transport=tcp", &comm) == UNISONO_OK);
    check_made(comm, 3, 2);
    CHECK(unisono_comm_destroy(comm) == UNISONO_OK);
    return NULL;
}

static void *grow(void *argument) {
    size_t rank = *(size_t *)argument;
    unisono_comm *comm, *larger;
    CHECK(unisono_comm_join(first_id, rank, 2, "transport=tcp", &comm) == UNISONO_OK);
    CHECK(unisono_comm_grow(comm, second_id, 1, &larger) == UNISONO_OK);
    check_made(larger, 3, rank);
    CHECK(unisono_comm_destroy(larger) == UNISONO_OK && unisono_comm_destroy(comm) == UNISONO_OK);
    return NULL;
}

/* Over TCP, because valgrind does not know what the mapping of shared memory reads. */
static void check_growth(void) {
    pthread_t threads[3];
    size_t ranks[] = {0, 1};
    CHECK(unisono_unique_id("127.0.0.1", first_id, sizeof first_id) == UNISONO_OK);
    CHECK(unisono_unique_id("127.0.0.1", second_id, sizeof second_id) == UNISONO_OK);
    for (int i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, grow, &ranks[i]) == 0);
    CHECK(pthread_create(&threads[2], NULL, join_later, NULL) == 0);
    for (int i = 0; i < 3; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}

int main(void) {
    unisono_comm *comms[RANKS];
    pthread_t threads[RANKS];
    CHECK(unisono_comm_local(RANKS, comms) == UNISONO_OK);
    for (int i = 0; i < RANKS; i++) CHECK(pthread_create(&threads[i], NULL, run_rank, comms[i]) == 0);
    for (int i = 0; i < RANKS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    for (int i = 0; i < RANKS; i++) CHECK(unisono_comm_destroy(comms[i]) == UNISONO_OK);
    check_growth();
    puts("all right");
    return 0;
}
