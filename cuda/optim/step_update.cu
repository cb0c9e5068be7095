// The optimizer update: applies an optimizer of kernels/optimizers.h to all parameters and groups of a list,
// in one pass over each parameter's memory that also writes its 16-bit copy.
#include <algorithm>

#include "cuda/optim/narrow_update.cuh"
#include "cuda/optim/step.h"

namespace mezzo::cuda {
namespace {

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

__device__ bool takes_vectors(const UpdateRef& p) {
    const std::size_t grad_size = p.grad_dtype == Dtype::float32 ? 4 : 2;
    bool fits = params_fit_vectors(p) && p.grad_dtype != Dtype::float64 && aligned(p.grad, grad_size);
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

template <class Row>
__device__ void update_chunks(const NarrowRef& p, const Chunks& chunks, const typename Row::Options& options,
                              const functors::Prepared<Row, float>& prepared, float multiplier) {
    if (p.narrow)
        update_narrow_chunks(p, chunks, prepared, multiplier);
    else
        update_chunks(static_cast<const UpdateRef&>(p), chunks, options, prepared, multiplier);
}

// A list of parameters and the options of the groups they are in.
template <class Ref, int params, int groups_> struct UpdateTable : StepList<Ref, params> {
    static constexpr int groups = groups_;
    int group_count;
    StepArgs group[groups];
};
using SmallUpdateTable = UpdateTable<UpdateRef, 48, 5>;
using LargeUpdateTable = UpdateTable<UpdateRef, large_parameters ? 416 : SmallUpdateTable::capacity,
                                     large_parameters ? 26 : SmallUpdateTable::groups>;
using NarrowTable = UpdateTable<NarrowRef, large_parameters ? 340 : 38, large_parameters ? 26 : 5>;

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
        const auto& entry = table.entries[chunks.index];
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
        const auto& entry = table.entries[i];
        functors::count_update<Row>(functors::options_of<Row>(table.group[entry.group]), entry.step);
    }
    if (control.last && threadIdx.x == 0) control.counts->applied += 1;
}

bool has_narrow_state(const ParamRef& p) {
    bool narrow = false;
    for (const StateFormat format : p.format) narrow = narrow || format != StateFormat::wide;
    return narrow;
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

void fill_entry(NarrowRef& entry, const ParamRef& p, int group) {
    fill_entry(static_cast<UpdateRef&>(entry), p, group);
    entry.first = p.first;
    entry.number = p.number;
    for (int k = 0; k < max_optimizer_state; ++k) entry.format[k] = p.format[k];
    entry.narrow = has_narrow_state(p);
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
        auto& entry = cutter.append(p, table);
        fill_entry(entry, p, at);
    }
    cutter.flush(table, true);
}

template <class Table> using UpdateKernel = void (*)(Table, UpdateControl);
// Null: no state of the optimizer can be in the table's formats.
template <class Row, class Table> constexpr UpdateKernel<Table> kernel_of() {
    if constexpr (!std::is_same_v<Table, NarrowTable> || requires { Row::signed_state; })
        return update_kernel<Row, Table>;
    return nullptr;
}
template <class Table> constexpr UpdateKernel<Table> kernels[] = {
#define MEZZO_OPTIMIZER(name) kernel_of<functors::name##Row, Table>(),
#include "mezzo/optimizers.def"
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
    if (std::any_of(params.begin(), params.end(), has_narrow_state))
        update_all<NarrowTable>(params, groups, control);
    else if (small)
        update_all<SmallUpdateTable>(params, groups, control);
    else
        update_all<LargeUpdateTable>(params, groups, control);
}

}  // namespace mezzo::cuda
