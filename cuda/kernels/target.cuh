// The one place where the two compilers differ. NVRTC makes PTX of the kernels by `target_ptx.cuh`.
// g++ makes code for the CPU by `target_host.cuh`, which the emulator runs. Both headers define the
// same:
//
// UNISONO_KERNEL(name, Arguments)  head of a kernel of one argument struct, named `args`
// DEVICE                           marks a function of the device
// bits_of, float_of, double_of     the bits of a number, and back
// half_bits, half_value            conversions that the hardware has, to nearest, ties to even;
// bfloat16_bits, bfloat16_value    a NaN stays a NaN, of unspecified bits
// load_data, store_data            1, 2, 4, 8 or 16 bytes shared with other ranks; no order
// load_pair, store_pair            two words shared with other ranks, each one access; no order
// load_128, store_128              16 bytes shared with other ranks, one access; no order. Only with
//                                  `UNISONO_LL128`
// load_relaxed, store_relaxed      a counter or flag: one access, system scope; no order
// load_acquire                     acquires: writes before the release that it reads are visible
// store_release                    releases: writes this thread knows are before it
// fence                            orders accesses before it and after it, in system scope
// claim                            sets 0 to `value` for one thread alone, which gets true
// square_root, fused               rounded once: the root of x, and x * y + z
// now_ns                           a clock that all threads of a device share
// relax                            called between polls
#pragma once

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i8 = signed char;
using i32 = int;
using i64 = long long;

// Bytes that a thread moves at once.
struct alignas(16) Words {
    u32 words[4];
};

#ifdef __CUDACC__
#include "target_ptx.cuh"
#else
#include "target_host.cuh"
#endif
