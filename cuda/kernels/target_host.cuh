// `target.cuh` for the emulator: the compiler's builtins, and the emulator's threads and clock.
// Data is accessed by plain loads and stores, so that a race detector finds accesses without order.
#pragma once

#include <device.hpp>
#include <string.h>

#define DEVICE inline
#define OFFSET_OF(Struct, field) __builtin_offsetof(Struct, field)

// A launch finds the kernel by its name, and knows the struct as bytes.
#define UNISONO_KERNEL(name, Arguments)                                                      \
    static void name(const Arguments& args);                                                 \
    static emulator::Kernel name##_kernel(#name, sizeof(Arguments), [](const void* args) {   \
        name(*(const Arguments*)args);                                                       \
    });                                                                                      \
    static void name(const Arguments& args)

template <class To, class From>
DEVICE To same_bits(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

DEVICE u32 bits_of(float value) { return same_bits<u32>(value); }
DEVICE u64 bits_of(double value) { return same_bits<u64>(value); }
DEVICE float float_of(u32 bits) { return same_bits<float>(bits); }
DEVICE double double_of(u64 bits) { return same_bits<double>(bits); }

// Needs the above.
#include "narrow_float.cuh"

DEVICE u32 half_bits(float value) { return narrow<Half>(value); }
DEVICE float half_value(u32 bits) { return widen<Half>(bits); }
DEVICE float bfloat16_value(u32 bits) { return float_of(bits << 16); }

DEVICE u32 bfloat16_bits(float value) {
    u32 bits = bits_of(value);
    return value != value ? 0x7fc0 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

// A GPU cannot access a value at an address that is no multiple of its size.
template <class T>
DEVICE const T* aligned(const void* at) {
    if ((unsigned long)at % sizeof(T) != 0) {
        emulator::misaligned(at, sizeof(T));
    }
    return (const T*)at;
}

template <class T>
DEVICE void load_data(T& value, const void* from) {
    value = *aligned<T>(from);
}

template <class T>
DEVICE void store_data(void* to, const T& value) {
    *(T*)aligned<T>(to) = value;
}

template <class T>
DEVICE T load_relaxed(const T* from) {
    return __atomic_load_n(aligned<T>(from), __ATOMIC_RELAXED);
}

template <class T>
DEVICE void store_relaxed(T* to, T value) {
    __atomic_store_n((T*)aligned<T>(to), value, __ATOMIC_RELAXED);
}

DEVICE void load_pair(u64& low, u64& high, const void* from) {
    aligned<Words>(from);
    low = load_relaxed((const u64*)from);
    high = load_relaxed((const u64*)from + 1);
}

DEVICE void store_pair(void* to, u64 low, u64 high) {
    aligned<Words>(to);
    store_relaxed((u64*)to, low);
    store_relaxed((u64*)to + 1, high);
}

#define UNISONO_LL128
using U128 = unsigned __int128;

#ifdef __SANITIZE_THREAD__
// ThreadSanitizer has 16-byte accesses of its own, which take the place of these.
DEVICE U128 whole_at(const U128* from) { return load_relaxed(from); }
DEVICE void put_whole(U128* to, U128 value) { store_relaxed(to, value); }
#else
// The builtins would be calls of libatomic, which is not installed everywhere. Processors without
// AVX do not promise that plain 16-byte accesses are single. A locked compare-and-swap is single
// everywhere: a load puts back the value it finds.
#ifdef __x86_64__
__attribute__((target("cx16")))
#endif
DEVICE U128 swap_whole(U128* at, U128 expected, U128 value) {
    return __sync_val_compare_and_swap(at, expected, value);
}

DEVICE U128 whole_at(const U128* from) { return swap_whole((U128*)from, 0, 0); }

DEVICE void put_whole(U128* to, U128 value) {
    U128 seen = 0, before;
    while ((before = swap_whole(to, seen, value)) != seen) {
        seen = before;
    }
}
#endif

DEVICE void load_128(Words& value, const void* from) { value = same_bits<Words>(whole_at(aligned<U128>(from))); }
DEVICE void store_128(void* to, const Words& value) { put_whole((U128*)aligned<U128>(to), same_bits<U128>(value)); }

template <class T>
DEVICE T load_acquire(const T* from) {
    return __atomic_load_n(aligned<T>(from), __ATOMIC_ACQUIRE);
}

template <class T>
DEVICE void store_release(T* to, T value) {
    __atomic_store_n((T*)aligned<T>(to), value, __ATOMIC_RELEASE);
    emulator::published();
}

DEVICE void fence() { __atomic_thread_fence(__ATOMIC_ACQ_REL); }

DEVICE u32 add_acq_rel(u32* counter, u32 more) {
    return __atomic_fetch_add(counter, more, __ATOMIC_ACQ_REL);
}

DEVICE bool claim(u32* flag, u32 value) {
    u32 unclaimed = 0;
    return __atomic_compare_exchange_n(flag, &unclaimed, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

DEVICE float square_root(float value) { return __builtin_sqrtf(value); }
DEVICE double square_root(double value) { return __builtin_sqrt(value); }
DEVICE float fused(float one, float other, float more) { return __builtin_fmaf(one, other, more); }

DEVICE u64 now_ns() { return emulator::now_ns(); }
DEVICE void relax() { emulator::relax(); }
