// Causal attention by tiles (Dao and others: FlashAttention, 2022). A block has 16 queries, or 16
// keys, of one head of one sequence, and at most 16 × 16 scores. Gradients of keys and values have
// a kernel of their own, so that no two blocks add to the same numbers.
#include "model_arguments.cuh"
#include "model_lanes.cuh"
#include "model_math.cuh"

// Queries, and keys, of a tile.
constexpr u32 TILE = 16;
// Threads that share a row of a tile. Every block has TILE × LANES threads.
constexpr u32 LANES = 8;
// Largest number of columns of a head.
constexpr u32 DEPTH_MAX = 128;
// One more column, so that rows begin in different banks.
using Side = float[TILE][DEPTH_MAX + 1];
using Scores = float[TILE][TILE + 1];

enum Part : u32 { QUERIES, KEYS, VALUES };

// The part of a launch that one block works on at a time.
struct Work {
    const Attention& args;
    u32 sequence, head;
    // First of the block's own queries or keys.
    u32 first;

    DEVICE u32 width() const { return args.heads * args.depth; }
    DEVICE u64 token(u32 at) const { return u64(sequence) * args.length + at; }
    DEVICE u64 input(u32 at, Part part) const {
        return token(at) * 3 * width() + part * width() + head * args.depth;
    }
    DEVICE u64 output(u32 at) const { return token(at) * width() + head * args.depth; }
    // Index of a query's number.
    DEVICE u64 number(u32 at) const { return (u64(sequence) * args.heads + head) * args.length + at; }
};

// Calls `body` for every tile of every head that falls to this block.
template <class B>
DEVICE void each_tile(const Attention& args, B body) {
    u32 tiles = (args.length + TILE - 1) / TILE;
    each_row(u64(args.sequences) * args.heads * tiles, [&](u64 turn) {
        u32 pair = u32(turn / tiles);
        body(Work{args, pair / args.heads, pair % args.heads, u32(turn % tiles) * TILE});
    });
}

// A block's sides of its tile.
struct Sides {
    Side queries, grads, keys, values;
};

// Copies the rows from `first` on to `side`, and zeros behind the last. `place` gives the start of
// a row.
template <class P>
DEVICE void fetch(const Work& work, Side& side, const float* from, u32 first, P place) {
    for (u32 at = threadIdx.x; at < TILE * work.args.depth; at += blockDim.x) {
        u32 row = at / work.args.depth, column = at % work.args.depth;
        side[row][column] = first + row < work.args.length ? from[place(first + row) + column] : 0.0f;
    }
}

DEVICE void fetch_input(const Work& work, Side& side, u32 first, Part part) {
    fetch(work, side, work.args.input, first, [&](u32 at) { return work.input(at, part); });
}

DEVICE void fetch_grads(const Work& work, Side& side, u32 first) {
    fetch(work, side, work.args.output, first, [&](u32 at) { return work.output(at); });
}

DEVICE float dot(const float* one, const float* other, u32 count) {
    float sum = 0.0f;
    for (u32 at = 0; at < count; at++) {
        sum = fused(one[at], other[at], sum);
    }
    return sum;
}

// A thread's columns of a row of `depth` columns: every eighth.
struct Columns {
    float at[DEPTH_MAX / LANES];

    DEVICE void scale(float factor) {
#pragma unroll
        for (u32 index = 0; index < DEPTH_MAX / LANES; index++) {
            at[index] *= factor;
        }
    }

    // += share · the row of `side`.
    DEVICE void add(float share, const float* row, u32 lane, u32 depth) {
#pragma unroll
        for (u32 index = 0; index < DEPTH_MAX / LANES; index++) {
            u32 column = lane + index * LANES;
            at[index] = column < depth ? fused(share, row[column], at[index]) : 0.0f;
        }
    }

    DEVICE void put(float* to, u32 lane, u32 depth) const {
#pragma unroll
        for (u32 index = 0; index < DEPTH_MAX / LANES; index++) {
            u32 column = lane + index * LANES;
            if (column < depth) {
                to[column] = at[index];
            }
        }
    }
};

// The kernels have so many threads a block, whatever they were asked for.
DEVICE u32 row_of_thread() { return threadIdx.x / LANES; }
DEVICE u32 lane_of_thread() { return threadIdx.x % LANES; }

UNISONO_KERNEL(attention, Attention) {
    __shared__ Side queries, keys, values;
    __shared__ Scores scores;
    u32 row = row_of_thread(), lane = lane_of_thread();
    each_tile(args, [&](const Work& work) {
        u32 query = work.first + row;
        float most = float_of(0xff800000), sum = 0.0f;
        Columns mixed = {};
        fetch_input(work, queries, work.first, QUERIES);
#pragma unroll 1
        for (u32 first = 0; first <= work.first; first += TILE) {
            fetch_input(work, keys, first, KEYS);
            fetch_input(work, values, first, VALUES);
            __syncthreads();
            for (u32 key = lane; key < TILE; key += LANES) {
                float score = dot(queries[row], keys[key], args.depth) * args.scale;
                scores[row][key] = first + key <= query ? score : float_of(0xff800000);
            }
            __syncthreads();
            float before = most;
            for (u32 key = 0; key < TILE; key++) {
                most = scores[row][key] > most ? scores[row][key] : most;
            }
            // Before the first tile the maximum is -inf, and the factor multiplies 0.
            float shrink = fast_exp(before - most);
            sum *= shrink;
            mixed.scale(shrink);
            for (u32 key = 0; key < TILE && first + key <= query; key++) {
                float power = fast_exp(scores[row][key] - most);
                sum += power;
                mixed.add(power, values[key], lane, args.depth);
            }
            __syncthreads();
        }
        if (query < args.length) {
            mixed.scale(1.0f / sum);
            mixed.put(args.output + work.output(query), lane, args.depth);
            if (lane == 0) {
                args.log_sums[work.number(query)] = most + fast_log(sum);
            }
        }
    });
}

// The probability of a key for a query, from forward's sums.
DEVICE float share_of(const Work& work, const float* query, const float* key, float log_sum) {
    return fast_exp(dot(query, key, work.args.depth) * work.args.scale - log_sum);
}

// Calls `body` with p and dp of every key of a tile that falls to this thread, for the query of its
// row.
template <class B>
DEVICE void each_key(const Work& work, Sides& sides, u32 first, float log_sum, B body) {
    u32 row = row_of_thread();
    fetch_input(work, sides.keys, first, KEYS);
    fetch_input(work, sides.values, first, VALUES);
    __syncthreads();
    for (u32 key = lane_of_thread(); key < TILE; key += LANES) {
        bool sees = first + key <= work.first + row;
        float share = sees ? share_of(work, sides.queries[row], sides.keys[key], log_sum) : 0.0f;
        body(key, share, dot(sides.grads[row], sides.values[key], work.args.depth));
    }
    __syncthreads();
}

// With p the probabilities and dp = dy vᵀ: the mean of dp of each query, and dq = p (dp - mean) k.
// Two passes over the keys: the first computes the means.
UNISONO_KERNEL(attention_backward_q, Attention) {
    __shared__ Sides sides;
    __shared__ float parts[TILE][LANES];
    __shared__ Scores of_scores;
    u32 row = row_of_thread(), lane = lane_of_thread();
    each_tile(args, [&](const Work& work) {
        u32 query = work.first + row;
        float log_sum = query < args.length ? args.log_sums[work.number(query)] : 0.0f;
        fetch_input(work, sides.queries, work.first, QUERIES);
        fetch_grads(work, sides.grads, work.first);
        float part = 0.0f;
#pragma unroll 1
        for (u32 first = 0; first <= work.first; first += TILE) {
            each_key(work, sides, first, log_sum, [&](u32, float share, float grad) { part += share * grad; });
        }
        parts[row][lane] = part;
        __syncthreads();
        float mean = 0.0f;
        for (u32 other = 0; other < LANES; other++) {
            mean += parts[row][other];
        }
        Columns result = {};
#pragma unroll 1
        for (u32 first = 0; first <= work.first; first += TILE) {
            each_key(work, sides, first, log_sum,
                     [&](u32 key, float share, float grad) { of_scores[row][key] = share * (grad - mean); });
            for (u32 key = 0; key < TILE; key++) {
                result.add(of_scores[row][key], sides.keys[key], lane, args.depth);
            }
            __syncthreads();
        }
        if (query < args.length) {
            result.scale(args.scale);
            result.put(args.grads + work.input(query, QUERIES), lane, args.depth);
            if (lane == 0) {
                args.means[work.number(query)] = mean;
            }
        }
    });
}

// dk = (p (dp - mean))ᵀ q and dv = pᵀ dy, over the queries that see a key.
UNISONO_KERNEL(attention_backward_kv, Attention) {
    __shared__ Sides sides;
    __shared__ Scores shares, of_scores;
    u32 row = row_of_thread(), lane = lane_of_thread();
    each_tile(args, [&](const Work& work) {
        u32 key = work.first + row;
        Columns of_key = {}, of_value = {};
        fetch_input(work, sides.keys, work.first, KEYS);
        fetch_input(work, sides.values, work.first, VALUES);
#pragma unroll 1
        for (u32 first = work.first; first < args.length; first += TILE) {
            fetch_input(work, sides.queries, first, QUERIES);
            fetch_grads(work, sides.grads, first);
            __syncthreads();
            for (u32 at = lane; at < TILE; at += LANES) {
                u32 query = first + at;
                bool sees = key <= query && query < args.length;
                float log_sum = sees ? args.log_sums[work.number(query)] : 0.0f;
                float mean = sees ? args.means[work.number(query)] : 0.0f;
                float share = sees ? share_of(work, sides.queries[at], sides.keys[row], log_sum) : 0.0f;
                shares[row][at] = share;
                of_scores[row][at] = share * (dot(sides.grads[at], sides.values[row], args.depth) - mean);
            }
            __syncthreads();
            for (u32 at = 0; at < TILE; at++) {
                of_key.add(of_scores[row][at], sides.queries[at], lane, args.depth);
                of_value.add(shares[row][at], sides.grads[at], lane, args.depth);
            }
            __syncthreads();
        }
        if (key < args.length) {
            of_key.scale(args.scale);
            of_key.put(args.grads + work.input(key, KEYS), lane, args.depth);
            of_value.put(args.grads + work.input(key, VALUES), lane, args.depth);
        }
    });
}
