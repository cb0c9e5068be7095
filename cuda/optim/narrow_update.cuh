// Update of parameters that have state in less than 32 bits (kernels/narrow_state.h). A warp takes a block of
// 256 elements, and each lane eight consecutive ones, for which it computes one block of random bits. Loops
// over them are unrolled, so that their arrays are registers.
#pragma once

#include "core/philox.h"
#include "cuda/optim/step_params.cuh"
#include "kernels/functor_step.h"

namespace mezzo::cuda {

inline constexpr int lane_elements = 8;
static_assert(32 * lane_elements == Block8::size && step_chunk % Block8::size == 0);

// A lane's elements: n of them from i on.
struct LaneRange {
    std::int64_t i;
    int n;
};
using LaneValues = float[lane_elements];

template <class T> __device__ void load_lane(const void* p, const LaneRange& range, LaneValues& to) {
    if (range.n == lane_elements && aligned(static_cast<const T*>(p) + range.i, sizeof(T))) {
        for (int h = 0; h < lane_elements; h += step_width) {
            const auto& from = *reinterpret_cast<const StepVec<T>*>(static_cast<const T*>(p) + range.i + h);
            for (int j = 0; j < step_width; ++j) to[h + j] = to_float(from.v[j]);
        }
        return;
    }
    for (int j = 0; j < lane_elements; ++j)
        to[j] = j < range.n ? to_float(static_cast<const T*>(p)[range.i + j]) : 0.0f;
}
template <class T>
__device__ void store_lane(void* p, const LaneRange& range, const T (&from)[lane_elements]) {
    if (range.n == lane_elements && aligned(static_cast<T*>(p) + range.i, sizeof(T))) {
        for (int h = 0; h < lane_elements; h += step_width) {
            StepVec<T> vector;
            for (int j = 0; j < step_width; ++j) vector.v[j] = from[h + j];
            vector_at<T>(p, range.i + h) = vector;
        }
        return;
    }
    MEZZO_UNROLL
    for (int j = 0; j < lane_elements; ++j)
        if (j < range.n) static_cast<T*>(p)[range.i + j] = from[j];
}

__device__ inline bool with_sign(StateFormat format) { return format == StateFormat::signed_blocks; }
__device__ inline Block8& block_at(const NarrowRef& p, int k, const LaneRange& range) {
    return static_cast<Block8*>(p.state[k])[range.i / Block8::size];
}
// The lane's codes in its block, where they are there beyond the end of the parameter, too.
__device__ inline LaneRange codes_of(const LaneRange& range) {
    return {range.i % Block8::size, lane_elements};
}

__device__ inline void read_state(const NarrowRef& p, int k, const LaneRange& range, LaneValues& s) {
    if (p.format[k] == StateFormat::wide) return load_lane<float>(p.state[k], range, s);
    if (p.format[k] == StateFormat::bf16) return load_lane<bfloat16_t>(p.state[k], range, s);
    const Block8& block = block_at(p, k, range);
    LaneValues codes;
    load_lane<std::uint8_t>(block.code, codes_of(range), codes);
    for (int j = 0; j < lane_elements; ++j)
        s[j] =
            functors::from_code(static_cast<std::uint32_t>(codes[j]), with_sign(p.format[k]), block.maximum);
}

// All lanes of the warp call it.
__device__ inline void write_block(const NarrowRef& p, int k, const LaneRange& range, const LaneValues& s) {
    std::uint32_t largest = 0;
    for (int j = 0; j < lane_elements; ++j)
        if (j < range.n) largest = Max()(largest, functors::bits_of(s[j]) & 0x7fffffffu);
    const float maximum = functors::number_of(warp_reduce(largest, Max()));
    const float inverse = functors::inverse_of_maximum(maximum);
    std::uint8_t codes[lane_elements];
    for (int j = 0; j < lane_elements; ++j)
        codes[j] = j < range.n ? functors::to_code(s[j], with_sign(p.format[k]), inverse) : std::uint8_t(0);
    Block8& block = block_at(p, k, range);
    __syncwarp();  // every lane has read the old block
    store_lane(block.code, codes_of(range), codes);
    if (threadIdx.x % 32 == 0) block.maximum = maximum;
}
__device__ inline void write_state(const NarrowRef& p, int k, const LaneRange& range, const LaneValues& s) {
    if (p.format[k] == StateFormat::wide) return store_lane(p.state[k], range, s);
    if (p.format[k] != StateFormat::bf16) return write_block(p, k, range, s);
    const PhiloxWords words = philox(functors::rounding_key(p.number, k, *p.step),
                                     static_cast<std::uint64_t>(p.first + range.i) / lane_elements);
    std::uint16_t rounded[lane_elements];
    for (int j = 0; j < lane_elements; ++j)
        rounded[j] = functors::rounded_stochastically(functors::bits_of(s[j]), philox_half(words, j));
    store_lane(p.state[k], range, rounded);
}

// Updates a block of 256 elements. All lanes of the warp call it.
template <class Row> __device__ void update_narrow(const NarrowRef& p, const LaneRange& range,
                                                   const functors::Prepared<Row, float>& prepared,
                                                   float multiplier) {
    LaneValues state[max_optimizer_state] = {};
    MEZZO_UNROLL
    for (int k = 0; k < max_optimizer_state; ++k)
        if (p.state[k] != nullptr) read_state(p, k, range, state[k]);
    const bool vectors = range.n == lane_elements && params_fit_vectors(p);
    MEZZO_UNROLL
    for (int h = 0; h < lane_elements; h += step_width) {
        StepVec<float> value{};
        if (vectors) value = load_params(p, range.i + h);
        MEZZO_UNROLL
        for (int j = 0; j < step_width; ++j) {
            if (h + j >= range.n) continue;
            const std::int64_t i = range.i + h + j;
            if (!vectors) value.v[j] = load_param<float>(p, i);
            float s[max_optimizer_state];
            for (int k = 0; k < max_optimizer_state; ++k) s[k] = state[k][h + j];
            const float g = load_as<float>(p.grad, p.grad_dtype, i) * multiplier;
            value.v[j] = prepared.formula.update(value.v[j], g, s, prepared.way);
            for (int k = 0; k < max_optimizer_state; ++k) state[k][h + j] = s[k];
            if (!vectors) store_param(p, i, value.v[j]);
        }
        if (vectors) store_params(p, range.i + h, value);
    }
    MEZZO_UNROLL
    for (int k = 0; k < max_optimizer_state; ++k)
        if (p.state[k] != nullptr) write_state(p, k, range, state[k]);
}

template <class Row> __device__ void update_narrow_chunks(const NarrowRef& p, const Chunks& chunks,
                                                          const functors::Prepared<Row, float>& prepared,
                                                          float multiplier) {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    for (std::int64_t begin = chunks.begin + warp * Block8::size; begin < chunks.end;
         begin += warps * Block8::size) {
        const std::int64_t i = begin + lane * lane_elements, left = chunks.end - i;
        update_narrow(p,
                      {i, left < 0               ? 0
                          : left < lane_elements ? int(left)
                                                 : lane_elements},
                      prepared, prepared.maximize ? -multiplier : multiplier);
    }
}

}  // namespace mezzo::cuda
