// The matrix product with a planted bug. The second of its two barriers is missing, so that the
// next step is loaded while other threads still add the last one.
#include "target.cuh"

#undef __syncthreads
#define __syncthreads() ((void)(__COUNTER__ % 2 == 0 && emulator::sync_threads(true, __FILE__, __LINE__)))

#include "model_matmul.cu"
