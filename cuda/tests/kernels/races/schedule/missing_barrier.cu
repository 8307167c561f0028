// Schedules with a bug planted: data is handed over while others still move it.
#include "machine.cuh"

// The barriers behind the data vote on `moved`.
#undef __syncthreads_and
#define __syncthreads_and(vote) (#vote[0] == 'm' ? (vote) : software::sync_threads(vote, __FILE__, __LINE__))

#include "right.cu"
