// Combinations of two values, and operations on values before and after them: those of the host's
// reductions (`src/reduce_kind.rs`), bit for bit except for NaNs.
#pragma once

#include "target.cuh"

// The operation of a user-defined reduction: `user_combine`, generated before compilation. It takes
// the place of the sum.
#ifdef UNISONO_USER_OP
#include "user_op.cuh"
#endif

// The value of these bits.
template <class V>
DEVICE V from_bits(u64 bits) {
    return V(bits);
}
template <>
DEVICE float from_bits<float>(u64 bits) {
    return float_of(u32(bits));
}
template <>
DEVICE double from_bits<double>(u64 bits) {
    return double_of(bits);
}

// Integers wrap: sums and products are those of their low bits.
template <class V>
DEVICE V sum(V left, V right) {
    return V(u64(left) + u64(right));
}
DEVICE float sum(float left, float right) { return left + right; }
DEVICE double sum(double left, double right) { return left + right; }

template <class V>
DEVICE V product(V left, V right) {
    return V(u64(left) * u64(right));
}
DEVICE float product(float left, float right) { return left * right; }
DEVICE double product(double left, double right) { return left * right; }

template <class V>
DEVICE V smaller(V left, V right) {
    return right < left ? right : left;
}
template <class V>
DEVICE V larger(V left, V right) {
    return left < right ? right : left;
}

DEVICE bool is_negative(float value) { return i32(bits_of(value)) < 0; }
DEVICE bool is_negative(double value) { return i64(bits_of(value)) < 0; }

// Floats: a NaN wins. Zeros are the only equal numbers with different bits, and -0 is the smaller.
template <class V>
DEVICE V smaller_float(V left, V right) {
    bool first = left != left || left < right || (left == right && is_negative(left));
    return first ? left : right;
}
template <class V>
DEVICE V larger_float(V left, V right) {
    bool first = left != left || left > right || (left == right && !is_negative(left));
    return first ? left : right;
}
DEVICE float smaller(float left, float right) { return smaller_float(left, right); }
DEVICE double smaller(double left, double right) { return smaller_float(left, right); }
DEVICE float larger(float left, float right) { return larger_float(left, right); }
DEVICE double larger(double left, double right) { return larger_float(left, right); }

// Towards zero, by the unsigned division of the type's own width: a wider one is slow.
template <class V>
DEVICE V divide(V value, u32 ranks) {
    bool negative = V(-1) < V(1) && value < V(1) && value != V(0);
    if (sizeof(V) == 8) {
        u64 magnitude = (negative ? 0 - u64(value) : u64(value)) / ranks;
        return V(negative ? 0 - magnitude : magnitude);
    }
    u32 magnitude = (negative ? 0 - u32(value) : u32(value)) / ranks;
    return V(negative ? 0 - magnitude : magnitude);
}
DEVICE float divide(float value, u32 ranks) { return value / float(ranks); }
DEVICE double divide(double value, u32 ranks) { return value / double(ranks); }

// The operations, one row each: the conversion of an operand before it is combined, the combination
// of two values, and the conversion of the result.
struct Sum {
    template <class E>
    static DEVICE typename E::Value before(typename E::Value value, u64) {
        return value;
    }
    template <class V>
    static DEVICE V combine(V left, V right) {
#ifdef UNISONO_USER_OP
        return user_combine(left, right);
#else
        return sum(left, right);
#endif
    }
    template <class E>
    static DEVICE typename E::Value after(typename E::Value value, u32) {
        return value;
    }
};

struct Prod : Sum {
    template <class V>
    static DEVICE V combine(V left, V right) {
        return product(left, right);
    }
};

struct Min : Sum {
    template <class V>
    static DEVICE V combine(V left, V right) {
        return smaller(left, right);
    }
};

struct Max : Sum {
    template <class V>
    static DEVICE V combine(V left, V right) {
        return larger(left, right);
    }
};

struct Avg : Sum {
    template <class E>
    static DEVICE typename E::Value after(typename E::Value value, u32 divisor) {
        return divide(value, divisor);
    }
};

// Products are elements before they are added, as they are where ranks scale their own.
struct PreMulSum : Sum {
    template <class E>
    static DEVICE typename E::Value before(typename E::Value value, u64 factor) {
        typename E::Value wide = from_bits<typename E::Value>(factor);
        return E::value(E::bits(product(value, wide)));
    }
};
