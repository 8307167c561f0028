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

#endif
