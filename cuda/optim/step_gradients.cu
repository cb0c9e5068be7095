// Kernels over the gradients of a list of parameters: statistics, scaling in place, clipping by value.
#include <atomic>
#include <mutex>

#include "cuda/optim/step.h"
#include "cuda/optim/step_table.cuh"
#include "kernels/functor_step.h"

namespace mezzo::cuda {
namespace {

constexpr int grad_width = 4;  // elements per thread and access

// Calls f(value) for each element of the chunks, with f's result written back if `write`.
template <class T, class F> __device__ void visit(T* grad, const Chunks& chunks, bool write, F& f) {
    using C = Compute<T>;
    using V = Vec<T, grad_width>;
    std::int64_t i = chunks.begin;
    if (reinterpret_cast<std::uintptr_t>(grad) % sizeof(V) == 0) {
        const std::int64_t whole = chunks.begin + (chunks.end - chunks.begin) / grad_width * grad_width;
        const std::int64_t step = blockDim.x * grad_width;
        constexpr int loads = sizeof(T) > 4 ? 1 : 4;  // in flight; more cost more in registers
        for (i += threadIdx.x * grad_width; i < whole; i += loads * step) {
            V values[loads];
            MEZZO_UNROLL
            for (int u = 0; u < loads; ++u)
                if (i + u * step < whole) values[u] = *reinterpret_cast<const V*>(grad + i + u * step);
            MEZZO_UNROLL
            for (int u = 0; u < loads; ++u) {
                if (i + u * step >= whole) break;
                for (T& value : values[u].v) value = convert<T>(f(convert<C>(value)));
                if (write) *reinterpret_cast<V*>(grad + i + u * step) = values[u];
            }
        }
        i = whole;
    }
    for (i += threadIdx.x; i < chunks.end; i += blockDim.x) {
        const T value = convert<T>(f(convert<C>(grad[i])));
        if (write) grad[i] = value;
    }
}

template <class F> __device__ void visit_chunks(const GradRef& p, const Chunks& chunks, bool write, F& f) {
    switch (p.grad_dtype) {
        case Dtype::float16:
            return visit(static_cast<float16_t*>(p.grad), chunks, write, f);
        case Dtype::bfloat16:
            return visit(static_cast<bfloat16_t*>(p.grad), chunks, write, f);
        case Dtype::float32:
            return visit(static_cast<float*>(p.grad), chunks, write, f);
        default:
            return visit(static_cast<double*>(p.grad), chunks, write, f);
    }
}

template <class C> __device__ bool finite(C x) { return x - x == C(0); }

// Functor that examines an element as it will be after scaling. A factor of 1 changes no bit.
struct Look {
    float inverse;
    bool squares;
    bool bad = false;
    double sum = 0;
    template <class C> __device__ C operator()(C x) {
        const C y = inverse == 1 ? x : x * static_cast<C>(inverse);
        bad = bad || !finite(x) || !finite(y);
        if (squares) sum += static_cast<double>(y) * static_cast<double>(y);
        return x;
    }
};

// Partial result of a block.
struct Partial {
    double sum;
    double bad;  // the number of threads that saw inf or NaN
};

// Combines the results of all blocks in their order, in the last block of `statistics`, then computes every
// number that follows from them.
__device__ void conclude(const Partial* partials, unsigned count, const StepKernels::Statistics& wanted) {
    double sum = 0, bad = 0;
    constexpr unsigned loads = 8;  // in flight
    for (unsigned i = threadIdx.x; i < count; i += loads * blockDim.x) {
        Partial part[loads] = {};
        MEZZO_UNROLL
        for (unsigned u = 0; u < loads; ++u)
            if (i + u * blockDim.x < count) part[u] = partials[i + u * blockDim.x];
        MEZZO_UNROLL
        for (unsigned u = 0; u < loads; ++u) {
            sum += part[u].sum;
            bad += part[u].bad;
        }
    }
    sum = block_reduce(sum, 0.0, Sum());
    bad = block_reduce(bad, 0.0, Sum());
    if (threadIdx.x != 0) return;
    StepState& state = *wanted.state;
    state.found_inf = bad != 0 || (wanted.again && state.found_inf != 0) ? 1.0f : 0.0f;
    state.grad_multiplier = functors::inverse_scale(wanted);
    if (wanted.norm != nullptr) *wanted.norm = state.norm = static_cast<float>(std::sqrt(sum));
    if (wanted.scaler != nullptr) functors::note_check(*wanted.scaler, wanted.first, bad != 0, wanted.args);
}

// The first `before` partials are the results of earlier launches.
template <class Table>
__global__ void statistics_kernel(MEZZO_GRID_CONSTANT const Table table,
                                  MEZZO_GRID_CONSTANT const StepKernels::Statistics wanted, Partial* partials,
                                  unsigned before, bool last, unsigned* ticket) {
    Look look{functors::inverse_scale(wanted), wanted.norm != nullptr};
    for_chunks(table,
               [&](const Chunks& chunks) { visit_chunks(table.entries[chunks.index], chunks, false, look); });
    const double sum = block_reduce(look.sum, 0.0, Sum());
    const int bad = __syncthreads_count(look.bad);
    if (threadIdx.x == 0) partials[before + blockIdx.x] = {sum, static_cast<double>(bad)};
    if (last && last_block(ticket)) conclude(partials, before + gridDim.x, wanted);
}

struct Scale {
    float factor;
    template <class C> __device__ C operator()(C x) { return x * static_cast<C>(factor); }
};
// Functor that clamps a value to [-limit, limit]. NaN stays.
struct Limit {
    double limit;
    template <class C> __device__ C operator()(C x) {
        const C bound = static_cast<C>(limit);
        return x < -bound ? -bound : x > bound ? bound : x;
    }
};

template <class Table>
__global__ void scale_kernel(MEZZO_GRID_CONSTANT const Table table, GradientFactor factor) {
    Scale multiply{functors::value_of(factor)};
    if (multiply.factor == 1) return;
    for_chunks(table, [&](const Chunks& chunks) {
        visit_chunks(table.entries[chunks.index], chunks, true, multiply);
    });
}

template <class Table>
__global__ void clip_by_value_kernel(MEZZO_GRID_CONSTANT const Table table, double limit) {
    Limit clip{limit};
    for_chunks(table,
               [&](const Chunks& chunks) { visit_chunks(table.entries[chunks.index], chunks, true, clip); });
}

// Several blocks may set the same flag: all write 1.
template <class Table> __global__ void flag_kernel(MEZZO_GRID_CONSTANT const Table table, float* flags) {
    for_chunks(table, [&](const Chunks& chunks) {
        Look look{1, false};
        visit_chunks(table.entries[chunks.index], chunks, false, look);
        if (__syncthreads_or(look.bad) != 0 && threadIdx.x == 0)
            atomicExch(&flags[table.first + chunks.index], 1.0f);
    });
}

}  // namespace

unsigned* step_ticket() {
    constexpr int devices = 64;
    static std::atomic<unsigned*> tickets[devices];
    static std::mutex mutex;
    const int device = current_device();
    check(device < devices, ErrorKind::device, "optimizer step: device ", device, " is beyond the ", devices,
          " that are supported");
    if (unsigned* made = tickets[device].load(std::memory_order_acquire)) return made;
    const std::lock_guard lock(mutex);
    if (tickets[device].load() == nullptr) {
        auto* const fresh = static_cast<unsigned*>(device_malloc(sizeof(unsigned)));
        check(fresh != nullptr, ErrorKind::memory, "optimizer step: out of memory");
        fill_zero(fresh, sizeof(unsigned));
        tickets[device].store(fresh, std::memory_order_release);
    }
    return tickets[device].load();
}

void step_statistics(std::span<const ParamRef> params, const StepKernels::Statistics& wanted) {
    unsigned blocks = 0;
    for_grad_tables(params, [&](const auto& table, bool) { blocks += table.grid(); });
    const Scratch partials(Device(DeviceType::cuda, current_device()),
                           std::int64_t(blocks) * std::int64_t(sizeof(Partial)));
    unsigned before = 0;
    for_grad_tables(params, [&]<class Table>(const Table& table, bool last) {
        launch(statistics_kernel<Table>, table.grid(), step_block, 0, table, wanted, partials.as<Partial>(),
               before, last, step_ticket());
        before += table.grid();
    });
}

void step_scale_gradients(std::span<const ParamRef> params, const GradientFactor& factor) {
    for_grad_tables(params, [&]<class Table>(const Table& table, bool) {
        launch(scale_kernel<Table>, table.grid(), step_block, 0, table, factor);
    });
}

void step_clip_by_value(std::span<const ParamRef> params, double limit) {
    for_grad_tables(params, [&]<class Table>(const Table& table, bool) {
        launch(clip_by_value_kernel<Table>, table.grid(), step_block, 0, table, limit);
    });
}

void step_flag_nonfinite(std::span<const ParamRef> params, float* flags) {
    fill_zero(flags, params.size() * sizeof(float));
    for_grad_tables(params, [&]<class Table>(const Table& table, bool) {
        launch(flag_kernel<Table>, table.grid(), step_block, 0, table, flags);
    });
}

}  // namespace mezzo::cuda
