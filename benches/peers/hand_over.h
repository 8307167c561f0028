/* How long a flag takes from rank 0's core to rank 1's, at this moment: the same game as in unisono's
 * transports/src/pingpong.rs, on a table of one page whose path is in UNISONO_PEERS_TABLE. */
#pragma once
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { TABLE_BYTES = 4096, APART_BYTES = 1024, HAND_OVERS = 100, LOOKS = 1000 };
static const double HAND_OVER_PATIENCE = 0.1;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Nobody plays where there is no table, or with other than two ranks. */
static char *table_of(int ranks) {
    const char *path = getenv("UNISONO_PEERS_TABLE");
    int file = path && ranks == 2 ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0) return NULL;
    void *mapped = mmap(NULL, TABLE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return mapped == MAP_FAILED ? NULL : (char *)mapped;
}

static int comes(const unsigned long *flag, unsigned long turn, double begun) {
    while (now() - begun < HAND_OVER_PATIENCE)
        for (int look = 0; look < LOOKS; look++)
            if (__atomic_load_n(flag, __ATOMIC_ACQUIRE) == turn) return 1;
    return 0;
}

/* Seconds of some turns; negative if the other rank does not come. */
static double rally(char *table, int rank, int turns) {
    unsigned long *own = (unsigned long *)(void *)(table + rank * APART_BYTES);
    unsigned long *other = (unsigned long *)(void *)(table + !rank * APART_BYTES);
    unsigned long turn = __atomic_load_n(own, __ATOMIC_RELAXED);
    double begun = now();
    for (int i = 0; i < turns; i++) {
        turn++;
        if (rank == 0) __atomic_store_n(own, turn, __ATOMIC_RELEASE);
        if (!comes(other, turn, begun)) return -1;
        if (rank == 1) __atomic_store_n(own, turn, __ATOMIC_RELEASE);
    }
    return now() - begun;
}

/* Seconds of one flag one way, after a turn in which the ranks meet; negative if that is not known. */
static double hand_over(char *table, int rank) {
    if (!table || rally(table, rank, 1) < 0) return -1;
    return rally(table, rank, HAND_OVERS) / (2 * HAND_OVERS);
}
