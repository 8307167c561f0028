/* How long a flag takes from the first rank's core to the last one's, at this moment: the same game as in unisono's
 * transports/src/testing/flag_latency.rs, on a table of one page whose path is in UNISONO_COMPARE_FLAG_PAGE. */
#pragma once
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { FLAG_PAGE_BYTES = 4096, FLAG_STRIDE_BYTES = 1024, POLLS = 1000 };
/* With more than two ranks somebody else may get the core in the middle of a game, so there are several, and the
 * min_latency counts. */
enum { TURNS_OF_TWO = 100, PROBES_OF_MANY = 5, TURNS_OF_MANY = 20 };
/* Two that are bound to one core lose every game. */
static const double FLAG_LATENCY_TIMEOUT = 0.02;
/* A game's number is above its turns. */
static const uint64_t GAME = (uint64_t)1 << 32;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Nobody plays where there is no table. */
static char *map_flag_page(void) {
    const char *path = getenv("UNISONO_COMPARE_FLAG_PAGE");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0) return NULL;
    struct stat about;
    int is_table = !fstat(file, &about) && about.st_size == FLAG_PAGE_BYTES;
    void *mapped = is_table ? mmap(NULL, FLAG_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
    close(file);
    return mapped == MAP_FAILED ? NULL : (char *)mapped;
}

static int comes(const uint64_t *flag, uint64_t turn, double begun) {
    while (now() - begun < FLAG_LATENCY_TIMEOUT)
        for (int look = 0; look < POLLS; look++) {
            if (__atomic_load_n(flag, __ATOMIC_ACQUIRE) == turn) return 1;
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        }
    return 0;
}

/* Side 0 raises the first flag, side 1 answers. */
static uint64_t *flag_of(char *table, int side) { return (uint64_t *)(void *)(table + side * FLAG_STRIDE_BYTES); }

/* Seconds of some turns from `first` on; negative if the other side does not come. */
static double ping_pong(char *table, int side, uint64_t first, int turns) {
    uint64_t *own = flag_of(table, side), *other = flag_of(table, !side);
    double begun = now();
    for (uint64_t turn = first; turn < first + (uint64_t)turns; turn++) {
        if (side == 0) __atomic_store_n(own, turn, __ATOMIC_RELEASE);
        if (!comes(other, turn, begun)) return -1;
        if (side == 1) __atomic_store_n(own, turn, __ATOMIC_RELEASE);
    }
    return now() - begun;
}

/* Seconds of one flag one way, after a turn in which the sides meet; negative if that is not known. Each side
 * counts the games, so that one that failed is not taken for the next; who has played to the end leaves the last
 * flag standing, as the other may not have seen it yet. */
static double play(char *table, int side, int turns) {
    uint64_t *own = flag_of(table, side), game = (__atomic_load_n(own, __ATOMIC_RELAXED) / GAME + 1) * GAME;
    int met = ping_pong(table, side, game + 1, 1) >= 0;
    double seconds = met ? ping_pong(table, side, game + 2, turns) : -1;
    if (seconds >= 0) return seconds / (2 * turns);
    __atomic_store_n(own, game, __ATOMIC_RELAXED);
    return -1;
}

static double min_latency(char *table, int side) {
    double least = -1;
    for (int game = 0; game < PROBES_OF_MANY; game++) {
        double seconds = play(table, side, TURNS_OF_MANY);
        if (seconds >= 0 && (least < 0 || seconds < least)) least = seconds;
    }
    return least;
}

static void run_on(int core) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    sched_setaffinity(0, sizeof one, &one);
}

/* The first of some cores, or the last. */
static int outermost(const cpu_set_t *cores, int last) {
    int found = -1;
    for (int core = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, cores) && (last || found < 0)) found = core;
    return found;
}

/* Ranks that are not bound are where they are: for the game the two go to cores of their own, and back. */
static double min_latency_across_cores(char *table, int side) {
    cpu_set_t cores;
    int home = sched_getcpu(), bound = sched_getaffinity(0, sizeof cores, &cores) || CPU_COUNT(&cores) < 2;
    if (bound || home < 0) return min_latency(table, side);
    run_on(outermost(&cores, side));
    double seconds = min_latency(table, side);
    run_on(home);
    sched_setaffinity(0, sizeof cores, &cores);
    return seconds;
}

/* The first and the last rank play; negative for others. Two ranks have a core each. */
static double flag_latency(char *table, int rank, int ranks) {
    if (rank > 0 && rank < ranks - 1) return -1;
    return ranks == 2 ? play(table, rank, TURNS_OF_TWO) : min_latency_across_cores(table, rank > 0);
}
