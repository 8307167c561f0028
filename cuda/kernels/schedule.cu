// One rank's part in a collective: its program, carried out over FIFOs and windows.
#include "interpret.cuh"
#include "types.cuh"

#define KERNEL(type, E)                           \
    UNISONO_KERNEL(schedule_##type, Interpret) {  \
        __shared__ Desk desk;                     \
        __shared__ Message message;               \
        interpret<E>(args, desk, message);        \
    }

#include "each_type.cuh"
