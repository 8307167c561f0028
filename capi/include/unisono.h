/* unisono: collective communication among threads, processes and hosts.
 *
 * Every function returns 0 for success, or else the code of an error, whose text unisono_last_error() returns. A function can
 * be called from any thread. Calls on one communicator run one after the other, in the order in which they were made.
 *
 * All ranks must make the same calls in the same order. A share is `count` elements. If ranks make different calls or give
 * different lengths, every rank gets an error. Buffers need no alignment. Input and output may be the same memory, as in
 * NCCL. If one of them is longer, the shorter one must be the share of this rank in the longer one. Other overlaps are an
 * error.
 *
 * After UNISONO_INVALID_USAGE and UNISONO_UNSUPPORTED, all buffers are unchanged. After any other error of an operation, its
 * output is unspecified: parts may be as before, final, or partly reduced. An input that is not also the output is unchanged.
 * So never repeat an operation in place on the same buffer. Some ranks may have completed an operation in which others
 * failed. */
#ifndef UNISONO_H
#define UNISONO_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Compilers warn if a program ignores the code that a function returns, because the error would be lost. */
#ifndef UNISONO_CHECKED
#ifdef __GNUC__
#define UNISONO_CHECKED __attribute__((warn_unused_result))
#else
#define UNISONO_CHECKED
#endif
#endif

typedef struct unisono_comm unisono_comm;
/* An operation that was started, or its result. */
typedef struct unisono_request unisono_request;

/* Codes of errors. A code never changes its meaning. */
enum {
    UNISONO_OK = 0,
    UNISONO_INVALID_USAGE = 1,      /* the call was refused, and the communicator stays usable */
    UNISONO_UNSUPPORTED = 2,        /* the call is not supported, and the communicator stays usable */
    UNISONO_BOOTSTRAP = 3,          /* no communicator was made */
    UNISONO_MISMATCH = 4,           /* two ranks made different calls */
    UNISONO_COUNT_MISMATCH = 5,     /* two ranks gave different lengths */
    UNISONO_PEER_FAILED = 6,        /* a rank died, or its connection was lost */
    UNISONO_PEER_FINALIZED = 7,     /* a rank destroyed its communicator, or its process ended with code 0 */
    UNISONO_TIMEOUT = 8,            /* nothing moved for UNISONO_TIMEOUT_MS */
    UNISONO_ABORTED = 9,            /* a rank ended the communicator for all ranks: it failed, shrinks or aborts; or
                                       it left after a related communicator of that rank had failed */
    UNISONO_EXCLUDED = 10,          /* the other ranks go on without this rank */
    UNISONO_PROTOCOL_VIOLATION = 11,
    UNISONO_NOT_FINITE = 12,
    UNISONO_SYSTEM = 13,            /* the system refused something */
    UNISONO_GPU = 14,
    UNISONO_BUG = 15,
    UNISONO_OBJECT = 16,            /* an object could not be encoded or decoded */
    UNISONO_MESSAGE_TIMEOUT = 17,   /* a message did not move for UNISONO_TIMEOUT_MS */
    UNISONO_BARRIER_TIMEOUT = 18,   /* ranks did not come to a barrier in time */
    UNISONO_NOT_DONE = 100          /* the operation of a request is under way, and the request stays usable */
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
    UNISONO_F8E5M2 = 11,
    UNISONO_I16 = 12,
    UNISONO_U16 = 13,
    UNISONO_BOOL = 14,     /* one byte; every byte but 0 is true, and reductions store 1 */
    UNISONO_C64 = 15,      /* two float: real and imaginary part */
    UNISONO_C128 = 16,     /* two double */
    UNISONO_F32I32 = 17,   /* struct { float value; int32_t index; } */
    UNISONO_F64I64 = 18,   /* struct { double value; int64_t index; } */
    UNISONO_I32I32 = 19,
    UNISONO_I64I64 = 20
};

/* Reductions. */
enum {
    UNISONO_SUM = 0,
    UNISONO_PROD = 1,
    UNISONO_MIN = 2,
    UNISONO_MAX = 3,
    UNISONO_AVG = 4,
    /* 5 is not part of this interface. */
    UNISONO_BITAND = 6,    /* bitwise for integers, and logical for UNISONO_BOOL */
    UNISONO_BITOR = 7,
    UNISONO_BITXOR = 8,
    UNISONO_MINLOC = 9,    /* for element types with an index */
    UNISONO_MAXLOC = 10
};

/* Collectives, for unisono_run_operation and unisono_start_operation. */
enum {
    UNISONO_ALL_REDUCE = 0,
    UNISONO_ALL_GATHER = 1,
    UNISONO_REDUCE_SCATTER = 2,
    UNISONO_BROADCAST = 3,
    UNISONO_REDUCE = 4,
    UNISONO_GATHER = 5,
    UNISONO_SCATTER = 6,
    UNISONO_ALL_TO_ALL = 7,
    UNISONO_BARRIER = 8,
    UNISONO_SCAN = 9,
    UNISONO_EXSCAN = 10
};

/* Directions of an entry, for unisono_group. */
enum {
    UNISONO_SEND = 0,
    UNISONO_RECV = 1
};

/* Values for unisono_irecv and unisono_probe. The first accepts every rank, and the second accepts every tag. */
#define UNISONO_ANY_RANK SIZE_MAX
#define UNISONO_ANY_TAG UINT64_MAX

/* A send to a peer, which only reads the buffer, or a receive from a peer. */
typedef struct {
    uint32_t direction;
    uint32_t dtype;
    void *buffer;
    size_t count;
    size_t peer;
} unisono_group_entry;

/* A message. */
typedef struct {
    size_t source;
    uint64_t tag;
    size_t bytes;
} unisono_message_info;

/* A collective described by values. Collectives without a reduction ignore `op`, and collectives without a root ignore
 * `root`. */
typedef struct {
    uint32_t collective;
    uint32_t dtype;
    uint32_t op;
    size_t root;
    size_t count;
} unisono_operation;

/* Returns the version of the library. */
const char *unisono_version(void);

/* Returns the text of the last error of this thread. It is valid until the next error of this thread. */
const char *unisono_last_error(void);

/* Returns 1 if the ranks that are left can go on with unisono_comm_shrink after the last error of this thread. This is so if
 * the shrink leaves out the rank that failed, left or is silent. Returns 0 for errors that would come again, such as calls
 * that differ. If a shrink leaves no rank out, it has not removed the cause either. */
int unisono_last_error_is_recoverable(void);

/* Returns the other rank that the last error of this thread is about, such as the rank that failed. Returns UNISONO_ANY_RANK
 * if there is none. */
size_t unisono_last_error_peer(void);

/* Every function that makes one communicator stores NULL if it fails. */

/* Connects to the other ranks, with the settings that unisono run, torchrun, mpirun or srun has put into the environment. */
UNISONO_CHECKED uint32_t unisono_comm_from_env(unisono_comm **comm);

/* Makes the communicators of `size` ranks that are threads of this process. `comms` has room for `size` pointers. If the call
 * fails, `comms` is unchanged. */
UNISONO_CHECKED uint32_t unisono_comm_local(size_t size, unisono_comm **comms);

/* Writes a unique id with its NUL into `bytes` bytes at `id`. 160 bytes are enough. Rank 0 makes the id, with the address of
 * an interface that the other ranks can reach, and sends it to them. Nobody else may be able to read or change the id,
 * because it holds the secret of the ranks. */
UNISONO_CHECKED uint32_t unisono_unique_id(const char *interface_address, char *id, size_t bytes);

/* Connects to the ranks with the same unique id. `settings` is NULL or lines of the form name=value, such as
 * "timeout_ms=5000\ntransport=tcp". These settings take precedence over UNISONO_* variables. */
UNISONO_CHECKED uint32_t unisono_comm_join(const char *id, size_t rank, size_t size, const char *settings, unisono_comm **comm);

/* Makes a communicator of the ranks that give the same color, ordered by key and then by rank. All ranks call it. A rank that
 * gives color -1 gets no communicator but NULL. */
UNISONO_CHECKED uint32_t unisono_comm_split(const unisono_comm *comm, int64_t color, int32_t key, unisono_comm **group);

/* Makes another communicator of the same ranks. Its calls do not wait for calls on this one. All ranks call it. */
UNISONO_CHECKED uint32_t unisono_comm_duplicate(const unisono_comm *comm, unisono_comm **duplicate);

/* Makes a communicator of `count` members, in that order. Only the members call it, with the same list and tag. Groups that
 * are made at the same time need different tags if they share two ranks. */
UNISONO_CHECKED uint32_t unisono_comm_create_group(const unisono_comm *comm, const size_t *members, size_t count, uint32_t tag,
                                   unisono_comm **group);

/* Makes a communicator of these ranks and of `newcomers` new ranks. These ranks keep their numbers, and the new ranks follow
 * them. All ranks call it with the same unique id, which rank 0 has made. Newcomer i joins with that id as rank size + i of
 * size + newcomers. If newcomers do not come, the call fails, and this communicator stays usable. Ranks that are threads
 * cannot use this. */
UNISONO_CHECKED uint32_t unisono_comm_grow(const unisono_comm *comm, const char *id, size_t newcomers, unisono_comm **larger);

/* Makes a communicator of the ranks that are left after an error has ended this one. All ranks that are left call it. */
UNISONO_CHECKED uint32_t unisono_comm_shrink(const unisono_comm *comm, unisono_comm **survivors);

/* Does the same as unisono_comm_shrink. `value` holds a number of this rank, such as its training step, and gets the smallest
 * number of the ranks that are left. Some of these ranks may have completed an operation in which others failed, and all must
 * go on from the same step. Ranks that get the same communicator get the same number. If a rank dies in this call, its number
 * is taken into account either by all of them or by none. Ranks may also call unisono_comm_shrink, which gives no number. If
 * the call fails, `value` is unchanged. */
UNISONO_CHECKED uint32_t unisono_comm_shrink_and_agree(const unisono_comm *comm, uint64_t *value, unisono_comm **survivors);

/* Ends a communicator. No call on it may be under way. Requests stay valid: wait for them and free them. NULL is allowed. */
uint32_t unisono_comm_destroy(unisono_comm *comm);

UNISONO_CHECKED uint32_t unisono_comm_rank(const unisono_comm *comm, size_t *rank);
UNISONO_CHECKED uint32_t unisono_comm_size(const unisono_comm *comm, size_t *size);

/* Ends the operations of a communicator on all ranks. It can be called from any thread. */
uint32_t unisono_comm_abort(const unisono_comm *comm, const char *reason);

/* Stores the code of the error that ended a communicator, or 0 while it is usable. Writes the text of the error into `bytes`
 * bytes at `text`, and cuts it if it is longer. `text` may be NULL. The call never waits. */
UNISONO_CHECKED uint32_t unisono_comm_error(const unisono_comm *comm, uint32_t *code, char *text, size_t bytes);

/* Writes the last operations of this rank as JSON, with a NUL, into `bytes` bytes at `json`. Stores the number of bytes that
 * the text needs in `needed`. If there are too few bytes, the call still stores the number and returns UNISONO_INVALID_USAGE.
 * `needed` may be NULL. The call never waits for operations. */
UNISONO_CHECKED uint32_t unisono_flight_record(const unisono_comm *comm, char *json, size_t bytes, size_t *needed);

/* Reduces the inputs of all ranks, and every rank gets the result. Input and output have one share. After an error, the
 * output is unspecified. */
UNISONO_CHECKED uint32_t unisono_all_reduce(const unisono_comm *comm, const void *input, void *output, size_t count, uint32_t dtype,
                            uint32_t op);
/* Concatenates the inputs of all ranks, by rank. The input has one share, and the output has one share for each rank. After
 * an error, the output is unspecified. */
UNISONO_CHECKED uint32_t unisono_all_gather(const unisono_comm *comm, const void *input, void *output, size_t count, uint32_t dtype);
/* Reduces the inputs of all ranks, and rank i gets share i of the result. The input has one share for each rank, and the
 * output has one share. If the output is this rank's share of the input, that share is overwritten. After an error, the
 * output is unspecified. */
UNISONO_CHECKED uint32_t unisono_reduce_scatter(const unisono_comm *comm, const void *input, void *output, size_t count, uint32_t dtype,
                                uint32_t op);
/* Copies the input of the root to all ranks. Input and output have one share. Ranks other than the root may give NULL as the
 * input. After an error, the output is unspecified. */
UNISONO_CHECKED uint32_t unisono_broadcast(const unisono_comm *comm, const void *input, void *output, size_t count, uint32_t dtype,
                           size_t root);
/* Reduces the inputs of all ranks, and the root gets the result. Input and output have one share. Ranks other than the root
 * may give NULL as the output. After an error, the output is unspecified. */
UNISONO_CHECKED uint32_t unisono_reduce(const unisono_comm *comm, const void *input, void *output, size_t count, uint32_t dtype, uint32_t op,
                        size_t root);
/* Concatenates the inputs of all ranks at the root. The input has one share, and the output of the root has one share for
 * each rank. Other ranks may give NULL as the output. After an error, the output is unspecified. */
UNISONO_CHECKED uint32_t unisono_gather(const unisono_comm *comm, const void *input, void *output, size_t count, uint32_t dtype,
                        size_t root);
/* Copies share i of the root's input to rank i. The input of the root has one share for each rank, and the output has one
 * share. Other ranks may give NULL as the input. After an error, the output is unspecified. */
UNISONO_CHECKED uint32_t unisono_scatter(const unisono_comm *comm, const void *input, void *output, size_t count, uint32_t dtype,
                         size_t root);
/* Copies share i of every rank's input to rank i. The input has one share for each rank, and the output has one share from
 * each rank. After an error, the output is unspecified. */
UNISONO_CHECKED uint32_t unisono_all_to_all(const unisono_comm *comm, const void *input, void *output, size_t count, uint32_t dtype);
/* Reduces the inputs of this rank and of all ranks below it. Input and output have one share. UNISONO_AVG is an error. After
 * an error, the output is unspecified. */
UNISONO_CHECKED uint32_t unisono_scan(const unisono_comm *comm, const void *input, void *output, size_t count, uint32_t dtype, uint32_t op);
/* Reduces the inputs of all ranks below this one. Input and output have one share. The output of rank 0 stays as it is. After
 * an error, the output is unspecified. */
UNISONO_CHECKED uint32_t unisono_exscan(const unisono_comm *comm, const void *input, void *output, size_t count, uint32_t dtype,
                        uint32_t op);
/* Waits until all ranks have called it. */
UNISONO_CHECKED uint32_t unisono_barrier(const unisono_comm *comm);
/* Waits until all ranks have called it, or returns UNISONO_BARRIER_TIMEOUT after `timeout_ms` milliseconds. The text of this
 * error names the ranks that did not come. */
UNISONO_CHECKED uint32_t unisono_barrier_timeout(const unisono_comm *comm, uint64_t timeout_ms);
/* Runs the collective that `operation` describes. After an error, the output is unspecified. */
UNISONO_CHECKED uint32_t unisono_run_operation(const unisono_comm *comm, const unisono_operation *operation, const void *input, void *output);

/* The following collectives have shares of different lengths. `counts` has a number of elements for each rank. Input and
 * output must not overlap. */

/* Concatenates the inputs of all ranks, by rank. Rank i gives counts[i] elements, and the output holds the sum of all counts.
 * All ranks give the same counts. After an error, the output is unspecified. */
UNISONO_CHECKED uint32_t unisono_all_gather_v(const unisono_comm *comm, const void *input, void *output, const size_t *counts, uint32_t dtype);
/* Reduces the inputs of all ranks, and rank i gets its part of counts[i] elements. The input holds the sum of all counts. All
 * ranks give the same counts. After an error, the output is unspecified. */
UNISONO_CHECKED uint32_t unisono_reduce_scatter_v(const unisono_comm *comm, const void *input, void *output, const size_t *counts,
                                  uint32_t dtype, uint32_t op);
/* Sends send_counts[i] elements to rank i, and receives recv_counts[i] elements from rank i. After an error, the output is
 * unspecified. */
UNISONO_CHECKED uint32_t unisono_all_to_all_v(const unisono_comm *comm, const void *input, const size_t *send_counts, void *output,
                              const size_t *recv_counts, uint32_t dtype);
/* Concatenates the inputs of all ranks at the root. Each rank gives `count` elements, and the output of the root holds the
 * sum of all counts. Other ranks may give NULL as the output and the counts. After an error, the output is unspecified. */
UNISONO_CHECKED uint32_t unisono_gather_v(const unisono_comm *comm, const void *input, size_t count, void *output, const size_t *counts,
                          uint32_t dtype, size_t root);
/* Copies the next counts[i] elements of the root's input to rank i, whose output has `count` elements. Other ranks may give
 * NULL as the input and the counts. After an error, the output is unspecified. */
UNISONO_CHECKED uint32_t unisono_scatter_v(const unisono_comm *comm, const void *input, const size_t *counts, void *output, size_t count,
                           uint32_t dtype, size_t root);

/* The following functions send and receive. Sends and receives between two ranks keep their order, so they have no tag. If
 * the two ranks do not give the same number of elements of the same type, both get an error. These calls and the
 * collectives run one after the other, in the order in which they were made. */

/* Sends `count` elements, and returns when the transport has taken the data. Two ranks that both send first may wait for each
 * other. */
UNISONO_CHECKED uint32_t unisono_send(const unisono_comm *comm, const void *input, size_t count, uint32_t dtype, size_t to);
/* Receives `count` elements. After an error, the output is unspecified. */
UNISONO_CHECKED uint32_t unisono_recv(const unisono_comm *comm, void *output, size_t count, uint32_t dtype, size_t from);
/* Sends and receives concurrently. After an error, the output is unspecified. */
UNISONO_CHECKED uint32_t unisono_send_recv(const unisono_comm *comm, const void *input, size_t input_count, size_t to, void *output,
                           size_t output_count, size_t from, uint32_t dtype);
/* Runs `count` sends and receives concurrently, so no order among them can deadlock. The buffer of a receive must not overlap
 * another buffer. A rank may send to itself if the same group also has the receive. After an error, buffers of receives are
 * unspecified. */
UNISONO_CHECKED uint32_t unisono_group(const unisono_comm *comm, const unisono_group_entry *entries, size_t count);

/* Messages have tags and lengths in bytes. They progress in the background, at the same time as collectives and other
 * messages, and need no common order among ranks. Two messages to one rank under the same tag arrive in the order sent. Tags
 * are below 2^63. If a message is longer than the buffer that receives it, that is an error. unisono_isend and unisono_irecv
 * start messages, and unisono_wait waits for them. */

/* If a message has arrived that no receive has taken, stores 1 in `found` and the message in `info`. Otherwise stores 0 in
 * `found`. `info` may be NULL. The length of the message is the one that the sender has announced. Compare it with the length
 * that you expect before you allocate memory for the message. */
UNISONO_CHECKED uint32_t unisono_probe(const unisono_comm *comm, size_t from, uint64_t tag, int *found, unisono_message_info *info);

/* Every function that starts an operation stores a request, or NULL if it fails. Buffers must stay valid until the request is
 * done, and nobody else may access them. A request can be used from any thread. */

/* Starts to send `bytes` bytes. The request is done when the buffer may be written again, which need not mean that the message
 * was received. */
UNISONO_CHECKED uint32_t unisono_isend(const unisono_comm *comm, const void *buffer, size_t bytes, size_t to, uint64_t tag,
                       unisono_request **request);
/* Starts to receive at most `bytes` bytes. After an error, the buffer is unspecified. */
UNISONO_CHECKED uint32_t unisono_irecv(const unisono_comm *comm, void *buffer, size_t bytes, size_t from, uint64_t tag,
                       unisono_request **request);
/* Starts a collective that unisono_run_operation would run. Started collectives and all others run one after the other, in the
 * order in which they were made. After an error, the output is unspecified. */
UNISONO_CHECKED uint32_t unisono_start_operation(const unisono_comm *comm, const unisono_operation *operation, const void *input, void *output,
                       unisono_request **request);

/* Waits for a request, for at most `timeout_ms` milliseconds unless it is negative. Returns the code of the operation's
 * result, or UNISONO_NOT_DONE. It can be called again. */
UNISONO_CHECKED uint32_t unisono_wait(const unisono_request *request, int64_t timeout_ms);
/* Stores 1 if the request is done, or else 0. The call never waits. */
UNISONO_CHECKED uint32_t unisono_test(const unisono_request *request, int *done);
/* Stores the message of a receive that is done. */
UNISONO_CHECKED uint32_t unisono_request_info(const unisono_request *request, unisono_message_info *info);
/* Calls `function` once with the code of the result and `data` when the request is done. If the request is done already, the
 * call happens at once. Otherwise it happens on a thread of the library, or on a thread that waits for an operation.
 * `function` may start operations and free the request. It must not wait for operations or destroy a communicator. */
UNISONO_CHECKED uint32_t unisono_request_on_complete(const unisono_request *request, void (*function)(uint32_t code, void *data), void *data);
/* Frees a request that is done. If the operation failed, returns the code of the failure, unless unisono_wait,
 * unisono_request_info or a function of unisono_request_on_complete has reported it before. Otherwise returns 0. The request
 * is freed in both cases. If the operation is under way, the call returns UNISONO_NOT_DONE and frees nothing. No other call
 * on the request may be under way. NULL is allowed. */
UNISONO_CHECKED uint32_t unisono_request_free(unisono_request *request);

#ifdef __cplusplus
}
#endif

#endif
