/* Ranks in a program that has closed standard input, output and error: no file of the library gets their numbers, so that
 * what the program prints goes nowhere. Returns 0 if all is right, else the number of the check. */

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "unisono.h"

enum { RANKS = 3 };

static char id[160];
static const char *settings;

#define CHECK(what) if (!(what)) _exit(__LINE__ % 200 + 1)

static void *run_rank(void *argument) {
    unisono_comm *comm, *child;
    float value = 1;
    CHECK(unisono_comm_join(id, (size_t)argument, RANKS, settings, &comm) == UNISONO_OK);
    CHECK(unisono_comm_split(comm, 0, 0, &child) == UNISONO_OK);
    for (int round = 0; round < 20; round++) {
        value = 1;
        printf("text that must not arrive at another rank");
        fflush(stdout);
        CHECK(unisono_all_reduce(child, &value, &value, 1, UNISONO_F32, UNISONO_SUM) == UNISONO_OK && value == RANKS);
    }
    for (int file = 0; file < 3; file++) {
        errno = 0;
        CHECK(lseek(file, 0, SEEK_CUR) == -1 && errno == EBADF);
    }
    CHECK(unisono_barrier(comm) == UNISONO_OK);
    CHECK(unisono_comm_destroy(child) == UNISONO_OK && unisono_comm_destroy(comm) == UNISONO_OK);
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[RANKS];
    settings = argc > 1 ? argv[1] : NULL;
    for (int file = 0; file < 3; file++) close(file);
    CHECK(unisono_unique_id("127.0.0.1", id, sizeof id) == UNISONO_OK);
    for (size_t rank = 0; rank < RANKS; rank++) CHECK(pthread_create(&threads[rank], NULL, run_rank, (void *)rank) == 0);
    for (size_t rank = 0; rank < RANKS; rank++) CHECK(pthread_join(threads[rank], NULL) == 0);
    return 0;
}
