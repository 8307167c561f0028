// The element types, one row each. A row has an unsigned integer of the element's size, the type
// that a reduction accumulates in, and the conversions between an element's bits and a value,
// rounded once.
#pragma once

#include "target.cuh"
#include "narrow_float.cuh"

template <class B, class V>
struct Element {
    using Bits = B;
    using Value = V;
    static constexpr u32 BYTES = sizeof(B);
    // Averages of types with a narrow range are scaled.
    static DEVICE V scaled_average(V value, float) { return value; }
};

// A float whose range is much narrower than that of float32, in which it accumulates.
template <class B, u32 MAX>
struct NarrowRange : Element<B, float> {
    // The values were divided by the number of all of them, or more, so that only rounding leaves the range.
    static DEVICE float scaled_average(float value, float divisor) {
        float result = value / divisor, most = float(MAX), endless = float_of(0x7f800000);
        bool above = result > most && result < endless, below = result < -most && result > -endless;
        return above ? most : below ? -most : result;
    }
};

template <class B, class V>
struct Integer : Element<B, V> {
    static DEVICE V value(u64 bits) { return V(bits); }
    static DEVICE u64 bits(V value) { return u64(value); }
};

struct Int8 : Integer<u8, i8> {};
struct UInt8 : Integer<u8, u8> {};
struct Int32 : Integer<u32, i32> {};
struct UInt32 : Integer<u32, u32> {};
struct Int64 : Integer<u64, i64> {};
struct UInt64 : Integer<u64, u64> {};

struct Float64 : Element<u64, double> {
    static DEVICE double value(u64 bits) { return double_of(bits); }
    static DEVICE u64 bits(double value) { return bits_of(value); }
};

struct Float32 : Element<u32, float> {
    static DEVICE float value(u64 bits) { return float_of(u32(bits)); }
    static DEVICE u64 bits(float value) { return bits_of(value); }
};

struct Float16 : NarrowRange<u16, 65504> {
    static DEVICE float value(u64 bits) { return half_value(u32(bits)); }
    static DEVICE u64 bits(float value) { return half_bits(value); }
};

struct BFloat16 : Element<u16, float> {
    static DEVICE float value(u64 bits) { return bfloat16_value(u32(bits)); }
    static DEVICE u64 bits(float value) { return bfloat16_bits(value); }
};

// Converts through f16, which has all of its numbers, 2^8 times as small, but not its only NaN.
struct Float8E4M3 : NarrowRange<u8, 448> {
    static DEVICE float value(u64 bits) {
        u32 code = u32(bits), magnitude = code & 0x7f;
        float value = half_value((code & 0x80) << 8 | magnitude << 7) * 256.0f;
        return magnitude == 0x7f ? float_of(0x7fc00000) : value;
    }
    static DEVICE u64 bits(float value) { return narrow<E4M3>(value); }
};

// An f16 with a shorter mantissa.
struct Float8E5M2 : NarrowRange<u8, 57344> {
    static DEVICE float value(u64 bits) { return half_value(u32(bits) << 8); }
    static DEVICE u64 bits(float value) { return narrow<E5M2>(value); }
};
