// The exchange with a bug planted: counters are raised without an order.
#include "target.cuh"

#define store_release store_relaxed

#include "exchange.cu"
