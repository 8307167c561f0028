// An all_reduce of little data in one trip: every rank stores what it has, as lines, into the mailboxes of all, and reduces
// what lies in its own, in the order of the ranks.
#include "one_shot.cuh"
#include "types.cuh"

#define KERNEL(type, E) \
    UNISONO_KERNEL(one_shot_##type, OneShotArgs) { one_shot<E>(args); }

#include "dtypes.cuh"
