// Reduces n sources to m destinations in one pass: a copy if there is one source, else a reduction.
// Every destination gets the result.
#include "arguments.cuh"
#include "reduce.cuh"
#include "types.cuh"

#define ENTRY(type, op, E, O) \
    UNISONO_KERNEL(reduce_copy_##type##_##op, ReduceCopy) { reduce<E, O>(args, {blockIdx.x, gridDim.x}); }

// The kernels of one element type, by the names of the host's tables.
#define KERNEL(type, E)            \
    ENTRY(type, sum, E, Sum)     \
    ENTRY(type, prod, E, Prod)   \
    ENTRY(type, min, E, Min)     \
    ENTRY(type, max, E, Max)     \
    ENTRY(type, avg, E, Avg)     \
    ENTRY(type, mulsum, E, PreMulSum)

#include "dtypes.cuh"
