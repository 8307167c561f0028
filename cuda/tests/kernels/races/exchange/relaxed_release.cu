// The exchange with a bug planted: counters are raised without an order.
#include "machine.cuh"

#define store_release store_relaxed

#include "exchange.cu"
