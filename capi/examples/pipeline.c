/* Ranks sum a value, then pass a message around a ring while a collective runs.
 *
 * Run it alone for 4 ranks as threads, or as 4 processes: unisono run -n 4 -- pipeline */
#include <unisono.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define THREADS 4

/* Ends the program if a call fails. */
static void check(uint32_t code, const char *what) {
    if (code == UNISONO_OK) return;
    fprintf(stderr, "%s: error %u: %s\n", what, (unsigned)code, unisono_last_error());
    exit(1);
}

static void *run_rank(void *argument) {
    unisono_comm *comm = argument;
    size_t rank, size;
    check(unisono_comm_rank(comm, &rank), "rank");
    check(unisono_comm_size(comm, &size), "size");

    /* A message to the next rank is under way while all ranks reduce. */
    size_t next = (rank + 1) % size, got = 0;
    unisono_request *sent, *received;
    check(unisono_irecv(comm, &got, sizeof got, UNISONO_ANY_RANK, 7, &received), "irecv");
    check(unisono_isend(comm, &rank, sizeof rank, next, 7, &sent), "isend");
    float sum = (float)rank + 1;
    check(unisono_all_reduce(comm, &sum, &sum, 1, UNISONO_F32, UNISONO_SUM), "all_reduce");

    unisono_message_info info;
    check(unisono_wait(received, -1), "wait for the receive");
    check(unisono_wait(sent, -1), "wait for the send");
    check(unisono_request_info(received, &info), "info");
    if (rank == 0) printf("sum %g, message from rank %zu\n", sum, info.source);
    check(unisono_request_free(received), "free");
    check(unisono_request_free(sent), "free");

    check(unisono_barrier(comm), "barrier");
    check(unisono_comm_destroy(comm), "destroy");
    return NULL;
}

int main(void) {
    if (getenv("RANK")) {
        unisono_comm *comm;
        check(unisono_comm_from_env(&comm), "connect");
        run_rank(comm);
        return 0;
    }
    unisono_comm *comms[THREADS];
    pthread_t threads[THREADS];
    check(unisono_comm_local(THREADS, comms), "local ranks");
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, run_rank, comms[i]) != 0) return 1;
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    return 0;
}
