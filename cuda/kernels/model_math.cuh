// Functions of one number, by the arithmetic of the trainer's vector.rs: the same bits on the CPU,
// in the emulator and on a GPU.
#pragma once

#include "target.cuh"

// Relative error below 1.3e-7, from 1.2e-38 to 2.4e38 and no further (Moshier, Cephes, `expf`).
DEVICE float fast_exp(float x) {
    // Added to a number, it leaves the nearest integer in the low bits.
    constexpr float ANCHOR = 12582912.0f;
    x = x < -87.33f ? -87.33f : x > 88.37f ? 88.37f : x;
    float anchored = x * 1.44269504088896341f + ANCHOR;
    float n = anchored - ANCHOR;
    float r = x - n * 0.6933594f + n * 2.1219444e-4f;
    float fifth = 0.0013982f + r * 1.9875691e-4f;
    float tail = 0.5f + r * (0.16666666f + r * (0.041665796f + r * (0.008333452f + r * fifth)));
    float power = 1.0f + (r + r * r * tail);
    u32 exponent = (bits_of(anchored) - bits_of(ANCHOR) + 127) << 23;
    return power * float_of(exponent);
}

// For positive normal numbers. Relative error below 2e-7 (Moshier, Cephes, `logf`).
DEVICE float fast_log(float x) {
    u32 bits = bits_of(x);
    float n = float(i32(bits >> 23) - 126);
    float half = float_of((bits & 0x7fffff) | 0x3f000000);
    bool low = half < 0.707106781186547524f;
    n = low ? n - 1.0f : n;
    float r = low ? half + half - 1.0f : half - 1.0f;
    constexpr float COEFFICIENTS[] = {-0.1151461031f, 0.11676998740f, -0.12420140846f, 0.14249322787f,
                                      -0.16668057665f, 0.20000714765f, -0.24999993993f, 0.33333331174f};
    float power = 0.070376836292f;
#pragma unroll
    for (float coefficient : COEFFICIENTS) {
        power = power * r + coefficient;
    }
    float square = r * r;
    float tail = r * square * power - n * 2.12194440e-4f - 0.5f * square;
    return r + tail + n * 0.693359375f;
}

DEVICE float sigmoid(float x) { return 1.0f / (1.0f + fast_exp(-x)); }

template <u32 COUNT>
DEVICE float polynomial(const float (&coefficients)[COUNT], float x) {
    float value = coefficients[0];
#pragma unroll
    for (u32 index = 1; index < COUNT; index++) {
        value = value * x + coefficients[index];
    }
    return value;
}

// Within 5e-7 (Eigen, `generic_fast_erf_float`).
DEVICE float fast_erf(float x) {
    constexpr float OVER[] = {-2.7261423e-10f, 2.7706814e-8f, -2.101024e-6f, -5.6925064e-5f,
                              -7.349906e-4f,   -2.9546e-3f,   -1.6096033e-2f};
    constexpr float UNDER[] = {-1.4566072e-5f, -2.1337406e-4f, -1.682827e-3f, -7.3733292e-3f, -1.426474e-2f};
    x = x < -4.0f ? -4.0f : x > 4.0f ? 4.0f : x;
    float square = x * x;
    return x * polynomial(OVER, square) / polynomial(UNDER, square);
}
