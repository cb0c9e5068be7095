// Gradients of layer_norm, rms_norm and dropout_add_layer_norm. g and x are read once. A block adds up the
// gradients of weight and bias over its rows in registers and leaves one part of each sum. Parts are few,
// because there are about as many blocks as multiprocessors. The last block of a group adds up the group's
// parts, and the last of those the groups', both in order, with several loads in flight. The rows of a block
// depend on the shape and the device only, so the sums are the same every time.
#include <algorithm>

#include "cuda/kernels.h"
#include "cuda/norm/norm.cuh"
#include "cuda/reduce/reduce.cuh"
#include "cuda/reduce/ticket.cuh"

namespace mezzo::cuda {
namespace {

// Packs per thread: of a block that covers a row, and of a warp with short or longer rows.
constexpr int block_packs = 4, short_packs = 4, long_packs = 8;
constexpr std::int64_t cols_of_warp(int packs) { return 32 * packs * pack; }

// Stores the gradient dx of a row, after adding an earlier gradient of x if there is one.
template <class D> struct Stored {
    D* dx;
    const D* waiting;               // none: null
    static constexpr int sums = 2;  // of weight and bias
    __device__ void store(std::int64_t i, float (&values)[pack]) const {
        if (waiting != nullptr) {
            float more[pack];
            load_pack(waiting, i, more);
            for (int k = 0; k < pack; ++k) values[k] += more[k];
        }
        store_pack(dx, i, values);
    }
};
// Stores the gradient of the residual, dz, and that of x, which is what dropout lets through. The latter is
// left in `values` for the gradient of x_bias.
template <class D> struct StoredTwice {
    D* dx;
    float* dz;
    Dropping dropping;
    static constexpr int sums = 3;  // of weight, bias and x_bias
    __device__ void store(std::int64_t i, float (&values)[pack]) const {
        store_pack(dz, i, values);
        dropping.apply(i, values);
        store_pack(dx, i, values);
    }
};

template <class C> struct NormGradArgs {
    AnyArray<C> weight;
    const void *mean, *rstd;  // C; mean: null for rms_norm
    std::int64_t rows, cols;
    __device__ C mean_of(std::int64_t row) const {
        return mean != nullptr ? static_cast<const C*>(mean)[row] : C(0);
    }
    __device__ C rstd_of(std::int64_t row) const { return static_cast<const C*>(rstd)[row]; }
};

// Stores the sums of one block, [wanted][cols], after those of the blocks before it.
template <class Team, int sums, int packs>
__device__ void store_parts(float (&total)[sums][packs][pack], float* parts, int wanted, std::int64_t cols) {
    float* const own = parts + std::int64_t(blockIdx.x) * wanted * cols;
    if constexpr (std::is_same_v<Team, BlockTeam>) {
        MEZZO_UNROLL
        for (int s = 0; s < sums; ++s) {
            MEZZO_UNROLL
            for (int p = 0; p < packs; ++p)
                if (s < wanted && pack_column<Team>(p) < cols)
                    store_pack(own, s * cols + pack_column<Team>(p), total[s][p]);
        }
    } else {
        MEZZO_SHARED(float, of_warps, [rows_block / 32][32 * packs * pack]);
        MEZZO_UNROLL
        for (int s = 0; s < sums; ++s) {
            MEZZO_UNROLL
            for (int p = 0; p < packs; ++p)
                for (int k = 0; k < pack; ++k)
                    of_warps[threadIdx.x / 32][pack_column<Team>(p) + k] = total[s][p][k];
            __syncthreads();
            for (std::int64_t j = threadIdx.x; s < wanted && j < cols; j += blockDim.x) {
                float sum = 0;
                for (int warp = 0; warp < int(rows_block / 32); ++warp) sum += of_warps[warp][j];
                own[s * cols + j] = sum;
            }
            __syncthreads();
        }
    }
}

// Outputs of the sums over rows: one vector each.
struct SumTargets {
    AnyArray<float> out[3];
};

// Partial sums of all blocks, [blocks][wanted][cols], and the tickets that select the block that adds them
// up: one for the groups, and one for the blocks of each group.
struct Parts {
    float* data;
    unsigned* tickets;
    int wanted, group;  // sums; blocks of a group
    std::int64_t cols;

    __device__ float* of_block(unsigned block) const { return data + std::int64_t(block) * wanted * cols; }
    // The sums of elements j .. j + 3 over `count` parts, `step` blocks apart from each other.
    __device__ void sum(unsigned first, unsigned step, unsigned count, std::int64_t j,
                        float (&total)[pack]) const {
        constexpr unsigned loads = 8;  // in flight
        load_pack(of_block(first), j, total);
        for (unsigned i = 1; i < count; i += loads) {
            float part[loads][pack];
            MEZZO_UNROLL
            for (unsigned u = 0; u < loads; ++u)
                if (i + u < count) load_pack(of_block(first + (i + u) * step), j, part[u]);
            MEZZO_UNROLL
            for (unsigned u = 0; u < loads; ++u)
                for (int k = 0; k < pack && i + u < count; ++k) total[k] += part[u][k];
        }
    }
};

// Adds the parts of all blocks. All threads of all blocks call it when the parts are stored.
__device__ void add_parts(const Parts& parts, const SumTargets& targets) {
    const unsigned group = unsigned(parts.group), groups = (gridDim.x + group - 1) / group;
    const unsigned own = blockIdx.x / group, first = own * group;
    const unsigned count = first + group < gridDim.x ? group : gridDim.x - first;
    if (!last_of(parts.tickets + 1 + own, count)) return;
    const std::int64_t all = parts.wanted * parts.cols;
    float total[pack];
    for (std::int64_t j = threadIdx.x * pack; j < all; j += blockDim.x * pack) {
        parts.sum(first, 1, count, j, total);
        store_pack(parts.of_block(first), j, total);
    }
    if (!last_of(parts.tickets, groups)) return;
    for (std::int64_t j = threadIdx.x * pack; j < all; j += blockDim.x * pack) {
        parts.sum(0, group, groups, j, total);
        for (int k = 0; k < pack; ++k) targets.out[j / parts.cols].store(j % parts.cols + k, total[k]);
    }
}

// With h = (x - mean) rstd and c = g weight: dx = rstd (c - mean(c) - h mean(c h)), without mean(c) for
// rms_norm.
template <class Team, int packs, class G, class X, class Result>
__global__ __launch_bounds__(std::is_same_v<Team, BlockTeam> ? longest_block : rows_block,
                             1) void norm_grad_kernel(const G* g, const X* x, Result result,
                                                      NormGradArgs<float> a, Parts parts,
                                                      const MEZZO_GRID_CONSTANT SumTargets targets) {
    float total[Result::sums][packs][pack] = {};
    for (std::int64_t row = Team::first_row(); row < a.rows; row += Team::row_step()) {
        const float mean = a.mean_of(row), rstd = a.rstd_of(row);
        float gradient[packs][pack], h[packs][pack];
        TwoSums<float> sums{0, 0};
        MEZZO_UNROLL
        for (int p = 0; p < packs; ++p) {  // all loads are in flight before the first is used
            const std::int64_t column = pack_column<Team>(p);
            if (column >= a.cols) continue;
            load_pack(g, row * a.cols + column, gradient[p]);
            load_pack(x, row * a.cols + column, h[p]);
        }
        MEZZO_UNROLL
        for (int p = 0; p < packs; ++p) {
            const std::int64_t column = pack_column<Team>(p);
            if (column >= a.cols) continue;
            float weight[pack];
            load_pack(a.weight, column, weight);
            for (int k = 0; k < pack; ++k) {
                h[p][k] = (h[p][k] - mean) * rstd;
                total[0][p][k] += gradient[p][k] * h[p][k];
                total[1][p][k] += gradient[p][k];
                gradient[p][k] *= weight[k];
                sums.first += gradient[p][k];
                sums.second += gradient[p][k] * h[p][k];
            }
        }
        sums = Team::reduce(sums, TwoSums<float>{0, 0}, AddTwo());
        const float offset = a.mean != nullptr ? sums.first / static_cast<float>(a.cols) : 0.0f;
        const float along = sums.second / static_cast<float>(a.cols);
        MEZZO_UNROLL
        for (int p = 0; p < packs; ++p) {
            const std::int64_t column = pack_column<Team>(p);
            if (column >= a.cols) continue;
            for (int k = 0; k < pack; ++k)
                gradient[p][k] = rstd * (gradient[p][k] - offset - h[p][k] * along);
            result.store(row * a.cols + column, gradient[p]);
            if constexpr (Result::sums > 2)
                for (int k = 0; k < pack; ++k) total[2][p][k] += gradient[p][k];
        }
    }
    store_parts<Team>(total, parts.data, parts.wanted, a.cols);
    add_parts(parts, targets);
}

// Blocks of a group, so that the last of a group adds up about as many parts as there are groups.
int group_of(unsigned blocks) {
    int group = 1;
    while (unsigned(group) * unsigned(group) < blocks) group *= 2;
    return group;
}

template <class G, class X, class Result> bool norm_grad_packs(const Tensor& g, const Tensor& x,
                                                               const Result& result,
                                                               const NormGradArgs<float>& a, Out sums) {
    const bool warp = a.cols <= cols_of_warp(long_packs);
    const int wanted = static_cast<int>(sums.size());
    const unsigned block = warp ? rows_block : block_over(a.cols);
    // A block takes eight rows at once, or four one after the other, so that parts are a fraction of x.
    const std::int64_t rows_per_block = warp ? rows_block / 32 : 4;
    const std::int64_t blocks = (a.rows + rows_per_block - 1) / rows_per_block;
    // About 256 threads per multiprocessor. At least one block, so that the sums of no rows are written, too.
    const std::int64_t most = grid_limit(2048) * std::max(1u, rows_block / block);
    const auto grid = static_cast<unsigned>(std::max<std::int64_t>(1, std::min(blocks, most)));
    const Scratch memory(x.device(), std::int64_t(grid) * wanted * a.cols * 4);
    const int group = group_of(grid);
    const Tickets tickets(1 + int(grid) / group + 1);
    SumTargets targets{};
    for (int i = 0; i < wanted; ++i) targets.out[i] = any_of<float>(sums[static_cast<std::size_t>(i)]);
    const auto kernel = !warp ? norm_grad_kernel<BlockTeam, block_packs, G, X, Result>
                        : a.cols <= cols_of_warp(short_packs)
                            ? norm_grad_kernel<WarpTeam, short_packs, G, X, Result>
                            : norm_grad_kernel<WarpTeam, long_packs, G, X, Result>;
    launch(kernel, grid, block, 0, static_cast<const G*>(raw(g)), static_cast<const X*>(raw(x)), result, a,
           Parts{memory.as<float>(), tickets.get(), wanted, group, a.cols}, targets);
    return true;
}

// Any dtypes, any number of columns.
template <class Team, class C> __global__ void norm_grad_any_kernel(AnyArray<C> g, AnyArray<C> x,
                                                                    AnyArray<C> waiting, AnyArray<C> dx,
                                                                    NormGradArgs<C> a) {
    for (std::int64_t row = Team::first_row(); row < a.rows; row += Team::row_step()) {
        const C mean = a.mean_of(row), rstd = a.rstd_of(row);
        const std::int64_t base = row * a.cols;
        BlockedSum<C> first, second;
        for (std::int64_t j = Team::rank(); j < a.cols; j += Team::size()) {
            const C c = g.load(base + j) * a.weight.load(j);
            first.add(c);
            second.add(c * ((x.load(base + j) - mean) * rstd));
        }
        const TwoSums<C> sums =
            Team::reduce(TwoSums<C>{first.get(), second.get()}, TwoSums<C>{0, 0}, AddTwo());
        const C offset = a.mean != nullptr ? sums.first / static_cast<C>(a.cols) : C(0);
        const C along = sums.second / static_cast<C>(a.cols);
        for (std::int64_t j = Team::rank(); j < a.cols; j += Team::size()) {
            const C h = (x.load(base + j) - mean) * rstd;
            C value = rstd * (g.load(base + j) * a.weight.load(j) - offset - h * along);
            if (waiting.p != nullptr) value += waiting.load(base + j);
            dx.store(base + j, value);
        }
    }
}

// Terms of the weight's gradient for a column sum.
template <class C> struct LoadWeightTerm {
    AnyArray<C> g, x;
    NormGradArgs<C> a;
    __device__ C operator()(std::int64_t offset, std::int64_t) const {
        const std::int64_t row = offset / a.cols;
        return g.load(offset) * ((x.load(offset) - a.mean_of(row)) * a.rstd_of(row));
    }
};

template <class C> void norm_grad_any(const Tensor& g, const Tensor& x, const Tensor& waiting,
                                      const Tensor& dx, const NormGradArgs<C>& a, const Tensor& of_weight,
                                      const Tensor& of_bias) {
    const AnyArray<C> more = waiting.defined() ? any_of<C>(waiting) : AnyArray<C>{nullptr, float32};
    with_row_team({a.rows, a.cols, 1}, [&](auto team, unsigned grid, unsigned block) {
        launch(norm_grad_any_kernel<decltype(team), C>, grid, block, 0, any_of<C>(g), any_of<C>(x), more,
               any_of<C>(dx), a);
    });
    const ReduceShape columns = reduce_shape(x.shape(), Axes{0});
    reduce(LoadWeightTerm<C>{any_of<C>(g), any_of<C>(x), a}, SumOp<C>{1}, columns, of_weight);
    if (of_bias.defined()) reduce(LoadElement<AnyArray<C>>{any_of<C>(g)}, SumOp<C>{1}, columns, of_bias);
}

template <class G, class X> bool plain_packs(const Tensor& g, const Tensor& x, const Tensor& waiting,
                                             const Tensor& dx, const NormGradArgs<float>& a, Out sums) {
    if (g.dtype() != dtype_of<G>() || x.dtype() != dtype_of<X>() || dx.dtype() != dtype_of<X>()) return false;
    const X* const more = waiting.defined() ? static_cast<const X*>(raw(waiting)) : nullptr;
    return norm_grad_packs<G, X>(g, x, Stored<X>{static_cast<X*>(raw(dx)), more}, a, sums);
}

template <class C>
NormGradArgs<C> grad_args(const Tensor& x, const Tensor& weight, const void* mean, const Tensor& rstd) {
    return {any_of<C>(weight), mean, raw(rstd), x.shape()[0], x.shape()[1]};
}

bool grad_packs_fit(In in, Out out, std::int64_t cols) {
    return cols <= longest_in_registers && packs_fit(cols, in.first(3)) && packs_fit(cols, out.first(1));
}

void norm_grad(In in, Out out, bool centred) {
    use_device_of(out[0]);
    const Tensor &g = in[0], &x = in[1], &rstd = in[in.size() - 2], &waiting = in.back(), &dx = out[0];
    const void* const mean = centred ? raw(in[3]) : nullptr;
    const Tensor of_bias = centred ? out[2] : Tensor();
    if (compute_kind({x.dtype(), dx.dtype()}) == ComputeKind::float64)
        return norm_grad_any(g, x, waiting, dx, grad_args<double>(x, in[2], mean, rstd), out[1], of_bias);
    const auto a = grad_args<float>(x, in[2], mean, rstd);
    const Out sums = out.subspan(1);
    if (a.cols > 0 && grad_packs_fit(in, out, a.cols) && packs_fit(waiting) &&
        (plain_packs<float, float>(g, x, waiting, dx, a, sums) ||
         plain_packs<float16_t, float16_t>(g, x, waiting, dx, a, sums) ||
         plain_packs<bfloat16_t, bfloat16_t>(g, x, waiting, dx, a, sums) ||
         plain_packs<float, float16_t>(g, x, waiting, dx, a, sums) ||
         plain_packs<float, bfloat16_t>(g, x, waiting, dx, a, sums)))
        return;
    norm_grad_any(g, x, waiting, dx, a, out[1], of_bias);
}

template <class G, class D> bool dropped_packs(In in, const kernels::DropoutAddLayerNorm& at, Out out) {
    if (in[0].dtype() != dtype_of<G>() || out[0].dtype() != dtype_of<D>()) return false;
    const StoredTwice<D> result{static_cast<D*>(raw(out[0])), static_cast<float*>(raw(out[1])), dropping(at)};
    return norm_grad_packs<G, float>(in[0], in[1], result, grad_args<float>(in[1], in[2], raw(in[3]), in[4]),
                                     out.subspan(2));
}

// Several launches: dz, dropout, conversion, column sum.
template <class C> void dropped_grad_any(In in, const kernels::DropoutAddLayerNorm& at, Out out) {
    norm_grad_any(in[0], in[1], {}, out[1], grad_args<C>(in[1], in[2], raw(in[3]), in[4]), out[2], out[3]);
    const Tensor dropped = out[0].dtype() == dtype_of<C>()
                               ? out[0]
                               : empty(out[0].shape(), {.dtype = dtype_of<C>(), .device = out[0].device()});
    cuda_kernels::dropout(In(&out[1], 1), {.p = at.dropout_p, .stream = at.stream}, Out(&dropped, 1));
    if (dropped.impl() != out[0].impl()) cuda_kernels::cast(In(&dropped, 1), {}, out.first(1));
    if (out.size() > 4) cuda_kernels::column_sum(In(&dropped, 1), {}, out.subspan(4, 1));
}

}  // namespace
}  // namespace mezzo::cuda

namespace mezzo::cuda_kernels {

using namespace mezzo::cuda;

void layer_norm_grad(In in, const kernels::LayerNormGrad&, Out out) { norm_grad(in, out, true); }
void rms_norm_grad(In in, const kernels::RmsNormGrad&, Out out) { norm_grad(in, out, false); }

void dropout_add_layer_norm_grad(In in, const kernels::DropoutAddLayerNormGrad& at, Out out) {
    use_device_of(out[0]);
    if (compute_kind({in[1].dtype(), out[0].dtype()}) == ComputeKind::float64)
        return dropped_grad_any<double>(in, at.forward, out);
    const std::int64_t cols = in[1].shape()[1];
    if (cols > 0 && in[1].dtype() == float32 && grad_packs_fit(in, out, cols) &&
        packs_fit(cols, out.subspan(1, 1)) &&
        (dropped_packs<float, float>(in, at.forward, out) ||
         dropped_packs<float, float16_t>(in, at.forward, out) ||
         dropped_packs<float, bfloat16_t>(in, at.forward, out) ||
         dropped_packs<float16_t, float16_t>(in, at.forward, out) ||
         dropped_packs<bfloat16_t, bfloat16_t>(in, at.forward, out)))
        return;
    dropped_grad_any<float>(in, at.forward, out);
}

constinit const KernelList norm_grad_list =
    kernel_list<layer_norm_grad, rms_norm_grad, dropout_add_layer_norm_grad>;

}  // namespace mezzo::cuda_kernels
