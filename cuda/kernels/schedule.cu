// One rank's part of a collective: executes its program over FIFOs and windows.
#include "interpret.cuh"
#include "types.cuh"

#define KERNEL(type, E)                           \
    UNISONO_KERNEL(schedule_##type, ScheduleArgs) {  \
        __shared__ WorkDesc work;                     \
        __shared__ MessageState message;               \
        interpret<E>(args, work, message);        \
        count_completed(args.completion);         \
    }

#include "dtypes.cuh"
