// The optimizer update: SGD, Adam and AdamW over all parameters and groups of a list, in one pass over each
// parameter's memory that also writes its 16-bit copy. Formulas and their order of evaluation are
// PyTorch's.
#include "cuda/step.h"
#include "cuda/step_table.cuh"
#include "kernels/functor_step.h"

namespace mezzo::cuda {
namespace {

namespace math = functors::math;

// Constants of one update in the compute type.
template <class C> struct SgdStep {
    C lr, weight_decay, momentum, gain;
    bool nesterov, first;

    __device__ SgdStep(const StepArgs& a, float step)
        : lr(static_cast<C>(a.lr)),
          weight_decay(static_cast<C>(a.weight_decay)),
          momentum(static_cast<C>(a.momentum)),
          gain(static_cast<C>(1 - a.dampening)),
          nesterov(a.nesterov),
          first(step == 0) {}

    // g += wd p; buffer = momentum buffer + (1 - dampening) g, at first g; nesterov: g += momentum buffer; p
    // -= lr g
    __device__ C update(C p, C g, C& buffer, C&) const {
        if (weight_decay != C(0)) g += weight_decay * p;
        if (momentum != C(0)) {
            buffer = first ? g : momentum * buffer + gain * g;
            g = nesterov ? g + momentum * buffer : buffer;
        }
        return p - lr * g;
    }
};

template <class C> struct AdamStep {
    C shrink, weight_decay, beta1, beta2, one_minus_beta1, one_minus_beta2, eps, step_size, root_correction2;

    // AdamW decays the parameter itself, Adam adds the decay to the gradient.
    __device__ AdamStep(const StepArgs& a, float step)
        : shrink(static_cast<C>(a.algorithm == Algorithm::adamw ? 1 - a.lr * a.weight_decay : 1.0)),
          weight_decay(static_cast<C>(a.algorithm == Algorithm::adam ? a.weight_decay : 0.0)),
          beta1(static_cast<C>(a.beta1)),
          beta2(static_cast<C>(a.beta2)),
          one_minus_beta1(static_cast<C>(1 - a.beta1)),
          one_minus_beta2(static_cast<C>(1 - a.beta2)),
          eps(static_cast<C>(a.eps)) {
        const double t = static_cast<double>(step) + 1;
        step_size = static_cast<C>(a.lr / (1 - math::pow(a.beta1, t)));
        root_correction2 = static_cast<C>(math::sqrt(1 - math::pow(a.beta2, t)));
    }

    // m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g g; p -= lr / (1 - b1^t) m / (sqrt(v) / sqrt(1 - b2^t) +
    // eps)
    __device__ C update(C p, C g, C& m, C& v) const {
        p *= shrink;
        g += weight_decay * p;
        m = beta1 * m + one_minus_beta1 * g;
        v = beta2 * v + one_minus_beta2 * g * g;
        return p - step_size * (m / (math::sqrt(v) / root_correction2 + eps));
    }
};

// Elements of a chunk one by one, of any dtypes.
template <class C, class Step>
__device__ void update_elements(const ParamRef& p, const Chunk& chunk, const Step& step, C multiplier) {
    C* const first_state = static_cast<C*>(p.state[0]);
    C* const second_state = static_cast<C*>(p.state[1]);
    for (std::int64_t i = chunk.begin + threadIdx.x; i < chunk.end; i += blockDim.x) {
        C m = first_state != nullptr ? first_state[i] : C(0),
          v = second_state != nullptr ? second_state[i] : C(0);
        const C g = load_as<C>(p.grad, p.grad_dtype, i) * multiplier;
        const C value = step.update(load_as<C>(p.param, p.dtype, i), g, m, v);
        store_as(p.param, p.dtype, i, value);
        if (first_state != nullptr) first_state[i] = m;
        if (second_state != nullptr) second_state[i] = v;
        if (p.copy16 != nullptr) store_as(p.copy16, p.copy16_dtype, i, value);
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

// float32 parameters, four elements at a time.
template <class G, class Step>
__device__ void update_vectors(const ParamRef& p, const Chunk& chunk, const Step& step, float multiplier) {
    const std::int64_t whole = chunk.begin + (chunk.end - chunk.begin) / step_width * step_width;
    for (std::int64_t i = chunk.begin + threadIdx.x * step_width; i < whole; i += blockDim.x * step_width) {
        StepVec<float> value = vector_at<float>(p.param, i), m{}, v{};
        const StepVec<G> grad = vector_at<G>(p.grad, i);
        if (p.state[0] != nullptr) m = vector_at<float>(p.state[0], i);
        if (p.state[1] != nullptr) v = vector_at<float>(p.state[1], i);
        for (int k = 0; k < step_width; ++k)
            value.v[k] = step.update(value.v[k], to_float(grad.v[k]) * multiplier, m.v[k], v.v[k]);
        vector_at<float>(p.param, i) = value;
        if (p.state[0] != nullptr) vector_at<float>(p.state[0], i) = m;
        if (p.state[1] != nullptr) vector_at<float>(p.state[1], i) = v;
        if (p.copy16 == nullptr) continue;
        if (p.copy16_dtype == Dtype::float16)
            store_copy16<float16_t>(p.copy16, i, value);
        else
            store_copy16<bfloat16_t>(p.copy16, i, value);
    }
    update_elements<float>(p, {chunk.index, whole, chunk.end}, step, multiplier);
}

__device__ bool aligned(const void* p, std::size_t element) {
    return reinterpret_cast<std::uintptr_t>(p) % (element * step_width) == 0;
}

__device__ bool takes_vectors(const ParamRef& p) {
    const std::size_t grad_size = p.grad_dtype == Dtype::float32 ? 4 : 2;
    return p.dtype == Dtype::float32 && p.grad_dtype != Dtype::float64 && aligned(p.param, 4) &&
           aligned(p.grad, grad_size) && aligned(p.state[0], 4) && aligned(p.state[1], 4) &&
           aligned(p.copy16, 2);
}

template <template <class> class Step>
__device__ void update_chunk(const ParamRef& p, const Chunk& chunk, const StepArgs& args,
                             const Step<float>& step, float multiplier) {
    if (args.maximize) multiplier = -multiplier;
    if (p.dtype == Dtype::float64) {
        const Step<double> exact(args, *p.step);
        update_elements<double>(p, chunk, exact, static_cast<double>(multiplier));
    } else if (!takes_vectors(p)) {
        update_elements<float>(p, chunk, step, multiplier);
    } else if (p.grad_dtype == Dtype::float32) {
        update_vectors<float>(p, chunk, step, multiplier);
    } else if (p.grad_dtype == Dtype::float16) {
        update_vectors<float16_t>(p, chunk, step, multiplier);
    } else {
        update_vectors<bfloat16_t>(p, chunk, step, multiplier);
    }
}

// A list of parameters and the options of the groups they are in.
template <int params, int groups_> struct UpdateTable : StepList<UpdateRef, params> {
    static constexpr int groups = groups_;
    int group_count;
    StepArgs group[groups];
};
using SmallUpdateTable = UpdateTable<48, 5>;
using LargeUpdateTable = UpdateTable<416, 26>;

struct UpdateControl {
    GradientScale scale;
    const float* found_inf;
    StepState* counts;
    bool last;  // of the launches of one update
    unsigned* ticket;
};

__device__ StepArgs args_of(const StepArgs& given) {
    StepArgs args = given;
    if (args.lr_on_device != nullptr) args.lr = *args.lr_on_device;
    return args;
}

// The bias corrections need double powers: one thread computes them for each parameter the block meets.
template <template <class> class Step, class Table>
__device__ void update_block(const Table& table, const GradientScale& scale) {
    MEZZO_SHARED(Step<float>, step, [1]);
    MEZZO_SHARED(StepArgs, args, [1]);
    const float multiplier = functors::factor_of(scale);
    int current = -1;
    for_chunks(table, [&](const Chunk& chunk) {
        const UpdateRef& entry = table.entries[chunk.index];
        if (chunk.index != current) {
            __syncthreads();
            if (threadIdx.x == 0) {
                args[0] = args_of(table.group[entry.group]);
                step[0] = Step<float>(args[0], *entry.param.step);
            }
            __syncthreads();
            current = chunk.index;
        }
        update_chunk<Step>(entry.param, chunk, args[0], step[0], multiplier);
    });
}

// The last block counts the step: no block reads a count after it has taken its ticket.
template <template <class> class Step, class Table>
__global__ void update_kernel(MEZZO_GRID_CONSTANT const Table table,
                              MEZZO_GRID_CONSTANT const UpdateControl control) {
    if (control.found_inf != nullptr && *control.found_inf != 0) {
        if (control.last && first_item() == 0) control.counts->skipped += 1;
        return;
    }
    update_block<Step>(table, control.scale);
    if (!last_block(control.ticket)) return;
    for (unsigned i = threadIdx.x; i < static_cast<unsigned>(table.count); i += blockDim.x)
        *table.entries[i].param.step += 1;
    if (control.last && threadIdx.x == 0) control.counts->applied += 1;
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
        entry.param = p;
        entry.group = static_cast<std::uint32_t>(at);
    }
    cutter.flush(table, true);
}

template <class Table>
void update_all(std::span<const ParamRef> params, std::span<const StepArgs> groups, UpdateControl control) {
    const bool sgd = groups.empty() || groups.front().algorithm == Algorithm::sgd;
    const auto kernel = sgd ? update_kernel<SgdStep, Table> : update_kernel<AdamStep, Table>;
    for_update_tables<Table>(params, groups, [&](const Table& table, bool last) {
        control.last = last;
        launch(kernel, table.grid(), step_block, 0, table, control);
    });
}

}  // namespace

void step_update(std::span<const ParamRef> params, std::span<const StepArgs> groups,
                 const GradientScale& scale, const float* found_inf, StepState* counts) {
    const UpdateControl control{scale, found_inf, counts, false, step_ticket()};
    const bool small =
        params.size() <= SmallUpdateTable::capacity && groups.size() <= SmallUpdateTable::groups;
    if (small)
        update_all<SmallUpdateTable>(params, groups, control);
    else
        update_all<LargeUpdateTable>(params, groups, control);
}

}  // namespace mezzo::cuda
