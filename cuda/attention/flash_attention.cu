// scaled_dot_product_attention on Tensor Cores: float16 and bfloat16, dim 32, 64 and 128.
//
// Operations per (query, key) pair that is not skipped: 2 dim multiply-adds and one exponential. Memory: q,
// y, maxima and sums once; k and v once per 128 queries, mostly from the L2 cache. Shared memory per block:
// 30 KiB (dim 32), 54 KiB (64), 68 KiB (128).
#include "cuda/attention/flash_attention.cuh"

namespace mezzo::cuda {
namespace {

// 16-row tiles per warp, and rows per block.
constexpr int tiles = 2, rows = tiles * 16 * flash_warps;
// Keys per step. For 128 dimensions 64 keys do not fit into the registers.
template <int dim> constexpr int keys = dim == 128 ? 32 : 64;

template <int dim> std::size_t shared_bytes() {
    return (rows + flash_stages_on_device() * 2 * keys<dim>)*pitch<dim> * sizeof(float16_t);
}

// Sets the scores of hidden pairs to -inf in a warp's tile, which begins at query i0 and key j0.
template <int columns> __device__ void hide(float (&s)[tiles][columns / 8][4], const Attention& a,
                                            const FlashPlace& at, int i0, int j0) {
    if (a.mask.p == nullptr && j0 + columns <= a.key && !(a.causal && j0 + columns - 1 > i0 + a.diagonal()))
        return;
    MEZZO_UNROLL
    for (int i = 0; i < tiles; ++i) {
        MEZZO_UNROLL
        for (int j = 0; j < columns / 8; ++j) {
            MEZZO_UNROLL
            for (int e = 0; e < 4; ++e) {
                const int query = i0 + i * 16 + e / 2 * 8 + lane_row(),
                          key = j0 + j * 8 + e % 2 + lane_column();
                if (!a.visible(at.b, at.h, query, key)) s[i][j][e] = -INFINITY;
            }
        }
    }
}

// State of a lane's rows over the keys so far: the greatest score, and the lane's share of the sum of
// exp2(scale (score - max)).
struct RowState {
    float max[tiles][2], sum[tiles][2];

    __device__ RowState() {
        MEZZO_UNROLL
        for (int i = 0; i < tiles; ++i) {
            max[i][0] = max[i][1] = -INFINITY;
            sum[i][0] = sum[i][1] = 0;
        }
    }
};

// Turns scores into weights exp2(scale (score - max)) and rescales the sums and results of earlier keys to
// the new maxima.
template <int groups, int dim_groups>
__device__ void online_softmax(float (&s)[tiles][groups][4], RowState& state,
                               float (&result)[tiles][dim_groups][4], float scale) {
    MEZZO_UNROLL
    for (int i = 0; i < tiles; ++i) {
        MEZZO_UNROLL
        for (int half = 0; half < 2; ++half) {
            float &sum = state.sum[i][half], &old = state.max[i][half], max = old;
            MEZZO_UNROLL
            for (int j = 0; j < groups; ++j)
                max = fmaxf(max, fmaxf(s[i][j][2 * half], s[i][j][2 * half + 1]));
            max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 1));
            max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 2));
            const float base = max == -INFINITY ? 0.0f : max;  // every key so far is hidden
            const float shrink = exp2_approximate((old - base) * scale);
            old = max;
            sum *= shrink;
            MEZZO_UNROLL
            for (int j = 0; j < groups; ++j) {
                MEZZO_UNROLL
                for (int e = 2 * half; e < 2 * half + 2; ++e) {
                    s[i][j][e] = exp2_approximate((s[i][j][e] - base) * scale);
                    sum += s[i][j][e];
                }
            }
            MEZZO_UNROLL
            for (int j = 0; j < dim_groups; ++j) {
                result[i][j][2 * half] *= shrink;
                result[i][j][2 * half + 1] *= shrink;
            }
        }
    }
}

// Sets dropped weights to 0.
template <int groups>
__device__ void drop(float (&s)[tiles][groups][4], const Attention& a, const FlashPlace& at, int i0, int j0) {
    if (a.dropout.threshold == 0) return;
    MEZZO_UNROLL
    for (int i = 0; i < tiles; ++i) {
        MEZZO_UNROLL
        for (int half = 0; half < 2; ++half) {
            const std::uint64_t row = a.weight(at.bh, i0 + i * 16 + half * 8 + lane_row());
            MEZZO_UNROLL
            for (int word = 0; word < groups / 4; ++word) {
                const std::uint32_t kept =
                    kept_in_row(a.dropout, row + static_cast<std::uint64_t>(j0 + word * 32));
                MEZZO_UNROLL
                for (int n = 0; n < 8; ++n) {
                    const bool keep = kept >> (n / 2 * 8 + n % 2 + lane_column()) & 1u;
                    float& weight = s[i][word * 4 + n / 2][2 * half + n % 2];
                    weight = keep ? weight : 0.0f;
                }
            }
        }
    }
}

// Stores maxima and sums, and turns the sums into the factors of the results.
__device__ void finish(RowState& state, const Attention& a, const FlashPlace& at, int i0, float* maxima,
                       float* totals) {
    MEZZO_UNROLL
    for (int i = 0; i < tiles; ++i) {
        MEZZO_UNROLL
        for (int half = 0; half < 2; ++half) {
            float& sum = state.sum[i][half];
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            const int row = i0 + i * 16 + half * 8 + lane_row();
            if (maxima != nullptr && lane_column() == 0 && row < a.query) {
                maxima[at.bh * a.query + row] = state.max[i][half];
                totals[at.bh * a.query + row] = sum;
            }
            sum = sum == 0 ? 0.0f : static_cast<float>(a.dropout.scale) / sum;
        }
    }
}

// Computes row i of the result anew, from its largest score and the factor that finish() left.
template <class T, int dim> __device__ void redo_row(const Attention& a, const FlashPlace& at,
                                                     const HeadRows& q, const HeadRows& k, const HeadRows& v,
                                                     const HeadRows& y, int i, float max, float factor) {
    const FlashOperand<T> queries(q, at.b, at.h, a.query), keys_in(k, at.b, at.h, a.key),
        values(v, at.b, at.h, a.key);
    const LaneRow<T, dim> query(queries, i);
    LaneRow<T, dim> result;
    const float base = max == -INFINITY ? 0.0f : max, scale = static_cast<float>(a.scale) * log2_e;
    for (int j = 0; j < a.key; ++j) {
        if (!a.visible(at.b, at.h, i, j)) continue;
        if (!a.dropout.kept(a.weight(at.bh, i) + static_cast<std::uint64_t>(j))) continue;
        const float score = query.dot(LaneRow<T, dim>(keys_in, j));
        result.add(exp2_approximate((score - base) * scale), values, j);
    }
    result.store(y, at, i, factor);
}

template <class T, int dim> __global__ void __launch_bounds__(flash_threads)
    flash_kernel(Attention a, HeadRows q, HeadRows k, HeadRows v, HeadRows y, float* maxima, float* totals) {
    constexpr int step = keys<dim>, stage_size = 2 * step * pitch<dim>;
    MEZZO_DYN_SHARED(T, query_tile);
    T* const stages = query_tile + rows * pitch<dim>;  // [flash_stages][keys, values][step][pitch]
    const int warp_first = static_cast<int>(threadIdx.x / 32) * tiles * 16;
    for (std::int64_t index = blockIdx.x; index < FlashPlace::count(a, a.query, rows); index += gridDim.x) {
        const FlashPlace at(a, index, a.query, rows, a.causal);
        const FlashOperand<T> queries(q, at.b, at.h, a.query), keys_in(k, at.b, at.h, a.key),
            values(v, at.b, at.h, a.key);
        const auto fetch = [&](int stage, int j0) {
            T* const to = stages + stage * stage_size;
            keys_in.template fetch<dim, step>(to, j0, a, at);
            values.template fetch<dim, step>(to + step * pitch<dim>, j0, a, at);
            copy_async_commit();
        };
        const int end = static_cast<int>(a.keys_end(at.first, rows));
        const int i0 = at.first + warp_first;
        float result[tiles][dim / 8][4] = {};
        RowState state;
        __syncthreads();  // all threads have read the tiles of the previous index
        queries.template fetch<dim, rows>(query_tile, at.first);
        fetch(0, 0);
        for (int j0 = 0, stage = 0; j0 < end; j0 += step, stage = (stage + 1) % flash_stages) {
            copy_async_wait<0>();
            __syncthreads();  // all threads see this stage, and none reads the other one any more
            const bool more = j0 + step < end;
            if (more && flash_stages == 2) fetch(stage ^ 1, j0 + step);
            const T* const tile = stages + stage * stage_size;
            Scores<tiles, step> s;
            multiply_rows<T, dim>(s, query_tile + warp_first * pitch<dim>, tile);
            hide<step>(s, a, at, i0, j0);
            online_softmax(s, state, result, static_cast<float>(a.scale) * log2_e);
            drop(s, a, at, i0, j0);
            add_product<T, dim>(result, s, tile + step * pitch<dim>);
            if (flash_stages == 1) {
                __syncthreads();  // all threads have read the tile
                if (more) fetch(0, j0 + step);
            }
        }
        finish(state, a, at, i0, maxima, totals);
        unsigned spoilt[tiles][2] = {};
        if (a.hides_per_query()) find_nonfinite(result, spoilt);
        store_rows<T, dim>(y, at, i0, a.query, result, state.sum);
        redo_rows(spoilt, i0, a.query, [&](int i, int half, int n, int row) {
            redo_row<T, dim>(a, at, q, k, v, y, row, __shfl_sync(0xffffffffu, state.max[i][half], 4 * n),
                             __shfl_sync(0xffffffffu, state.sum[i][half], 4 * n));
        });
    }
}

template <class T, int dim> void run(const Attention& a, In in, Out out) {
    const bool kept = out.size() > 1;
    launch(flash_kernel<T, dim>, grid_for(FlashPlace::count(a, a.query, rows), 1), flash_threads,
           shared_bytes<dim>(), a, head_rows(in[0]), head_rows(in[1]), head_rows(in[2]), head_rows(out[0]),
           kept ? static_cast<float*>(raw(out[1])) : nullptr,
           kept ? static_cast<float*>(raw(out[2])) : nullptr);
}

template <class T> void run_dim(const Attention& a, In in, Out out) {
    if (a.dim == 32) return run<T, 32>(a, in, out);
    if (a.dim == 64) return run<T, 64>(a, in, out);
    run<T, 128>(a, in, out);
}

}  // namespace

bool flash_takes(const Attention& a, const Tensor& q) {
    const auto scale = static_cast<float>(a.scale);
    return multiplies_on_tensor_cores(q.device().index, q.dtype()) &&
           (a.dim == 32 || a.dim == 64 || a.dim == 128) && a.query > 0 && a.key > 0 &&
           a.query < flash_max_length && a.key < flash_max_length && scale > 0 && scale < INFINITY;
}

bool flash_reads(const Tensor& x, Dtype dtype) {
    if (x.dtype() != dtype || reinterpret_cast<std::uintptr_t>(raw(x)) % 16 != 0) return false;
    for (int d = 0; d < 3; ++d)
        if (x.size(d) > 1 && x.strides()[d] % 8 != 0) return false;
    return true;
}

bool flash_attention_forward(const Attention& a, In in, Out out) {
    const Dtype dtype = in[0].dtype();
    if (!flash_takes(a, in[0]) || out[0].dtype() != dtype) return false;
    for (int i = 0; i < 3; ++i)
        if (!flash_reads(in[std::size_t(i)], dtype)) return false;
    dtype == float16 ? run_dim<float16_t>(a, in, out) : run_dim<bfloat16_t>(a, in, out);
    return true;
}

}  // namespace mezzo::cuda
