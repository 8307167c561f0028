/* A check that ends the program with its line. */
#ifndef UNISONO_TESTS_CHECK_H
#define UNISONO_TESTS_CHECK_H

#include "unisono.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                                                              \
    do {                                                                                                              \
        if (!(condition)) {                                                                                           \
            fprintf(stderr, "line %d: %s; last error: %s\n", __LINE__, #condition, unisono_last_error());             \
            exit(1);                                                                                                  \
        }                                                                                                             \
    } while (0)

/* Returns at rank 0 once all have come. Rank 0 may abort then: a barrier would let it do so while another rank is
 * still on its way out of that barrier, and would fail there. */
static inline void wait_for_all_at_rank_0(unisono_comm *comm, size_t rank, size_t size) {
    char byte = 0;
    if (rank != 0) CHECK(unisono_send(comm, &byte, 1, UNISONO_U8, 0) == UNISONO_OK);
    for (size_t from = 1; rank == 0 && from < size; from++)
        CHECK(unisono_recv(comm, &byte, 1, UNISONO_U8, from) == UNISONO_OK);
}

#endif
