// The functions of cuBLAS that we call, by their names there: matrix products in streams.
#include "driver.hpp"

using emulator::Stream;

namespace {

// Numbers of `cublasStatus_t`.
enum Status : int { SUCCESS = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 7 };

struct Handle {
    Stream* stream = nullptr;
};

// A matrix, column after column, or its transpose.
struct Factor {
    const float* data;
    bool transposed;
    int64_t leading;

    float at(int64_t row, int64_t column) const {
        return transposed ? data[row * leading + column] : data[column * leading + row];
    }
};

} // namespace

extern "C" {

int cublasCreate_v2(Handle** handle) { return *handle = new Handle, SUCCESS; }

int cublasDestroy_v2(Handle* handle) { return delete handle, SUCCESS; }

int cublasSetStream_v2(Handle* handle, Stream* stream) {
    return handle ? handle->stream = stream, SUCCESS : NOT_INITIALIZED;
}

int cublasSgemm_v2(Handle* handle, int one_operation, int other_operation, int rows, int columns, int inner,
                   const float* alpha, const float* one, int one_leading, const float* other, int other_leading,
                   const float* beta, float* into, int into_leading) {
    int one_rows = one_operation == 0 ? rows : inner, other_rows = other_operation == 0 ? inner : columns;
    bool fits = rows >= 0 && columns >= 0 && inner >= 0 && into_leading >= rows && one_leading >= one_rows &&
                other_leading >= other_rows;
    if (!handle || !fits) {
        return handle ? INVALID_VALUE : NOT_INITIALIZED;
    }
    Factor left = {one, one_operation != 0, one_leading}, right = {other, other_operation != 0, other_leading};
    float factor = *alpha, kept = *beta;
    return emulator::enqueue(handle->stream, [=] {
        for (int64_t column = 0; column < columns; column++) {
            for (int64_t row = 0; row < rows; row++) {
                float sum = 0.0f;
                for (int64_t at = 0; at < inner; at++) {
                    sum += left.at(row, at) * right.at(at, column);
                }
                float& to = into[column * into_leading + row];
                to = factor * sum + (kept == 0.0f ? 0.0f : kept * to);
            }
        }
        return int(SUCCESS);
    });
}

} // extern "C"
