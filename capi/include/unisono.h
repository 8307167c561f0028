/* unisono: collective communication among threads, processes and hosts.
 *
 * Every function returns 0 for success, else the code of an error; unisono_last_error() returns its text. A function can be
 * called from any thread. Calls on one communicator run one after the other, in the order in which they were made.
 *
 * All ranks must make the same calls in the same order. A share is `count` elements. Lengths that differ between ranks, or
 * calls that differ, are errors on every rank. Buffers need no alignment. If input and output are the same memory, the
 * shorter one must be this rank's share of the longer one, as in NCCL. Other overlaps are an error.
 */
#ifndef UNISONO_H
#define UNISONO_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct unisono_comm unisono_comm;

/* Codes of errors. A code never changes its meaning. */
enum {
    UNISONO_OK = 0,
    UNISONO_INVALID_USAGE = 1,      /* the call was refused; the communicator stays usable */
    UNISONO_UNSUPPORTED = 2,        /* so is this one */
    UNISONO_BOOTSTRAP = 3,          /* no communicator was made */
    UNISONO_MISMATCH = 4,           /* two ranks made different calls */
    UNISONO_COUNT_MISMATCH = 5,     /* two ranks gave different lengths */
    UNISONO_PEER_FAILED = 6,        /* a rank died, or its connection was lost */
    UNISONO_PEER_FINALIZED = 7,     /* a rank destroyed its communicator */
    UNISONO_TIMEOUT = 8,            /* nothing moved for UNISONO_TIMEOUT_MS */
    UNISONO_ABORTED = 9,            /* a rank called unisono_comm_abort */
    UNISONO_EXCLUDED = 10,          /* the others go on without this rank */
    UNISONO_PROTOCOL_VIOLATION = 11,
    UNISONO_NOT_FINITE = 12,
    UNISONO_SYSTEM = 13,            /* the system refused something */
    UNISONO_GPU = 14,
    UNISONO_BUG = 15,
    UNISONO_OBJECT = 16,            /* an object could not be encoded or decoded */
    UNISONO_MESSAGE_TIMEOUT = 17    /* a message did not move for UNISONO_TIMEOUT_MS */
};

/* Element types. */
enum {
    UNISONO_I8 = 0,
    UNISONO_U8 = 1,
    UNISONO_I32 = 2,
    UNISONO_U32 = 3,
    UNISONO_I64 = 4,
    UNISONO_U64 = 5,
    UNISONO_F16 = 6,
    UNISONO_BF16 = 7,
    UNISONO_F32 = 8,
    UNISONO_F64 = 9,
    UNISONO_F8E4M3 = 10,
    UNISONO_F8E5M2 = 11
};

/* Reductions. */
enum {
    UNISONO_SUM = 0,
    UNISONO_PROD = 1,
    UNISONO_MIN = 2,
    UNISONO_MAX = 3,
    UNISONO_AVG = 4
};

/* Returns the text of the last error of this thread. It is valid until the next error of this thread. */
const char *unisono_last_error(void);

/* A function that makes a communicator stores NULL if it fails. */

/* Connects to the other ranks as the environment of unisono run, torchrun, mpirun or srun says. */
uint32_t unisono_comm_from_env(unisono_comm **comm);

/* Makes `size` ranks that are threads of this process. `comms` has room for `size` pointers. */
uint32_t unisono_comm_local(size_t size, unisono_comm **comms);

/* Writes a unique id with its NUL into `bytes` bytes at `id`; 160 are enough. Rank 0 makes it, with the address of the
 * interface that the other ranks reach, and hands it to them. */
uint32_t unisono_unique_id(const char *interface_address, char *id, size_t bytes);

/* Connects to the ranks with the same unique id. `settings` is NULL or lines of the form name=value, such as
 * "timeout_ms=5000\ntransport=tcp". They win over UNISONO_* variables. */
uint32_t unisono_comm_join(const char *id, size_t rank, size_t size, const char *settings, unisono_comm **comm);

/* Ends a communicator. No call on it may be under way. NULL is allowed. */
uint32_t unisono_comm_destroy(unisono_comm *comm);

uint32_t unisono_comm_rank(const unisono_comm *comm, size_t *rank);
uint32_t unisono_comm_size(const unisono_comm *comm, size_t *size);

/* Ends the operations of a communicator on all ranks. Works from any thread. */
uint32_t unisono_comm_abort(const unisono_comm *comm, const char *reason);

/* One share in, one share out. */
uint32_t unisono_all_reduce(const unisono_comm *comm, const void *input, void *output, size_t count, uint32_t dtype,
                            uint32_t op);
/* One share in, one for each rank out. */
uint32_t unisono_all_gather(const unisono_comm *comm, const void *input, void *output, size_t count, uint32_t dtype);
/* One share for each rank in, one share out. In place, the input is written. */
uint32_t unisono_reduce_scatter(const unisono_comm *comm, const void *input, void *output, size_t count, uint32_t dtype,
                                uint32_t op);
/* One share in at the root, one share out. Other ranks may give NULL as the input. */
uint32_t unisono_broadcast(const unisono_comm *comm, const void *input, void *output, size_t count, uint32_t dtype,
                           size_t root);
/* One share in, one share out at the root. Other ranks may give NULL as the output. */
uint32_t unisono_reduce(const unisono_comm *comm, const void *input, void *output, size_t count, uint32_t dtype, uint32_t op,
                        size_t root);
/* One share in, one for each rank out at the root. Other ranks may give NULL as the output. */
uint32_t unisono_gather(const unisono_comm *comm, const void *input, void *output, size_t count, uint32_t dtype,
                        size_t root);
/* One share for each rank in at the root, one share out. Other ranks may give NULL as the input. */
uint32_t unisono_scatter(const unisono_comm *comm, const void *input, void *output, size_t count, uint32_t dtype,
                         size_t root);
/* One share for each rank in, one from each rank out. */
uint32_t unisono_all_to_all(const unisono_comm *comm, const void *input, void *output, size_t count, uint32_t dtype);
/* One share in, one share out: the reduction of this rank and all ranks below it. There is no average. */
uint32_t unisono_scan(const unisono_comm *comm, const void *input, void *output, size_t count, uint32_t dtype, uint32_t op);
/* One share in, one share out: the reduction of all ranks below this one. The output of rank 0 stays as it is. */
uint32_t unisono_exscan(const unisono_comm *comm, const void *input, void *output, size_t count, uint32_t dtype,
                        uint32_t op);
/* Waits until all ranks have called it. */
uint32_t unisono_barrier(const unisono_comm *comm);

#ifdef __cplusplus
}
#endif

#endif
