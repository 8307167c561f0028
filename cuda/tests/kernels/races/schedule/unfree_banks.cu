// Schedules with a bug planted: nobody waits for a bank of its window to be free.
#include "windows.cuh"

#define enter_bank(stage) __syncthreads_and(true)

#include "right.cu"
