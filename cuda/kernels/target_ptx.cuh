// `target.cuh` for a GPU: inline PTX behind named functions. PTX 8.0, sm_80. With `UNISONO_LL128`
// PTX 8.4, for drivers from CUDA 12.4 on.
#pragma once

#define DEVICE __device__ __forceinline__
#define OFFSET_OF(Struct, field) __INTADDR__(&((Struct*)0)->field)

// At most 512 threads, which may use all registers. Arguments stay in parameter memory: pointers in
// them are indexed without a copy.
#define UNISONO_KERNEL(name, Arguments) \
    extern "C" __global__ void __launch_bounds__(512, 1) name(const __grid_constant__ Arguments args)

// The operand of an access to global memory.
#define AT(pointer) "l"(__cvta_generic_to_global(pointer))

DEVICE u32 bits_of(float value) { return __float_as_uint(value); }
DEVICE u64 bits_of(double value) { return u64(__double_as_longlong(value)); }
DEVICE float float_of(u32 bits) { return __uint_as_float(bits); }
DEVICE double double_of(u64 bits) { return __longlong_as_double(i64(bits)); }

DEVICE u32 half_bits(float value) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

DEVICE float half_value(u32 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(u16(bits)));
    return value;
}

DEVICE u32 bfloat16_bits(float value) {
    u16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

DEVICE float bfloat16_value(u32 bits) { return float_of(bits << 16); }

// Loads past L1, which no peer keeps up to date.
DEVICE void load_data(u8& value, const void* from) {
    u32 wide;
    asm volatile("ld.relaxed.sys.global.u8 %0, [%1];" : "=r"(wide) : AT(from) : "memory");
    value = u8(wide);
}

DEVICE void load_data(u16& value, const void* from) {
    asm volatile("ld.relaxed.sys.global.u16 %0, [%1];" : "=h"(value) : AT(from) : "memory");
}

DEVICE void load_data(u32& value, const void* from) {
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : AT(from) : "memory");
}

DEVICE void load_data(u64& value, const void* from) {
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : AT(from) : "memory");
}

DEVICE void load_data(Words& value, const void* from) {
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.words[0]), "=r"(value.words[1]), "=r"(value.words[2]), "=r"(value.words[3])
                 : AT(from)
                 : "memory");
}

DEVICE void store_data(void* to, u8 value) {
    asm volatile("st.global.u8 [%0], %1;" ::AT(to), "r"(u32(value)) : "memory");
}

DEVICE void store_data(void* to, u16 value) {
    asm volatile("st.global.u16 [%0], %1;" ::AT(to), "h"(value) : "memory");
}

DEVICE void store_data(void* to, u32 value) {
    asm volatile("st.global.u32 [%0], %1;" ::AT(to), "r"(value) : "memory");
}

DEVICE void store_data(void* to, u64 value) {
    asm volatile("st.global.u64 [%0], %1;" ::AT(to), "l"(value) : "memory");
}

DEVICE void store_data(void* to, const Words& value) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::AT(to), "r"(value.words[0]),
                 "r"(value.words[1]), "r"(value.words[2]), "r"(value.words[3])
                 : "memory");
}

DEVICE void load_pair(u64& low, u64& high, const void* from) {
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(low), "=l"(high) : AT(from) : "memory");
}

DEVICE void store_pair(void* to, u64 low, u64 high) {
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::AT(to), "l"(low), "l"(high) : "memory");
}

#ifdef UNISONO_LL128
// One 128-bit scalar. A vector would make an access for each element.
DEVICE void load_128(Words& value, const void* from) {
    u64 low, high;
    asm volatile("{ .reg .b128 whole; ld.relaxed.sys.global.b128 whole, [%2]; mov.b128 {%0, %1}, whole; }"
                 : "=l"(low), "=l"(high)
                 : AT(from)
                 : "memory");
    value = {{u32(low), u32(low >> 32), u32(high), u32(high >> 32)}};
}

DEVICE void store_128(void* to, const Words& value) {
    u64 low = u64(value.words[1]) << 32 | value.words[0], high = u64(value.words[3]) << 32 | value.words[2];
    asm volatile("{ .reg .b128 whole; mov.b128 whole, {%1, %2}; st.relaxed.sys.global.b128 [%0], whole; }" ::AT(to),
                 "l"(low), "l"(high)
                 : "memory");
}
#endif

DEVICE u64 load_relaxed(const u64* from) {
    u64 value;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : AT(from) : "memory");
    return value;
}

DEVICE u32 load_relaxed(const u32* from) {
    u32 value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : AT(from) : "memory");
    return value;
}

DEVICE void store_relaxed(u64* to, u64 value) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::AT(to), "l"(value) : "memory");
}

DEVICE u64 load_acquire(const u64* from) {
    u64 value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : AT(from) : "memory");
    return value;
}

DEVICE void store_release(u64* to, u64 value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::AT(to), "l"(value) : "memory");
}

DEVICE void store_release(u32* to, u32 value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::AT(to), "r"(value) : "memory");
}

DEVICE void fence() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

DEVICE void store_relaxed(u32* to, u32 value) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::AT(to), "r"(value) : "memory");
}

// Among the blocks of one GPU.
DEVICE u32 add_acq_rel(u32* counter, u32 more) {
    u32 before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : AT(counter), "r"(more)
                 : "memory");
    return before;
}

DEVICE bool claim(u32* flag, u32 value) {
    u32 before;
    asm volatile("atom.relaxed.sys.global.cas.b32 %0, [%1], 0, %2;"
                 : "=r"(before)
                 : AT(flag), "r"(value)
                 : "memory");
    return before == 0;
}

DEVICE float square_root(float value) { return __fsqrt_rn(value); }
DEVICE double square_root(double value) { return __dsqrt_rn(value); }
DEVICE float fused(float one, float other, float more) { return __fmaf_rn(one, other, more); }

DEVICE u64 now_ns() {
    u64 time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}

// The hardware runs other warps meanwhile.
DEVICE void relax() {}
