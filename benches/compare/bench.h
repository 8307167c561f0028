/* The method, the same for every library and for `unisono perf --samples`: a sample is a barrier, then calls
 * back to back worth about a millisecond; its time is that of the slowest rank, divided by the calls; the
 * median over samples is printed. Only the calls are inside the clock. Sizes are counted as nccl-tests does.
 * One line for each size: COLLECTIVE,RANKS,BYTES,MICROSECONDS, or `!` and a reason in their place, then
 * where it is known ,MICROSECONDS of a flag between the cores of the first and the last rank meanwhile; and at the end:
 * measured,SECONDS of all that was not launching. */
#pragma once
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "flag_latency.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum collective { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, ALL_TO_ALL, COLLECTIVES };
static const char *const NAMES[COLLECTIVES] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast",
                                               "all_to_all"};

/* What a library has to provide. `count` is as in MPI: elements of a block where there are blocks. */
struct library {
    int rank, ranks;
    void (*barrier)(void);
    void (*max_over_ranks)(double *values, int count);
    void (*call)(enum collective, float *input, float *output, size_t count);
};

/* Seconds for each size. */
struct patience {
    double samples; /* worth this much, but never fewer than three */
    double limit;   /* for three samples: a size that needs more is skipped */
};

struct run {
    const struct library *library;
    enum collective what;
    float *input, *output;
    size_t count, total; /* elements: of a block, of the size that is stated */
    char *table;
};

/* Seconds; of a call negative if it was skipped, of a flag latency if it is unknown. */
struct medians {
    double call, flag_latency;
};

static const size_t PAGE = 4096;
static const double SAMPLE_SECONDS = 1e-3, LONG_CALL_SECONDS = 0.05;
/* A longer sample has fewer calls the next time: under load, the calls that it was estimated by can have been much
 * shorter than others. */
static const double MISJUDGED_SAMPLE_SECONDS = 1e-2;
/* After so many limits without an end of one size there is something wrong. */
static const double HANGS = 3;
enum { CALLS_MAX = 2000, SAMPLES_MIN = 3, SAMPLES_MAX = 201 };
/* Of short samples of more than two ranks, which a game disturbs more. */
enum { SAMPLES_PER_PROBE = 8 };

static void fail(const char *what) {
    fprintf(stderr, "peer benchmark: %s\n", what);
    exit(1);
}

/* Small whole numbers: sums over any ranks are exact in float32. */
static float given(int rank, size_t index) { return (float)((rank + 1) * (int)(index % 13 + 1)); }

/* Inputs are the same for all collectives, and made once. */
static void prepare(const struct run *run) {
    memset(run->output, 0xff, run->total * sizeof(float));
    if (run->what == BROADCAST && run->library->rank == 0)
        memcpy(run->output, run->input, run->total * sizeof(float));
}

/* How many elements of a block of the result are wrong. */
static size_t wrong_in(const float *block, size_t count, int factor, size_t first) {
    size_t wrong = 0;
    for (size_t i = 0; i < count; i++) wrong += block[i] != given(factor - 1, first + i);
    return wrong;
}

static size_t wrong_elements(const struct run *run) {
    int ranks = run->library->ranks, of_all = ranks * (ranks + 1) / 2;
    size_t count = run->count, own = (size_t)run->library->rank * count, wrong = 0;
    switch (run->what) {
    case ALL_REDUCE: return wrong_in(run->output, count, of_all, 0);
    case REDUCE_SCATTER: return wrong_in(run->output, count, of_all, own);
    case BROADCAST: return wrong_in(run->output, count, 1, 0);
    default:
        for (int rank = 0; rank < ranks; rank++)
            wrong += wrong_in(run->output + (size_t)rank * count, count, rank + 1, run->what == ALL_GATHER ? 0 : own);
        return wrong;
    }
}

static void verify(const struct run *run) {
    double wrong = (double)wrong_elements(run);
    run->library->max_over_ranks(&wrong, 1);
    if (wrong > 0) {
        fprintf(stderr, "%s of %zu bytes: %.0f elements are wrong\n", NAMES[run->what], run->total * 4, wrong);
        fail("a wrong result");
    }
}

/* Seconds of one call on this rank. */
static double sample(const struct run *run, int calls) {
    run->library->barrier();
    double begun = now();
    for (int i = 0; i < calls; i++) run->library->call(run->what, run->input, run->output, run->count);
    return (now() - begun) / calls;
}

static double slowest(const struct run *run, int calls) {
    double seconds = sample(run, calls);
    run->library->max_over_ranks(&seconds, 1);
    return seconds;
}

static int clamp(double value, int least, int most) {
    return value < least ? least : value > most ? most : (int)value;
}

static int ascending(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double median(double *times, int count) {
    qsort(times, (size_t)count, sizeof(double), ascending);
    return (times[(count - 1) / 2] + times[count / 2]) / 2;
}

static struct medians medians(const struct run *run, struct patience patience) {
    struct medians found = {0, -1};
    double times[SAMPLES_MAX], each = times[0] = slowest(run, 1);
    if (SAMPLES_MIN * each > patience.limit) {
        found.call = -each;
        return found;
    }
    /* A long call is warm and a sample at once. */
    int taken = each >= LONG_CALL_SECONDS;
    for (int i = 0; i < 2; i++)
        if (each < LONG_CALL_SECONDS) each = slowest(run, 1);
    int calls = clamp(SAMPLE_SECONDS / each, 1, CALLS_MAX);
    if (calls > 1) each = slowest(run, calls);
    calls = clamp(SAMPLE_SECONDS / each, 1, CALLS_MAX);
    double latencies[SAMPLES_MAX];
    int known = 0, every = run->library->ranks == 2 || calls == 1 ? 1 : SAMPLES_PER_PROBE;
    double spent = taken * each;
    while (taken < SAMPLES_MIN || (taken < SAMPLES_MAX && spent < patience.samples)) {
        if (run->table && taken % every == 0) {
            /* Neither is in a call that needs the other while they play. */
            run->library->barrier();
            double seconds = flag_latency(run->table, run->library->rank, run->library->ranks);
            if (seconds >= 0) latencies[known++] = seconds;
        }
        each = times[taken++] = slowest(run, calls);
        spent += calls * each;
        if (calls * each > MISJUDGED_SAMPLE_SECONDS) calls = clamp(SAMPLE_SECONDS / each, 1, calls);
    }
    found.call = median(times, taken);
    if (known) found.flag_latency = median(latencies, known);
    return found;
}

static void print(const struct run *run, struct medians found) {
    printf("%s,%d,%zu,", NAMES[run->what], run->library->ranks, run->total * sizeof(float));
    if (found.call > 0)
        printf("%.4f", found.call * 1e6);
    else
        printf("!skipped: a call takes %.1f s", -found.call);
    if (found.flag_latency >= 0) printf(",%.4f", found.flag_latency * 1e6);
    printf("\n");
    fflush(stdout);
}

static void measure(struct run run, size_t bytes, struct patience patience) {
    size_t ranks = (size_t)run.library->ranks, elements = bytes / sizeof(float);
    int blocks = run.what != ALL_REDUCE && run.what != BROADCAST;
    alarm((unsigned)(HANGS * patience.limit));
    run.count = blocks ? elements / ranks : elements;
    if (run.count < 1) run.count = 1;
    run.total = blocks ? run.count * ranks : run.count;
    prepare(&run);
    sample(&run, 1);
    verify(&run);
    struct medians found = medians(&run, patience);
    if (run.library->rank == 0) print(&run, found);
}

static float *buffer(size_t bytes) {
    void *memory = NULL;
    if (posix_memalign(&memory, PAGE, bytes)) fail("out of memory");
    memset(memory, 1, bytes);
    return (float *)memory;
}

/* Of `COLLECTIVE=SIZE,SIZE`; `sizes` becomes what follows the sign. */
static enum collective collective_in(const char *list, const char **sizes) {
    size_t length = strcspn(list, "=");
    *sizes = list + length;
    for (int i = 0; i < COLLECTIVES; i++)
        if (strlen(NAMES[i]) == length && !strncmp(list, NAMES[i], length)) return (enum collective)i;
    fail("no such collective");
    return COLLECTIVES;
}

/* The size after a separator, which is stepped over. */
static size_t next(const char **sizes) {
    char *end;
    size_t bytes = strtoull(*sizes + 1, &end, 10);
    *sizes = end;
    return bytes;
}

static size_t largest(int lists, char **values) {
    size_t most = 0;
    const char *sizes;
    for (int i = 0; i < lists; i++)
        for (collective_in(values[i], &sizes); *sizes;) {
            size_t bytes = next(&sizes);
            most = bytes > most ? bytes : most;
        }
    return most;
}

/* Arguments: milliseconds of samples and seconds at most for each size; then what to measure, in this order:
 * COLLECTIVE=SIZE,SIZE ... */
static int benchmark(const struct library *library, int arguments, char **values) {
    if (arguments < 4) fail("usage: MILLISECONDS LIMIT_SECONDS COLLECTIVE=SIZES ...");
    struct patience patience = {atof(values[1]) / 1e3, atof(values[2])};
    double begun = now();
    alarm((unsigned)(HANGS * patience.limit));
    size_t room = largest(arguments - 3, values + 3) / sizeof(float) + (size_t)library->ranks;
    float *input = buffer(room * sizeof(float)), *output = buffer(room * sizeof(float));
    struct run run = {library, COLLECTIVES, input, output, 0, 0, map_flag_page()};
    for (size_t i = 0; i < room; i++) run.input[i] = given(library->rank, i);
    for (int i = 3; i < arguments; i++) {
        const char *sizes;
        for (run.what = collective_in(values[i], &sizes); *sizes;) measure(run, next(&sizes), patience);
    }
    free(run.input);
    free(run.output);
    if (library->rank == 0) printf("measured,%.3f\n", now() - begun);
    return 0;
}
