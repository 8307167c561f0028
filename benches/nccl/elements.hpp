// Element types, and inputs whose sums are exact in each of them.
#pragma once

#include "libraries.hpp"
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <stdint.h>
#include <string.h>
#include <vector>

namespace bench {

struct Type {
    const char* name;
    ncclDataType_t type;
    size_t size;
    // Writes a small number as an element.
    void (*store)(void* element, int value);
};

template <typename T> void store(void* element, int value) {
    T converted(static_cast<float>(value));
    memcpy(element, &converted, sizeof converted);
}

inline void store_int(void* element, int value) {
    int32_t converted = value;
    memcpy(element, &converted, sizeof converted);
}

const Type TYPES[] = {
    {"float", ncclFloat32, 4, store<float>},
    {"double", ncclFloat64, 8, store<double>},
    {"half", ncclFloat16, 2, store<__half>},
    {"bfloat16", ncclBfloat16, 2, store<__nv_bfloat16>},
    {"fp8_e4m3", ncclFloat8e4m3, 1, store<__nv_fp8_e4m3>},
    {"fp8_e5m2", ncclFloat8e5m2, 1, store<__nv_fp8_e5m2>},
    {"int32", ncclInt32, 4, store_int},
};

// Elements after which inputs repeat: a prime, so that a misplaced share, slice or line shows.
constexpr size_t PERIOD = 4093;

// The input of a rank: 0 or 1. Their sums over at most 8 ranks are exact in 8 bits as well.
inline int input(int rank, size_t index) {
    uint32_t mixed = uint32_t(index % PERIOD) * 2654435761u + uint32_t(rank) * 40503u;
    return int((mixed ^ (mixed >> 15)) >> 7 & 1);
}

// The elements from `first` on for which `value` is asked, as bytes.
template <typename Value> std::vector<char> elements(const Type& type, size_t first, size_t count, Value value) {
    std::vector<char> bytes(count * type.size);
    for (size_t index = 0; index < count; index++) {
        type.store(&bytes[index * type.size], value(first + index));
    }
    return bytes;
}

} // namespace bench
