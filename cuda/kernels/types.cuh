// The element types, one row each: bytes in memory, the type that a reduction accumulates in, and how
// the bits of an element become such a value and a value, rounded once, an element.
#pragma once

#include "machine.cuh"
#include "small.cuh"

template <class V>
struct Integer {
    static constexpr u32 BYTES = sizeof(V);
    using Value = V;
    static DEVICE V value(u64 bits) { return V(bits); }
    static DEVICE u64 bits(V value) { return u64(value); }
};

struct Int8 : Integer<i8> {};
struct UInt8 : Integer<u8> {};
struct Int32 : Integer<i32> {};
struct UInt32 : Integer<u32> {};
struct Int64 : Integer<i64> {};
struct UInt64 : Integer<u64> {};

struct Float64 {
    static constexpr u32 BYTES = 8;
    using Value = double;
    static DEVICE double value(u64 bits) { return double_of(bits); }
    static DEVICE u64 bits(double value) { return bits_of(value); }
};

struct Float32 {
    static constexpr u32 BYTES = 4;
    using Value = float;
    static DEVICE float value(u64 bits) { return float_of(u32(bits)); }
    static DEVICE u64 bits(float value) { return bits_of(value); }
};

struct Float16 {
    static constexpr u32 BYTES = 2;
    using Value = float;
    static DEVICE float value(u64 bits) { return half_value(u32(bits)); }
    static DEVICE u64 bits(float value) { return half_bits(value); }
};

struct BFloat16 {
    static constexpr u32 BYTES = 2;
    using Value = float;
    static DEVICE float value(u64 bits) { return bfloat16_value(u32(bits)); }
    static DEVICE u64 bits(float value) { return bfloat16_bits(value); }
};

// By way of f16, which has all of its numbers, 2^8 times as small, but not its only NaN.
struct Float8E4M3 {
    static constexpr u32 BYTES = 1;
    using Value = float;
    static DEVICE float value(u64 bits) {
        u32 code = u32(bits), magnitude = code & 0x7f;
        float value = half_value((code & 0x80) << 8 | magnitude << 7) * 256.0f;
        return magnitude == 0x7f ? float_of(0x7fc00000) : value;
    }
    static DEVICE u64 bits(float value) { return narrow<E4M3>(value); }
};

// An f16 with a shorter mantissa.
struct Float8E5M2 {
    static constexpr u32 BYTES = 1;
    using Value = float;
    static DEVICE float value(u64 bits) { return half_value(u32(bits) << 8); }
    static DEVICE u64 bits(float value) { return narrow<E5M2>(value); }
};
