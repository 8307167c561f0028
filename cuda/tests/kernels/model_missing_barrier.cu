// The matrix product with a bug planted: of its two barriers the second is missing, so that the next step is fetched
// while others still add the last one.
#include "target.cuh"

#undef __syncthreads
#define __syncthreads() ((void)(__COUNTER__ % 2 == 0 && emulator::sync_threads(true, __FILE__, __LINE__)))

#include "model_matmul.cu"
