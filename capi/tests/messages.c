/* Calls messages, requests, started collectives and split on threads as ranks, and checks the results. */
#include "check.h"

#include <stdatomic.h>
#include <string.h>

#define RANKS 3
#define LARGE 100000

/* Sends a message and waits until its buffer is free. */
static uint32_t send_message(unisono_comm *comm, const void *buffer, size_t bytes, size_t to, uint64_t tag) {
    unisono_request *request;
    CHECK(unisono_isend(comm, buffer, bytes, to, tag, &request) == UNISONO_OK);
    uint32_t code = unisono_wait(request, -1);
    CHECK(unisono_request_free(request) == UNISONO_OK);
    return code;
}

/* Receives a message and waits for it. */
static uint32_t recv_message(unisono_comm *comm, void *buffer, size_t bytes, size_t from, uint64_t tag,
                             unisono_message_info *info) {
    unisono_request *request;
    CHECK(unisono_irecv(comm, buffer, bytes, from, tag, &request) == UNISONO_OK);
    uint32_t code = unisono_wait(request, -1);
    CHECK(unisono_request_info(request, info) == code);
    CHECK(unisono_request_free(request) == UNISONO_OK);
    return code;
}

static void check_messages(unisono_comm *comm, size_t rank) {
    size_t next = (rank + 1) % RANKS, before = (rank + RANKS - 1) % RANKS;
    uint64_t value = rank, got = 99;
    unisono_message_info info;
    CHECK(send_message(comm, &value, sizeof value, next, 7) == UNISONO_OK);
    CHECK(recv_message(comm, &got, sizeof got, before, 7, &info) == UNISONO_OK);
    CHECK(got == before && info.source == before && info.tag == 7 && info.bytes == sizeof got);
    CHECK(send_message(comm, NULL, 0, next, 8) == UNISONO_OK);
    CHECK(recv_message(comm, NULL, 0, before, 8, &info) == UNISONO_OK && info.bytes == 0);
}

static void check_any(unisono_comm *comm, size_t rank) {
    if (rank > 0) {
        uint64_t value = 10 * rank;
        CHECK(send_message(comm, &value, sizeof value, 0, rank) == UNISONO_OK);
    }
    for (size_t left = RANKS - 1; rank == 0 && left > 0; left--) {
        uint64_t room[2];
        int found = 0;
        unisono_message_info seen, info;
        while (!found) CHECK(unisono_probe(comm, UNISONO_ANY_RANK, UNISONO_ANY_TAG, &found, &seen) == UNISONO_OK);
        CHECK(seen.bytes == sizeof room[0] && seen.tag == seen.source);
        CHECK(recv_message(comm, room, sizeof room, seen.source, UNISONO_ANY_TAG, &info) == UNISONO_OK);
        CHECK(info.source == seen.source && info.bytes == seen.bytes && room[0] == 10 * info.source);
    }
    int found = 1;
    CHECK(unisono_barrier(comm) == UNISONO_OK);
    CHECK(unisono_probe(comm, UNISONO_ANY_RANK, 77, &found, NULL) == UNISONO_OK && found == 0);
}

static void check_requests(unisono_comm *comm, size_t rank) {
    size_t next = (rank + 1) % RANKS, before = (rank + RANKS - 1) % RANKS;
    char *out = malloc(LARGE), *in = malloc(LARGE);
    memset(out, (int)rank, LARGE);
    unisono_request *sent, *received;
    unisono_message_info info;
    int done = 1;
    CHECK(unisono_irecv(comm, in, LARGE, before, 5, &received) == UNISONO_OK);
    CHECK(unisono_barrier(comm) == UNISONO_OK);
    CHECK(unisono_test(received, &done) == UNISONO_OK && done == 0);
    CHECK(unisono_wait(received, 5) == UNISONO_NOT_DONE && strstr(unisono_last_error(), "under way"));
    CHECK(unisono_wait(received, 0) == UNISONO_NOT_DONE);
    CHECK(unisono_request_info(received, &info) == UNISONO_NOT_DONE);
    CHECK(unisono_request_free(received) == UNISONO_NOT_DONE);
    CHECK(unisono_barrier(comm) == UNISONO_OK);
    CHECK(unisono_isend(comm, out, LARGE, next, 5, &sent) == UNISONO_OK);
    CHECK(unisono_wait(received, -1) == UNISONO_OK && unisono_wait(received, 0) == UNISONO_OK);
    CHECK(unisono_test(received, &done) == UNISONO_OK && done == 1);
    CHECK(unisono_request_info(received, &info) == UNISONO_OK && info.source == before && info.bytes == LARGE);
    for (int i = 0; i < LARGE; i++) CHECK(in[i] == (char)before);
    CHECK(unisono_wait(sent, 20000) == UNISONO_OK);
    CHECK(unisono_request_info(sent, &info) == UNISONO_INVALID_USAGE);
    CHECK(unisono_request_free(sent) == UNISONO_OK && unisono_request_free(received) == UNISONO_OK);
    free(out);
    free(in);
}

struct completion {
    unisono_comm *comm;
    unisono_request *request, *later;
    uint32_t code, refused;
    atomic_int calls;
};

/* Frees its request, and finds that it cannot wait. */
static void completed(uint32_t code, void *data) {
    struct completion *completion = data;
    completion->code = code;
    completion->refused = unisono_wait(completion->later, -1);
    CHECK(unisono_request_free(completion->request) == UNISONO_OK);
    atomic_fetch_add(&completion->calls, 1);
}

static void counted(uint32_t code, void *data) {
    CHECK(code == UNISONO_OK);
    atomic_fetch_add((atomic_int *)data, 1);
}

static void check_callbacks(unisono_comm *comm, size_t rank) {
    size_t next = (rank + 1) % RANKS, before = (rank + RANKS - 1) % RANKS;
    int32_t value = (int32_t)rank, got = -1, late = -1;
    struct completion completion = {.comm = comm};
    unisono_request *sent;
    CHECK(unisono_irecv(comm, &late, sizeof late, before, 10, &completion.later) == UNISONO_OK);
    CHECK(unisono_irecv(comm, &got, sizeof got, before, 9, &completion.request) == UNISONO_OK);
    CHECK(unisono_request_on_complete(completion.request, completed, &completion) == UNISONO_OK);
    CHECK(unisono_request_on_complete(completion.later, NULL, NULL) == UNISONO_INVALID_USAGE);
    CHECK(unisono_isend(comm, &value, sizeof value, next, 9, &sent) == UNISONO_OK);
    while (atomic_load(&completion.calls) == 0) CHECK(unisono_wait(sent, 20000) == UNISONO_OK);
    CHECK(completion.code == UNISONO_OK && completion.refused == UNISONO_INVALID_USAGE && got == (int32_t)before);
    CHECK(unisono_request_free(sent) == UNISONO_OK);
    CHECK(unisono_barrier(comm) == UNISONO_OK);
    atomic_int calls = 0;
    CHECK(unisono_request_on_complete(completion.later, counted, &calls) == UNISONO_OK);
    CHECK(unisono_request_on_complete(completion.later, counted, &calls) == UNISONO_INVALID_USAGE);
    CHECK(unisono_wait(completion.later, 1) == UNISONO_NOT_DONE && atomic_load(&calls) == 0);
    CHECK(unisono_barrier(comm) == UNISONO_OK);
    CHECK(send_message(comm, &value, sizeof value, next, 10) == UNISONO_OK);
    CHECK(unisono_wait(completion.later, -1) == UNISONO_OK);
    while (atomic_load(&calls) == 0) continue;
    CHECK(unisono_request_on_complete(completion.later, counted, &calls) == UNISONO_OK);
    CHECK(atomic_load(&calls) == 2 && late == (int32_t)before);
    CHECK(unisono_request_free(completion.later) == UNISONO_OK);
}

static void check_started(unisono_comm *comm, size_t rank) {
    enum { STARTED = 20 };
    unisono_operation sum = {.collective = UNISONO_ALL_REDUCE, .dtype = UNISONO_I32, .op = UNISONO_SUM, .count = 100};
    int32_t values[STARTED][100];
    unisono_request *requests[STARTED];
    for (int i = 0; i < STARTED; i++) {
        for (int j = 0; j < 100; j++) values[i][j] = i * j + (int)rank;
        CHECK(unisono_start_operation(comm, &sum, values[i], values[i], &requests[i]) == UNISONO_OK);
    }
    for (int i = 0; i < STARTED; i++) {
        CHECK(unisono_wait(requests[i], -1) == UNISONO_OK && unisono_request_free(requests[i]) == UNISONO_OK);
        for (int j = 0; j < 100; j++) CHECK(values[i][j] == RANKS * i * j + 3);
    }
    unisono_operation gather = {.collective = UNISONO_GATHER, .dtype = UNISONO_I32, .op = 99, .root = 1, .count = 1};
    int32_t own = (int32_t)rank, all[RANKS];
    CHECK(unisono_run_operation(comm, &gather, &own, rank == 1 ? all : NULL) == UNISONO_OK);
    for (int i = 0; rank == 1 && i < RANKS; i++) CHECK(all[i] == i);
    unisono_operation barrier = {.collective = UNISONO_BARRIER, .root = 99};
    CHECK(unisono_run_operation(comm, &barrier, NULL, NULL) == UNISONO_OK);
    barrier.collective = 11;
    CHECK(unisono_run_operation(comm, &barrier, NULL, NULL) == UNISONO_INVALID_USAGE);
    CHECK(unisono_run_operation(comm, NULL, NULL, NULL) == UNISONO_INVALID_USAGE);
    gather.root = RANKS;
    unisono_request *request = requests[0];
    CHECK(unisono_start_operation(comm, &gather, &own, all, &request) == UNISONO_INVALID_USAGE && request == NULL);
}

static void check_refusals(unisono_comm *comm) {
    char byte = 0;
    int done;
    unisono_request *request = NULL;
    CHECK(unisono_isend(comm, &byte, 1, 0, 1, NULL) == UNISONO_INVALID_USAGE);
    CHECK(unisono_isend(comm, NULL, 1, 0, 1, &request) == UNISONO_INVALID_USAGE && request == NULL);
    CHECK(unisono_isend(NULL, &byte, 1, 0, 1, &request) == UNISONO_INVALID_USAGE);
    CHECK(unisono_irecv(comm, &byte, SIZE_MAX, 0, 1, &request) == UNISONO_INVALID_USAGE && request == NULL);
    CHECK(send_message(comm, &byte, 1, RANKS, 1) == UNISONO_INVALID_USAGE);
    CHECK(send_message(comm, &byte, 1, UNISONO_ANY_RANK, 1) == UNISONO_INVALID_USAGE);
    CHECK(send_message(comm, &byte, 1, 0, UNISONO_ANY_TAG) == UNISONO_INVALID_USAGE);
    CHECK(unisono_wait(NULL, -1) == UNISONO_INVALID_USAGE);
    CHECK(unisono_test(NULL, &done) == UNISONO_INVALID_USAGE);
    CHECK(unisono_request_free(NULL) == UNISONO_OK);
}

static void check_groups(unisono_comm *comm, size_t rank) {
    unisono_comm *group;
    size_t size, place;
    CHECK(unisono_comm_split(comm, rank == 1 ? -1 : 4, -(int32_t)rank, &group) == UNISONO_OK);
    CHECK((group == NULL) == (rank == 1));
    if (group) {
        CHECK(unisono_comm_size(group, &size) == UNISONO_OK && size == 2);
        CHECK(unisono_comm_rank(group, &place) == UNISONO_OK && place == (rank == 2 ? 0 : 1));
        CHECK(unisono_comm_destroy(group) == UNISONO_OK);
    }
    CHECK(unisono_comm_split(comm, -2, 0, &group) == UNISONO_INVALID_USAGE && group == NULL);
    CHECK(unisono_comm_split(comm, INT64_MAX, 0, &group) == UNISONO_INVALID_USAGE);
}

static void check_texts(unisono_comm *comm) {
    size_t needed = 0;
    CHECK(unisono_flight_record(comm, NULL, 0, &needed) == UNISONO_INVALID_USAGE && needed > 100);
    char *json = malloc(2 * needed);
    CHECK(unisono_flight_record(comm, json, 2 * needed, NULL) == UNISONO_OK);
    CHECK(json[0] == '{' && strstr(json, "\"operations\"") && strstr(json, "all_reduce"));
    free(json);
    uint32_t code = 9;
    char text[8] = "unset";
    CHECK(unisono_comm_error(comm, &code, text, sizeof text) == UNISONO_OK && code == 0 && text[0] == 0);
    CHECK(strchr(unisono_version(), '.'));
}

/* The last rank of the group leaves without a word. The others learn which one, and go on from the smallest step. */
static void check_recovery(unisono_comm *comm, size_t size) {
    size_t rank, left;
    uint64_t step;
    unisono_comm *survivors;
    CHECK(unisono_comm_rank(comm, &rank) == UNISONO_OK);
    if (size > 1 && rank + 1 < size) {
        while (unisono_barrier(comm) == UNISONO_OK) {}
        CHECK(unisono_last_error_is_recoverable() == 1 && unisono_last_error_peer() == size - 1);
        step = 40 + rank;
        CHECK(unisono_comm_shrink_and_agree(comm, &step, &survivors) == UNISONO_OK && step == 40);
        CHECK(unisono_comm_size(survivors, &left) == UNISONO_OK && left == size - 1);
        CHECK(unisono_comm_destroy(survivors) == UNISONO_OK);
    }
    CHECK(unisono_comm_destroy(comm) == UNISONO_OK);
}

static void stored(uint32_t code, void *data) { *(uint32_t *)data = code; }

/* Returns the code of requests that failed. Freeing one tells it, unless the program was given it before. */
static uint32_t check_failed_requests(unisono_request **requests) {
    unisono_message_info info;
    uint32_t code = unisono_wait(requests[0], -1), given = UNISONO_OK;
    CHECK(code != UNISONO_OK && code != UNISONO_NOT_DONE && unisono_wait(requests[0], -1) == code);
    for (int i = 1, done = 0; i < 4; i++, done = 0)
        while (!done) CHECK(unisono_test(requests[i], &done) == UNISONO_OK);
    CHECK(unisono_request_info(requests[1], &info) == code);
    CHECK(unisono_request_on_complete(requests[2], stored, &given) == UNISONO_OK && given == code);
    for (int i = 0; i < 3; i++) CHECK(unisono_request_free(requests[i]) == UNISONO_OK);
    CHECK(unisono_request_free(requests[3]) == code && strstr(unisono_last_error(), "as it was told"));
    return code;
}

/* Rank 0 leaves with an error. The others go on without it. */
static void check_failure(unisono_comm *comm, size_t rank) {
    char bytes[4], text[400];
    uint32_t code;
    unisono_request *requests[4];
    unisono_comm *survivors;
    for (uint64_t i = 0; i < 4; i++) CHECK(unisono_irecv(comm, &bytes[i], 1, 0, i, &requests[i]) == UNISONO_OK);
    wait_for_all_at_rank_0(comm, rank, RANKS);
    if (rank == 0) CHECK(unisono_comm_abort(comm, "as it was told") == UNISONO_OK);
    CHECK(check_failed_requests(requests) == UNISONO_ABORTED);
    CHECK(unisono_barrier(comm) == UNISONO_ABORTED);
    /* The program wanted it so: this is no failure that a shrink leaves out. */
    CHECK(!unisono_last_error_is_recoverable());
    CHECK(unisono_last_error_peer() == (rank == 0 ? UNISONO_ANY_RANK : 0));
    CHECK(unisono_comm_error(comm, &code, text, sizeof text) == UNISONO_OK);
    CHECK(code == UNISONO_ABORTED && strstr(text, "as it was told"));
    CHECK(unisono_comm_error(comm, &code, text, 5) == UNISONO_OK && strlen(text) == 4);
    if (rank != 0) {
        size_t size;
        CHECK(unisono_comm_shrink(comm, &survivors) == UNISONO_OK);
        CHECK(unisono_comm_size(survivors, &size) == UNISONO_OK && size >= RANKS - 1);
        CHECK(unisono_barrier(survivors) == UNISONO_OK);
        check_recovery(survivors, size);
    }
    CHECK(unisono_comm_shrink(NULL, &survivors) == UNISONO_INVALID_USAGE && survivors == NULL);
    uint64_t step = 7;
    CHECK(unisono_comm_shrink_and_agree(NULL, &step, &survivors) == UNISONO_INVALID_USAGE && survivors == NULL && step == 7);
    CHECK(unisono_comm_shrink_and_agree(comm, NULL, &survivors) == UNISONO_INVALID_USAGE && survivors == NULL);
    CHECK(unisono_comm_shrink_and_agree(comm, &step, NULL) == UNISONO_INVALID_USAGE && step == 7);
}

static void *run_rank(void *argument) {
    unisono_comm *comm = argument;
    size_t rank;
    CHECK(unisono_comm_rank(comm, &rank) == UNISONO_OK);
    check_messages(comm, rank);
    check_any(comm, rank);
    check_requests(comm, rank);
    check_callbacks(comm, rank);
    check_started(comm, rank);
    check_refusals(comm);
    check_groups(comm, rank);
    check_texts(comm);
    check_failure(comm, rank);
    CHECK(unisono_comm_destroy(comm) == UNISONO_OK);
    return NULL;
}

int main(void) {
    unisono_comm *comms[RANKS];
    pthread_t threads[RANKS];
    CHECK(unisono_comm_local(RANKS, comms) == UNISONO_OK);
    for (int i = 0; i < RANKS; i++) CHECK(pthread_create(&threads[i], NULL, run_rank, comms[i]) == 0);
    for (int i = 0; i < RANKS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    puts("all right");
    return 0;
}
