// Kernels over the gradients of a list of parameters: finite check and unscaling, norm, clipping.
#include "cuda/step.h"
#include "cuda/step_table.cuh"

namespace mezzo::cuda {
namespace {

constexpr int grad_width = 4;  // elements per thread and access

// Calls f(value) for each element of a chunk of the gradient, with f's result written back if `write`.
template <class T, class F> __device__ void visit(T* grad, const Chunk& chunk, bool write, F& f) {
    using C = Compute<T>;
    using V = Vec<T, grad_width>;
    std::int64_t i = chunk.begin;
    if (reinterpret_cast<std::uintptr_t>(grad) % sizeof(V) == 0) {
        const std::int64_t whole = chunk.begin + (chunk.end - chunk.begin) / grad_width * grad_width;
        for (i += threadIdx.x * grad_width; i < whole; i += blockDim.x * grad_width) {
            V values = *reinterpret_cast<const V*>(grad + i);
            for (T& value : values.v) value = convert<T>(f(convert<C>(value)));
            if (write) *reinterpret_cast<V*>(grad + i) = values;
        }
        i = whole;
    }
    for (i += threadIdx.x; i < chunk.end; i += blockDim.x) {
        const T value = convert<T>(f(convert<C>(grad[i])));
        if (write) grad[i] = value;
    }
}

template <class F> __device__ void visit_chunk(const ParamRef& p, const Chunk& chunk, bool write, F& f) {
    switch (p.grad_dtype) {
        case Dtype::float16:
            return visit(static_cast<float16_t*>(p.grad), chunk, write, f);
        case Dtype::bfloat16:
            return visit(static_cast<bfloat16_t*>(p.grad), chunk, write, f);
        case Dtype::float32:
            return visit(static_cast<float*>(p.grad), chunk, write, f);
        default:
            return visit(static_cast<double*>(p.grad), chunk, write, f);
    }
}

template <class C> __device__ bool finite(C x) { return x - x == C(0); }

// x times the inverse scale; remembers whether it or x was not finite. A factor of 1 changes no bit.
struct Unscale {
    float inverse;
    bool bad;
    template <class C> __device__ C operator()(C x) {
        const C y = inverse == 1 ? x : x * static_cast<C>(inverse);
        bad = bad || !finite(x) || !finite(y);
        return y;
    }
};

// Several blocks may set the same flag: all write 1.
__global__ void check_finite_kernel(ParamTable table, const ScalerState* scaler, bool multiply,
                                    StepState* state, float* flags) {
    Unscale unscale{1, false};
    if (scaler != nullptr) unscale.inverse = static_cast<float>(1.0 / static_cast<double>(scaler->scale));
    for (std::uint32_t c = blockIdx.x; c < table.chunks(); c += gridDim.x) {
        const Chunk chunk = chunk_of(table, c);
        unscale.bad = false;
        visit_chunk(table.params[chunk.index], chunk, multiply && unscale.inverse != 1, unscale);
        if (__syncthreads_or(unscale.bad) == 0 || threadIdx.x != 0) continue;
        atomicExch(&state->found_inf, 1.0f);
        if (flags != nullptr) atomicExch(&flags[table.first + chunk.index], 1.0f);
    }
}

struct SquareSum {
    double sum;
    template <class C> __device__ C operator()(C x) {
        sum += static_cast<double>(x) * static_cast<double>(x);
        return x;
    }
};

// One partial sum per block, in the order of the blocks.
__global__ void square_sum_kernel(ParamTable table, double* partial) {
    SquareSum squares{0};
    for (std::uint32_t c = blockIdx.x; c < table.chunks(); c += gridDim.x) {
        const Chunk chunk = chunk_of(table, c);
        visit_chunk(table.params[chunk.index], chunk, false, squares);
    }
    const double sum = block_reduce(squares.sum, 0.0, Sum());
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void norm_kernel(const double* partial, std::int64_t count, float* norm) {
    double sum = 0;
    for (std::int64_t i = threadIdx.x; i < count; i += blockDim.x) sum += partial[i];
    sum = block_reduce(sum, 0.0, Sum());
    if (threadIdx.x == 0) *norm = static_cast<float>(std::sqrt(sum));
}

struct Scale {
    float factor;
    template <class C> __device__ C operator()(C x) { return x * static_cast<C>(factor); }
};
// NaN stays.
struct Limit {
    double limit;
    template <class C> __device__ C operator()(C x) {
        const C bound = static_cast<C>(limit);
        return x < -bound ? -bound : x > bound ? bound : x;
    }
};

template <class F> __device__ void visit_all(const ParamTable& table, F f) {
    for (std::uint32_t c = blockIdx.x; c < table.chunks(); c += gridDim.x) {
        const Chunk chunk = chunk_of(table, c);
        visit_chunk(table.params[chunk.index], chunk, true, f);
    }
}

__global__ void clip_by_norm_kernel(ParamTable table, const float* norm, double max_norm) {
    const float factor = static_cast<float>(max_norm / (static_cast<double>(*norm) + 1e-6));
    if (factor >= 1) return;  // a NaN norm spreads to all gradients, as in torch
    visit_all(table, Scale{factor});
}

__global__ void clip_by_value_kernel(ParamTable table, double limit) { visit_all(table, Limit{limit}); }

}  // namespace

void step_check_finite(std::span<const ParamRef> params, const ScalerState* scaler, bool multiply,
                       StepState* state, float* per_param_flags) {
    if (per_param_flags != nullptr) fill_zero(per_param_flags, params.size() * sizeof(float));
    for_tables(params, [&](const ParamTable& table) {
        launch(check_finite_kernel, table.grid(), step_block, 0, table, scaler, multiply, state,
               per_param_flags);
    });
}

void step_grad_norm(std::span<const ParamRef> params, float* norm) {
    std::int64_t blocks = 0;
    for_tables(params, [&](const ParamTable& table) { blocks += table.grid(); });
    const Scratch partial(Device(DeviceType::cuda, current_device()), blocks * std::int64_t(sizeof(double)));
    double* next = partial.as<double>();
    for_tables(params, [&](const ParamTable& table) {
        launch(square_sum_kernel, table.grid(), step_block, 0, table, next);
        next += table.grid();
    });
    launch(norm_kernel, 1, step_block, 0, partial.as<double>(), blocks, norm);
}

void step_clip_by_norm(std::span<const ParamRef> params, const float* norm, double max_norm) {
    for_tables(params, [&](const ParamTable& table) {
        launch(clip_by_norm_kernel, table.grid(), step_block, 0, table, norm, max_norm);
    });
}

void step_clip_by_value(std::span<const ParamRef> params, double limit) {
    for_tables(params, [&](const ParamTable& table) {
        launch(clip_by_value_kernel, table.grid(), step_block, 0, table, limit);
    });
}

}  // namespace mezzo::cuda
