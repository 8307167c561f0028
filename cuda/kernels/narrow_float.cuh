// Conversion between f32 and floats of 8 and 16 bits by integer arithmetic, where the hardware has
// no conversion or other results. Values that are too large become infinity, or NaN in formats
// without it. The arithmetic is the host's (`reducers/src/host/narrow_float.rs`).
#pragma once

// A small float: total bits, mantissa bits, exponent bias, the code of values that are too large,
// and the code of NaN, both without sign.
template <u32 Bits, u32 Mantissa, u32 Bias, u32 Overflow, u32 Nan>
struct Format {
    static constexpr u32 BITS = Bits;
    static constexpr u32 MANTISSA = Mantissa;
    static constexpr u32 BIAS = Bias;
    static constexpr u32 OVERFLOW_CODE = Overflow;
    static constexpr u32 NAN_CODE = Nan;
    static constexpr u32 SIGN = 1u << (Bits - 1);
    // Distance of the mantissa from its position in f32.
    static constexpr u32 SHIFT = 23 - Mantissa;
    // The smallest normal number, as bits of an f32.
    static constexpr u32 SMALLEST_NORMAL = (128 - Bias) << 23;
};

using Half = Format<16, 10, 15, 0x7c00, 0x7e00>;
using E4M3 = Format<8, 3, 7, 0x7f, 0x7f>;
using E5M2 = Format<8, 2, 15, 0x7c, 0x7e>;

// The value of `code`, exactly.
template <class F>
DEVICE float widen(u32 code) {
    u32 magnitude = code & (F::SIGN - 1);
    u32 sign = (code & F::SIGN) << (32 - F::BITS);
    u32 aligned = magnitude << F::SHIFT;
    // A subnormal is a mantissa without its leading one: add one, then subtract it.
    constexpr u32 one = F::SMALLEST_NORMAL;
    u32 subnormal = bits_of(float_of(aligned | one) - float_of(one));
    u32 normal = aligned + ((127 - F::BIAS) << 23);
    u32 bits = magnitude < 1u << F::MANTISSA ? subnormal : normal;
    bits = magnitude >= F::OVERFLOW_CODE ? aligned | 0x7f800000 : bits;
    return float_of(bits | sign);
}

// `bits` without the last `shift`, rounded to nearest, ties to even.
DEVICE u32 round_off(u32 bits, u32 shift) {
    u32 just_below_half = (1u << (shift - 1)) - 1;
    return (bits + just_below_half + ((bits >> shift) & 1)) >> shift;
}

// The code nearest to `value`, ties to even.
template <class F>
DEVICE u32 narrow(float value) {
    u32 bits = bits_of(value);
    u32 magnitude = bits & 0x7fffffff;
    u32 sign = (bits >> (32 - F::BITS)) & F::SIGN;
    u32 normal = round_off(magnitude, F::SHIFT) - ((127 - F::BIAS) << F::MANTISSA);
    normal = normal < F::OVERFLOW_CODE ? normal : F::OVERFLOW_CODE;
    // Adding a number whose last bit weighs as much as the smallest subnormal rounds the value to a
    // multiple of that.
    constexpr u32 anchor = F::SMALLEST_NORMAL + (F::SHIFT << 23);
    u32 subnormal = bits_of(float_of(magnitude) + float_of(anchor)) - anchor;
    u32 code = magnitude < F::SMALLEST_NORMAL ? subnormal : normal;
    code = magnitude > 0x7f800000 ? F::NAN_CODE : code;
    return code | sign;
}
