// The one place where the two compilers differ. NVRTC makes PTX of the kernels, by `target_ptx.cuh`; g++ makes
// code for the CPU of them, by `target_host.cuh`, which the software device runs. Both headers define the same:
//
//   UNISONO_KERNEL(name, Arguments)  head of a kernel of one argument struct, named `args`
//   DEVICE                           marks a function of the device
//   bits_of, float_of, double_of     the bits of a number, and back
//   half_bits, half_value            conversions that the hardware has, to nearest, ties to even;
//   bfloat16_bits, bfloat16_value    a NaN stays a NaN, of no matter which bits
//   load_data, store_data            1, 2, 4, 8 or 16 bytes that other ranks write or read; no order
//   load_pair, store_pair            two words that other ranks write or read, each of them whole; no order
//   load_128, store_128          sixteen bytes that other ranks write or read, whole; no order. Only with `UNISONO_LL128`
//   load_relaxed, store_relaxed      a counter or flag, whole, visible to the whole system; no order
//   load_acquire                     what was written before the release that it reads is seen after it
//   store_release                    what this thread knows is written before it
//   fence                            what is before it comes before what is after it, for the whole system
//   claim                            0 becomes `value` for one thread alone, which gets true
//   square_root, fused               rounded once: the root, and the first times the second plus the third
//   now_ns                           a clock that all threads of a device share
//   relax                            called by whoever polls
#pragma once

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i8 = signed char;
using i32 = int;
using i64 = long long;

// What a thread moves at once.
struct alignas(16) Words {
    u32 words[4];
};

#ifdef __CUDACC__
#include "target_ptx.cuh"
#else
#include "target_host.cuh"
#endif
