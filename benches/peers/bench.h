/* The method, the same for every library and for `unisono perf --samples`: a sample is a barrier, then calls
 * back to back worth about a millisecond; its time is that of the slowest rank, divided by the calls; the
 * median over samples is printed. Only the calls are inside the clock. Sizes are counted as nccl-tests does. */
#pragma once
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
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

struct run {
    const struct library *library;
    enum collective what;
    float *input, *output;
    size_t count, total; /* elements: of a block, of the size that is stated */
};

static const size_t PAGE = 4096;
static const double SAMPLE_SECONDS = 1e-3, LONG_CALL_SECONDS = 0.3;
enum { CALLS_MAX = 2000, SAMPLES_MAX = 201 };

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void fail(const char *what) {
    fprintf(stderr, "peer benchmark: %s\n", what);
    exit(1);
}

/* Small whole numbers: sums over any ranks are exact in float32. */
static float given(int rank, size_t index) { return (float)((rank + 1) * (int)(index % 13 + 1)); }

static void fill(const struct run *run) {
    const struct library *library = run->library;
    for (size_t i = 0; i < run->total; i++) run->input[i] = given(library->rank, i);
    memset(run->output, 0xff, run->total * sizeof(float));
    if (run->what == BROADCAST && library->rank == 0) memcpy(run->output, run->input, run->total * sizeof(float));
}

static float expected(const struct run *run, size_t index) {
    int ranks = run->library->ranks, rank = run->library->rank;
    size_t count = run->count, of_all = (size_t)(ranks * (ranks + 1) / 2);
    switch (run->what) {
    case ALL_REDUCE: return (float)of_all * given(0, index);
    case REDUCE_SCATTER: return (float)of_all * given(0, (size_t)rank * count + index);
    case BROADCAST: return given(0, index);
    case ALL_GATHER: return given((int)(index / count), index % count);
    default: return given((int)(index / count), (size_t)rank * count + index % count);
    }
}

static void verify(const struct run *run) {
    size_t results = run->what == REDUCE_SCATTER ? run->count : run->total;
    double wrong = 0;
    for (size_t i = 0; i < results; i++) wrong += run->output[i] != expected(run, i);
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

static double median_time(const struct run *run, double seconds) {
    double times[SAMPLES_MAX], each = slowest(run, 1);
    for (int i = 0; i < 2; i++)
        if (each < LONG_CALL_SECONDS) each = slowest(run, 1);
    int calls = clamp(SAMPLE_SECONDS / each, 1, CALLS_MAX);
    if (calls > 1) each = slowest(run, calls);
    calls = clamp(SAMPLE_SECONDS / each, 1, CALLS_MAX);
    double worth = calls * each;
    int samples = clamp(seconds / worth, worth > 1 ? 3 : 5, SAMPLES_MAX);
    for (int i = 0; i < samples; i++) times[i] = sample(run, calls);
    run->library->max_over_ranks(times, samples);
    qsort(times, (size_t)samples, sizeof(double), ascending);
    return (times[(samples - 1) / 2] + times[samples / 2]) / 2;
}

static void measure(struct run run, size_t bytes, double seconds) {
    size_t ranks = (size_t)run.library->ranks, elements = bytes / sizeof(float);
    int blocks = run.what != ALL_REDUCE && run.what != BROADCAST;
    run.count = blocks ? elements / ranks : elements;
    if (run.count < 1) run.count = 1;
    run.total = blocks ? run.count * ranks : run.count;
    fill(&run);
    sample(&run, 1);
    verify(&run);
    double time = median_time(&run, seconds);
    if (run.library->rank == 0) {
        printf("%s,%zu,%zu,%.4f\n", NAMES[run.what], ranks, run.total * sizeof(float), time * 1e6);
        fflush(stdout);
    }
}

static float *buffer(size_t bytes) {
    void *memory = NULL;
    if (posix_memalign(&memory, PAGE, bytes)) fail("out of memory");
    memset(memory, 1, bytes);
    return (float *)memory;
}

/* Arguments: collective, sizes with commas, milliseconds for each size, seconds after which to give up. */
static int benchmark(const struct library *library, int arguments, char **values) {
    if (arguments != 5) fail("usage: COLLECTIVE SIZES MILLISECONDS LIMIT_SECONDS");
    alarm((unsigned)atoi(values[4]));
    struct run run = {library, COLLECTIVES, NULL, NULL, 0, 0};
    for (int i = 0; i < COLLECTIVES; i++)
        if (!strcmp(values[1], NAMES[i])) run.what = (enum collective)i;
    if (run.what == COLLECTIVES) fail("no such collective");
    for (char *size = strtok(values[2], ","); size; size = strtok(NULL, ",")) {
        size_t bytes = strtoull(size, NULL, 10), room = bytes + sizeof(float) * (size_t)library->ranks;
        run.input = buffer(room);
        run.output = buffer(room);
        measure(run, bytes, atof(values[3]) / 1e3);
        free(run.input);
        free(run.output);
    }
    return 0;
}
