// One rank's part in a collective: its program, carried out over FIFOs and windows.
#include "interpret.cuh"
#include "types.cuh"

#define KERNEL(type, E)                           \
    UNISONO_KERNEL(schedule_##type, Interpret) {  \
        __shared__ Desk desk;                     \
        interpret<E>(args, desk);                 \
    }

#include "each_type.cuh"
