// An all_reduce of little data in one trip. Every rank stores its data, as LL lines, into the
// mailboxes of all ranks. Then it reduces its own mailbox in rank order.
#include "one_shot.cuh"
#include "types.cuh"

#define KERNEL(type, E) \
    UNISONO_KERNEL(one_shot_##type, OneShotArgs) { \
        one_shot<E>(args);                         \
        count_completed(args.completion);          \
    }

#include "dtypes.cuh"
