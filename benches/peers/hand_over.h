/* How long a flag takes from rank 0's core to rank 1's, at this moment: the same game as in unisono's
 * transports/src/pingpong.rs, on a table of one page whose path is in UNISONO_PEERS_TABLE. */
#pragma once
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { TABLE_BYTES = 4096, APART_BYTES = 1024, HAND_OVERS = 100, LOOKS = 1000 };
static const double HAND_OVER_PATIENCE = 0.1;
/* A game's number is above its turns. */
static const uint64_t GAME = (uint64_t)1 << 32;

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
    struct stat about;
    int is_table = !fstat(file, &about) && about.st_size == TABLE_BYTES;
    void *mapped = is_table ? mmap(NULL, TABLE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
    close(file);
    return mapped == MAP_FAILED ? NULL : (char *)mapped;
}

static int comes(const uint64_t *flag, uint64_t turn, double begun) {
    while (now() - begun < HAND_OVER_PATIENCE)
        for (int look = 0; look < LOOKS; look++) {
            if (__atomic_load_n(flag, __ATOMIC_ACQUIRE) == turn) return 1;
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        }
    return 0;
}

static uint64_t *flag_of(char *table, int rank) { return (uint64_t *)(void *)(table + rank * APART_BYTES); }

/* Seconds of some turns from `first` on; negative if the other rank does not come. */
static double rally(char *table, int rank, uint64_t first, int turns) {
    uint64_t *own = flag_of(table, rank), *other = flag_of(table, !rank);
    double begun = now();
    for (uint64_t turn = first; turn < first + (uint64_t)turns; turn++) {
        if (rank == 0) __atomic_store_n(own, turn, __ATOMIC_RELEASE);
        if (!comes(other, turn, begun)) return -1;
        if (rank == 1) __atomic_store_n(own, turn, __ATOMIC_RELEASE);
    }
    return now() - begun;
}

/* Seconds of one flag one way, after a turn in which the ranks meet; negative if that is not known. Each rank
 * counts the games, so that one that failed is not taken for the next; who has played to the end leaves the last
 * flag standing, as the other may not have seen it yet. */
static double hand_over(char *table, int rank) {
    uint64_t *own = flag_of(table, rank), game = (__atomic_load_n(own, __ATOMIC_RELAXED) / GAME + 1) * GAME;
    int met = rally(table, rank, game + 1, 1) >= 0;
    double seconds = met ? rally(table, rank, game + 2, HAND_OVERS) : -1;
    if (seconds >= 0) return seconds / (2 * HAND_OVERS);
    __atomic_store_n(own, game, __ATOMIC_RELAXED);
    return -1;
}
