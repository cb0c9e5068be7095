// The optimizer update: applies an optimizer of kernels/optimizers.h to all parameters and groups of a list,
// in one pass over each parameter's memory that also writes its 16-bit copy.
#include "cuda/optim/step.h"
#include "cuda/optim/step_table.cuh"
#include "kernels/functor_step.h"
#include "kernels/narrow_state.h"

namespace mezzo::cuda {
namespace {

template <class C> __device__ C load_param(const UpdateRef& p, std::int64_t i) {
    if (!p.split) return load_as<C>(p.param, p.dtype, i);
    const auto *high = static_cast<const std::uint16_t*>(p.param),
               *low = static_cast<const std::uint16_t*>(p.copy16);
    return static_cast<C>(functors::number_of(functors::joined(high[i], low[i])));
}
// Stores a new value in the parameter and, if it has one, in its 16-bit copy.
template <class C> __device__ void store_param(const UpdateRef& p, std::int64_t i, C value) {
    if (p.split) {
        const auto halves = functors::halves_of(functors::bits_of(static_cast<float>(value)));
        static_cast<std::uint16_t*>(p.param)[i] = halves.high;
        static_cast<std::uint16_t*>(p.copy16)[i] = halves.low;
        return;
    }
    store_as(p.param, p.dtype, i, value);
    if (p.copy16 != nullptr) store_as(p.copy16, p.copy16_dtype, i, value);
}

// Elements one by one, of any dtypes.
template <class Row, class C> __device__ void update_elements(const UpdateRef& p, const Chunks& chunks,
                                                              const functors::Prepared<Row, C>& prepared,
                                                              C multiplier) {
    for (std::int64_t i = chunks.begin + threadIdx.x; i < chunks.end; i += blockDim.x) {
        C s[max_optimizer_state];
        for (int k = 0; k < max_optimizer_state; ++k)
            s[k] = p.state[k] != nullptr ? static_cast<const C*>(p.state[k])[i] : C(0);
        const C g = load_as<C>(p.grad, p.grad_dtype, i) * multiplier;
        store_param(p, i, prepared.formula.update(load_param<C>(p, i), g, s, prepared.way));
        for (int k = 0; k < max_optimizer_state; ++k)
            if (p.state[k] != nullptr) static_cast<C*>(p.state[k])[i] = s[k];
    }
}

constexpr int step_width = 4;  // elements per thread and access
template <class T> using StepVec = Vec<T, step_width>;

template <class T> __device__ StepVec<T>& vector_at(void* p, std::int64_t i) {
    return *reinterpret_cast<StepVec<T>*>(static_cast<T*>(p) + i);
}

template <class T> __device__ void store_copy16(void* copy16, std::int64_t i, const StepVec<float>& value) {
    StepVec<T> rounded;
    for (int k = 0; k < step_width; ++k) rounded.v[k] = from_float<T>(value.v[k]);
    vector_at<T>(copy16, i) = rounded;
}

__device__ StepVec<float> load_params(const UpdateRef& p, std::int64_t i) {
    if (!p.split) return vector_at<float>(p.param, i);
    const StepVec<std::uint16_t> high = vector_at<std::uint16_t>(p.param, i),
                                 low = vector_at<std::uint16_t>(p.copy16, i);
    StepVec<float> value;
    for (int k = 0; k < step_width; ++k)
        value.v[k] = functors::number_of(functors::joined(high.v[k], low.v[k]));
    return value;
}
__device__ void store_params(const UpdateRef& p, std::int64_t i, const StepVec<float>& value) {
    if (p.split) {
        StepVec<std::uint16_t> high, low;
        for (int k = 0; k < step_width; ++k) {
            const auto halves = functors::halves_of(functors::bits_of(value.v[k]));
            high.v[k] = halves.high;
            low.v[k] = halves.low;
        }
        vector_at<std::uint16_t>(p.param, i) = high;
        vector_at<std::uint16_t>(p.copy16, i) = low;
        return;
    }
    vector_at<float>(p.param, i) = value;
    if (p.copy16 == nullptr) return;
    if (p.copy16_dtype == Dtype::float16)
        store_copy16<float16_t>(p.copy16, i, value);
    else
        store_copy16<bfloat16_t>(p.copy16, i, value);
}

// Parameters of float32, or of two halves, four elements at a time.
template <class G, class Row> __device__ void update_vectors(const UpdateRef& p, const Chunks& chunks,
                                                             const functors::Prepared<Row, float>& prepared,
                                                             float multiplier) {
    const std::int64_t whole = chunks.begin + (chunks.end - chunks.begin) / step_width * step_width;
    for (std::int64_t i = chunks.begin + threadIdx.x * step_width; i < whole; i += blockDim.x * step_width) {
        StepVec<float> value = load_params(p, i), state[max_optimizer_state] = {};
        const StepVec<G> grad = vector_at<G>(p.grad, i);
        for (int k = 0; k < max_optimizer_state; ++k)
            if (p.state[k] != nullptr) state[k] = vector_at<float>(p.state[k], i);
        for (int j = 0; j < step_width; ++j) {
            float s[max_optimizer_state];
            for (int k = 0; k < max_optimizer_state; ++k) s[k] = state[k].v[j];
            const float g = to_float(grad.v[j]) * multiplier;
            value.v[j] = prepared.formula.update(value.v[j], g, s, prepared.way);
            for (int k = 0; k < max_optimizer_state; ++k) state[k].v[j] = s[k];
        }
        store_params(p, i, value);
        for (int k = 0; k < max_optimizer_state; ++k)
            if (p.state[k] != nullptr) vector_at<float>(p.state[k], i) = state[k];
    }
    update_elements<Row, float>(p, {chunks.index, whole, chunks.end}, prepared, multiplier);
}

__device__ bool aligned(const void* p, std::size_t element) {
    return reinterpret_cast<std::uintptr_t>(p) % (element * step_width) == 0;
}

__device__ bool takes_vectors(const UpdateRef& p) {
    const std::size_t grad_size = p.grad_dtype == Dtype::float32 ? 4 : 2;
    bool fits = (p.dtype == Dtype::float32 || p.split) && p.grad_dtype != Dtype::float64 &&
                aligned(p.param, p.split ? 2 : 4) && aligned(p.grad, grad_size) && aligned(p.copy16, 2);
    for (int k = 0; k < max_optimizer_state; ++k) fits = fits && aligned(p.state[k], 4);
    return fits;
}

template <class Row>
__device__ void update_chunks(const UpdateRef& p, const Chunks& chunks, const typename Row::Options& options,
                              const functors::Prepared<Row, float>& prepared, float multiplier) {
    if (prepared.maximize) multiplier = -multiplier;
    if (p.dtype == Dtype::float64) {
        const functors::Prepared<Row, double> exact(options, p.step);
        update_elements<Row, double>(p, chunks, exact, static_cast<double>(multiplier));
    } else if (!takes_vectors(p)) {
        update_elements<Row, float>(p, chunks, prepared, multiplier);
    } else if (p.grad_dtype == Dtype::float32) {
        update_vectors<float>(p, chunks, prepared, multiplier);
    } else if (p.grad_dtype == Dtype::float16) {
        update_vectors<float16_t>(p, chunks, prepared, multiplier);
    } else {
        update_vectors<bfloat16_t>(p, chunks, prepared, multiplier);
    }
}

// A list of parameters and the options of the groups they are in.
template <int params, int groups_> struct UpdateTable : StepList<UpdateRef, params> {
    static constexpr int groups = groups_;
    int group_count;
    StepArgs group[groups];
};
using SmallUpdateTable = UpdateTable<48, 5>;
using LargeUpdateTable = UpdateTable<large_parameters ? 416 : SmallUpdateTable::capacity,
                                     large_parameters ? 26 : SmallUpdateTable::groups>;

struct UpdateControl {
    GradientFactor factor;
    const float* found_inf;
    StepState* counts;
    bool last;  // of the launches of one update
    unsigned* ticket;
};

// The constants of the formulas need powers in double, so one thread computes them for each parameter of the
// block.
template <class Row, class Table>
__device__ void update_block(const Table& table, const GradientFactor& factor) {
    using Options = typename Row::Options;
    using PreparedFloat = functors::Prepared<Row, float>;
    MEZZO_SHARED(PreparedFloat, prepared, [1]);
    MEZZO_SHARED(Options, options, [1]);
    const float multiplier = functors::value_of(factor);
    for_chunks(table, [&](const Chunks& chunks) {
        const UpdateRef& entry = table.entries[chunks.index];
        __syncthreads();
        if (threadIdx.x == 0) {
            options[0] = functors::options_of<Row>(table.group[entry.group]);
            prepared[0] = PreparedFloat(options[0], entry.step);
        }
        __syncthreads();
        update_chunks<Row>(entry, chunks, options[0], prepared[0], multiplier);
    });
}

// The last block counts the step: every block takes its ticket after it has read the counts.
template <class Row, class Table>
__global__ void update_kernel(MEZZO_GRID_CONSTANT const Table table,
                              MEZZO_GRID_CONSTANT const UpdateControl control) {
    if (control.found_inf != nullptr && *control.found_inf != 0) {
        if (control.last && first_item() == 0) control.counts->skipped += 1;
        return;
    }
    update_block<Row>(table, control.factor);
    if (!last_block(control.ticket)) return;
    for (unsigned i = threadIdx.x; i < static_cast<unsigned>(table.count); i += blockDim.x) {
        const UpdateRef& entry = table.entries[i];
        functors::count_update<Row>(functors::options_of<Row>(table.group[entry.group]), entry.step);
    }
    if (control.last && threadIdx.x == 0) control.counts->applied += 1;
}

void fill_entry(UpdateRef& entry, const ParamRef& p, int group) {
    entry.param = p.param;
    entry.grad = p.grad;
    for (int k = 0; k < max_optimizer_state; ++k) entry.state[k] = p.state[k];
    entry.copy16 = p.low16 != nullptr ? p.low16 : p.copy16;
    entry.split = p.low16 != nullptr;
    entry.numel = p.numel;
    entry.step = p.step;
    entry.group = static_cast<std::uint8_t>(group & 0x7f);
    entry.dtype = p.dtype;
    entry.grad_dtype = p.grad_dtype;
    entry.copy16_dtype = p.copy16_dtype;
}

template <class Table, class Run>
void for_update_tables(std::span<const ParamRef> params, std::span<const StepArgs> groups, const Run& run) {
    Table table{};
    const auto launch_table = [&](bool last) { run(static_cast<const Table&>(table), last); };
    Cutter<Table, decltype(launch_table)> cutter(launch_table);
    for (const ParamRef& p : params) {
        const StepArgs& args = groups[p.group];
        const auto same = [&](int at) { return at < table.group_count && table.group[at] == args; };
        int at = 0;
        while (at < table.group_count && !same(at)) ++at;
        if (at == Table::groups) {
            cutter.flush(table, false);
            at = table.group_count = 0;
        }
        if (at == table.group_count) table.group[table.group_count++] = args;
        UpdateRef& entry = cutter.append(p, table);
        fill_entry(entry, p, at);
    }
    cutter.flush(table, true);
}

template <class Table> using UpdateKernel = void (*)(Table, UpdateControl);
template <class Table> constexpr UpdateKernel<Table> kernels[] = {
#define MEZZO_OPTIMIZER(name) update_kernel<functors::name##Row, Table>,
    MEZZO_OPTIMIZERS(MEZZO_OPTIMIZER)
#undef MEZZO_OPTIMIZER
};

template <class Table>
void update_all(std::span<const ParamRef> params, std::span<const StepArgs> groups, UpdateControl control) {
    const OptimizerId optimizer = groups.empty() ? OptimizerId{} : groups.front().optimizer;
    for_update_tables<Table>(params, groups, [&](const Table& table, bool last) {
        control.last = last;
        launch(kernels<Table>[static_cast<int>(optimizer)], table.grid(), step_block, 0, table, control);
    });
}

}  // namespace

void step_update(std::span<const ParamRef> params, std::span<const StepArgs> groups,
                 const GradientFactor& factor, const float* found_inf, StepState* counts) {
    const UpdateControl control{factor, found_inf, counts, false, step_ticket()};
    const bool small =
        params.size() <= SmallUpdateTable::capacity && groups.size() <= SmallUpdateTable::groups;
    if (small)
        update_all<SmallUpdateTable>(params, groups, control);
    else
        update_all<LargeUpdateTable>(params, groups, control);
}

}  // namespace mezzo::cuda
