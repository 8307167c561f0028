/* One of four ranks that exchange messages in pairs. The first two end at once, with or without a destroy, while the others
 * go on. */
#include "check.h"

#include <string.h>
#include <time.h>

#define ROUNDS 50

int main(int argc, char **argv) {
    unisono_comm *comm;
    size_t rank;
    CHECK(argc == 2 && unisono_comm_from_env(&comm) == UNISONO_OK);
    CHECK(unisono_comm_rank(comm, &rank) == UNISONO_OK);
    for (uint64_t round = 0; round < (rank < 2 ? 1 : ROUNDS); round++) {
        uint64_t got = 99;
        unisono_request *sent, *received;
        CHECK(unisono_isend(comm, &round, sizeof round, rank ^ 1, 7, &sent) == UNISONO_OK);
        CHECK(unisono_irecv(comm, &got, sizeof got, rank ^ 1, 7, &received) == UNISONO_OK);
        CHECK(unisono_wait(received, -1) == UNISONO_OK && got == round);
        CHECK(unisono_wait(sent, -1) == UNISONO_OK);
        CHECK(unisono_request_free(sent) == UNISONO_OK && unisono_request_free(received) == UNISONO_OK);
        struct timespec pause = {0, 1000000};
        nanosleep(&pause, NULL);
    }
    if (strcmp(argv[1], "destroy") == 0) CHECK(unisono_comm_destroy(comm) == UNISONO_OK);
    if (strcmp(argv[1], "exit") == 0) exit(0);
    return 0;
}
