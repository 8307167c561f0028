// The kernels of a file for each element type, defined by `KERNEL(type, E)`. Names are the host's.
// `compile` makes a module for each type, because programs use few of them.
#ifdef ONLY
#define KERNEL_OF(...) KERNEL(__VA_ARGS__)
KERNEL_OF(ONLY)
#else
KERNEL(int8, Int8)
KERNEL(uint8, UInt8)
KERNEL(int32, Int32)
KERNEL(uint32, UInt32)
KERNEL(int64, Int64)
KERNEL(uint64, UInt64)
KERNEL(half, Float16)
KERNEL(bfloat16, BFloat16)
KERNEL(float, Float32)
KERNEL(double, Float64)
KERNEL(fp8_e4m3, Float8E4M3)
KERNEL(fp8_e5m2, Float8E5M2)
#endif
#undef KERNEL
