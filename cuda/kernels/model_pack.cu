// Arrays of any strides to contiguous memory and back: `reducers/src/host/strided.rs`.
#include "model_arguments.cuh"
#include "model_lanes.cuh"

// Returns the position in the array of the element with this index in contiguous memory.
DEVICE u64 place(const Strided& args, u64 index) {
    u64 place = 0;
#pragma unroll 1
    for (u32 dimension = args.dimensions; dimension > 0; dimension--) {
        u64 extent = args.extents[dimension - 1];
        place += index % extent * args.strides[dimension - 1];
        index /= extent;
    }
    return place;
}

template <class T>
DEVICE void pack(const Strided& args) {
#pragma unroll 1
    for (u64 at = first_thread(); at < args.count; at += all_threads()) {
        ((T*)args.dense)[at] = ((const T*)args.array)[place(args, at)];
    }
}

template <class T>
DEVICE void unpack(const Strided& args) {
#pragma unroll 1
    for (u64 at = first_thread(); at < args.count; at += all_threads()) {
        ((T*)args.array)[place(args, at)] = ((const T*)args.dense)[at];
    }
}

UNISONO_KERNEL(pack_1, Strided) { pack<u8>(args); }
UNISONO_KERNEL(pack_2, Strided) { pack<u16>(args); }
UNISONO_KERNEL(pack_4, Strided) { pack<u32>(args); }
UNISONO_KERNEL(pack_8, Strided) { pack<u64>(args); }
UNISONO_KERNEL(unpack_1, Strided) { unpack<u8>(args); }
UNISONO_KERNEL(unpack_2, Strided) { unpack<u16>(args); }
UNISONO_KERNEL(unpack_4, Strided) { unpack<u32>(args); }
UNISONO_KERNEL(unpack_8, Strided) { unpack<u64>(args); }
