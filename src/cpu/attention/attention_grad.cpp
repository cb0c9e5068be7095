// The gradient of scaled_dot_product_attention by FlashAttention-2 (Dao, arXiv 2307.08691): weights are
// computed again from the maximum and sum of their softmax, block by block. With p the weights and d their
// dropout,
//   dv = d(p)^T g, dp = d(g v^T), ds = p (dp - sum(g y)), dq = scale ds k, dk = scale ds^T q.
//
// Here blocks have a row per query and a column per key, in panels of the GEMM tile's width. So p and ds
// already have the layout of packed operands of dv^T = g^T p and dk^T = q^T ds; only ds is packed again, for
// dq.
#include <algorithm>
#include <cstring>

#include "cpu/attention/attention.h"
#include "cpu/buffer.h"
#include "cpu/elementwise/loops.h"
#include "cpu/kernels.h"
#include "cpu/parallel.h"
#include "kernels/packed_attention.h"

namespace mezzo::cpu {
namespace {

using Types = AttentionProducts::Types;

constexpr float infinity = __builtin_inff();
constexpr std::int64_t block_queries = 128, block_keys = 128;
static_assert(block_keys <= attention_keys);

// Buffers of each thread.
thread_local struct {
    Buffer queries, rows, keys, key_sums, query_sums, weights, scores, masks, seen, turned, list;
} scratch;

// A block of queries, packed: rows of q and g as op(A) [queries, dim], and their transposes [dim, queries].
struct Queries {
    std::int64_t first, count;
    const char *q, *g, *q_turned, *g_turned;
    const float *maximum, *log2_sum, *delta;  // see SoftmaxGradBlock
    float* dq;                                // [count, ldq] sums
};

// A block of keys, packed as op(B): k^T and v^T [dim, keys], and k [keys, dim].
struct Keys {
    std::int64_t first, count;
    const char *k_turned, *v_turned, *k;
    const std::uint8_t* seen;  // the keys that a query may attend to, if the same for all queries; or null
    float *dk, *dv;            // transposed sums [dim, nr] per panel
};

// A unit of work for one thread: a whole head, or one block of its keys or of its queries (see WorkUnits).
struct WorkUnit {
    std::int64_t b, h;
    std::int64_t first_query, end_query, first_block, end_block;  // blocks of keys
    bool dq, dkv;
};

class AttentionGradient {
public:
    AttentionGradient(In in, const AttentionProblem& problem, Out out, const TileKernels* tiles)
        : p(problem),
          g(in[0]),
          y(in[4]),
          dq(out[0]),
          dk(out[1]),
          dv(out[2]),
          maxima(reinterpret_cast<const float*>(in[5]->bytes())),
          totals(reinterpret_cast<const float*>(in[6]->bytes())),
          products(gemm, tiles, p.q.dtype) {}
    // Throws NoPlanes; the caller then runs the part without tiles, which overwrites the partial results.
    void run(const WorkUnit& part) const;

private:
    void statistics(const WorkUnit& part, float* maximum, float* log2_sum, float* delta) const;
    Queries queries(const WorkUnit& part, std::int64_t first, char* to) const;
    Keys keys(const WorkUnit& part, std::int64_t first, std::int64_t count, char* to) const;
    bool read_masks(const WorkUnit& part, const Queries& queries, const Keys& keys, std::uint8_t* seen,
                    std::uint8_t* dropout) const;
    void block(const WorkUnit& part, const Queries& queries, const Keys& keys) const;
    void panel(const WorkUnit& part, const Queries& queries, const Keys& keys, std::int64_t j,
               const std::uint8_t* seen, const std::uint8_t* dropout) const;
    void hide(const Queries& queries, const Keys& keys, std::int64_t j, std::int64_t from, float* t, float* u,
              const std::uint8_t* seen) const;
    void write_keys(const WorkUnit& part, const Keys& keys) const;
    void zero_keys(const WorkUnit& part, std::int64_t first, std::int64_t end) const;
    std::int64_t bytes_of_queries() const {
        return 2 * (products.a_bytes(block_queries, p.dim) + products.a_bytes(p.dim, block_queries));
    }

    const AttentionProblem& p;
    const Heads g, y, dq, dk, dv;
    const float *maxima, *totals;
    const AttentionKernels& kernels = active_attention_kernels();
    const GemmKernels& gemm = kernels.gemm;
    const AttentionProducts products;
    const std::int64_t nr = gemm.nr, ldq = round_up(p.dim, nr);
    const float log2_scale = p.log2_scale();
};

// Statistics per query of the part: the largest score, +inf if every key is hidden from the query, so that
// all weights become 0; the logarithm of the sum to base 2; and sum(g y), which equals the sum over the keys
// of weight times its gradient.
void AttentionGradient::statistics(const WorkUnit& part, float* maximum, float* log2_sum,
                                   float* delta) const {
    const std::int64_t count = part.end_query - part.first_query;
    const std::int64_t row = (part.b * p.heads + part.h) * p.query + part.first_query;
    active_loops().unary[int(UnaryOp::log)][int(Compute::f32)](log2_sum, totals + row, count, 0, 0);
    for (std::int64_t i = 0; i < count; ++i) {
        const bool nothing = totals[row + i] == 0;
        maximum[i] = nothing ? infinity : maxima[row + i];
        log2_sum[i] = nothing ? 0 : log2_sum[i] * 1.44269504f;
    }
    kernels.row_dots(g.along_dim(part.b, part.first_query, part.h),
                     y.along_dim(part.b, part.first_query, part.h), count, p.dim, delta);
}

Queries AttentionGradient::queries(const WorkUnit& part, std::int64_t first, char* to) const {
    const std::int64_t count = std::min(block_queries, part.end_query - first);
    const std::int64_t size = products.a_bytes(count, p.dim), turned = products.a_bytes(p.dim, count);
    char *const q = to, *const dy = q + size, *const q_turned = dy + size,
                *const g_turned = q_turned + turned;
    products.pack_a(p.q.along_dim(part.b, first, part.h), count, p.dim, q);
    products.pack_a(g.along_dim(part.b, first, part.h), count, p.dim, dy);
    if (part.dkv) {
        products.pack_a(p.q.along_rows(part.b, first, part.h), p.dim, count, q_turned);
        products.pack_a(g.along_rows(part.b, first, part.h), p.dim, count, g_turned);
    }
    return {first, count, q, dy, q_turned, g_turned, nullptr, nullptr, nullptr, nullptr};
}

Keys AttentionGradient::keys(const WorkUnit& part, std::int64_t first, std::int64_t count, char* to) const {
    const std::int64_t bytes = products.b_bytes(count, p.dim), size = round_up(count, nr) * p.dim;
    char *const k_turned = to, *const v_turned = k_turned + bytes, *const k = v_turned + bytes;
    products.pack_b(p.k.along_dim(part.b, first, part.h), count, p.dim, k_turned);
    products.pack_b(p.v.along_dim(part.b, first, part.h), count, p.dim, v_turned);
    if (part.dq) products.pack_b(p.k.along_rows(part.b, first, part.h), p.dim, count, k);
    float *dk_sums = nullptr, *dv_sums = nullptr;
    if (part.dkv) {
        dk_sums = scratch.key_sums.get<float>(2 * size);
        dv_sums = dk_sums + size;
        std::fill(dk_sums, dk_sums + 2 * size, 0.0f);
    }
    return {first, count, k_turned, v_turned, k, nullptr, dk_sums, dv_sums};
}

// Writes the mask to `seen` and the dropout mask to `dropout`, [panel, query, nr] bytes of the block each.
// Returns false if the mask hides all of it.
bool AttentionGradient::read_masks(const WorkUnit& part, const Queries& q, const Keys& k, std::uint8_t* seen,
                                   std::uint8_t* dropout) const {
    std::uint8_t row[block_keys];
    const auto scatter = [&](std::int64_t i, std::uint8_t* to) {
        for (std::int64_t j = 0; j < k.count; j += nr)
            std::memcpy(to + j * q.count + i * nr, row + j, std::size_t(std::min(nr, k.count - j)));
    };
    bool any = !p.mask.by_query();
    for (std::int64_t i = 0; i < q.count && p.mask.by_query(); ++i) {
        any = p.mask.read(part.b, part.h, q.first + i, k.first, k.count, row) || any;
        scatter(i, seen);
    }
    for (std::int64_t i = 0; i < q.count && any && p.dropout.threshold != 0; ++i) {
        p.dropout.read(p.element(part.b, part.h, q.first + i, k.first), k.count, row);
        scatter(i, dropout);
    }
    return any;
}

// Hides pairs: scores become -inf, and gradients of weights, which may be infinite, become 0. In rows from
// `from` on of panel j.
void AttentionGradient::hide(const Queries& q, const Keys& k, std::int64_t j, std::int64_t from, float* t,
                             float* u, const std::uint8_t* seen) const {
    const std::int64_t columns = std::min(nr, k.count - j);
    if (p.mask.by_query()) {
        kernels.keep(t + from * nr, seen + from * nr, (q.count - from) * nr, -infinity);
        kernels.keep(u + from * nr, seen + from * nr, (q.count - from) * nr, 0);
    }
    if (k.seen && std::memchr(k.seen + j, 0, std::size_t(columns)))
        for (std::int64_t i = from; i < q.count; ++i) {
            kernels.keep(t + i * nr, k.seen + j, columns, -infinity);
            kernels.keep(u + i * nr, k.seen + j, columns, 0);
        }
    if (!p.causal) return;
    for (std::int64_t i = from; i < q.count; ++i) {
        const std::int64_t last =
            q.first + i + p.diagonal - (k.first + j);  // the last column that is not hidden from the query
        if (last + 1 >= columns) break;
        const std::int64_t hidden = i * nr + std::max<std::int64_t>(0, last + 1);
        std::fill(t + hidden, t + i * nr + columns, -infinity);
        std::fill(u + hidden, u + i * nr + columns, 0.0f);
    }
}

void AttentionGradient::panel(const WorkUnit& part, const Queries& q, const Keys& k, std::int64_t j,
                              const std::uint8_t* seen, const std::uint8_t* dropout) const {
    const std::int64_t rows = q.count, columns = std::min(nr, k.count - j);
    // Causality hides the first `hidden` rows (queries); of these, whole panels of op(A) are skipped.
    const std::int64_t hidden =
        p.causal ? std::clamp<std::int64_t>(k.first + j - q.first - p.diagonal, 0, rows) : 0;
    const std::int64_t from =
        hidden == rows ? round_up(rows, products.rows) : hidden / products.rows * products.rows;
    const std::int64_t left = rows - from;
    float* const t = scratch.scores.get<float>(2 * block_queries * nr);
    float* const u = t + block_queries * nr;
    float *const t_from = t + from * nr, *const u_from = u + from * nr;
    if (left > 0) {
        products.multiply(Types::inputs, products.a_from(q.q, from, 0, p.dim), p.dim,
                          products.b_from(k.k_turned, j, p.dim), p.dim, left, columns, t_from, nr, false);
        products.multiply(Types::inputs, products.a_from(q.g, from, 0, p.dim), p.dim,
                          products.b_from(k.v_turned, j, p.dim), p.dim, left, columns, u_from, nr, false);
        hide(q, k, j, from, t, u, seen);
        if (dropout) kernels.keep(u_from, dropout + from * nr, left * nr, 0);
        SoftmaxGradBlock block{};
        block.t = t_from;
        block.u = u_from;
        block.ld = nr;
        block.rows = left;
        block.columns = columns;
        block.scale = log2_scale;
        block.kept_scale = float(p.dropout.scale);
        block.maximum = q.maximum + from;
        block.log2_sum = q.log2_sum + from;
        block.delta = q.delta + from;
        kernels.softmax_grad(block);
        if (dropout) kernels.keep(t_from, dropout + from * nr, left * nr, 0);
        if (part.dkv) {
            products.multiply(Types::inputs_weights, products.a_from(q.g_turned, 0, from, rows), rows,
                              products.weights_b(t_from, left, columns), left, p.dim, columns,
                              k.dv + j * p.dim, nr, true);
            products.multiply(Types::inputs_weights, products.a_from(q.q_turned, 0, from, rows), rows,
                              products.weights_b(u_from, left, columns), left, p.dim, columns,
                              k.dk + j * p.dim, nr, true);
        }
    }
    if (part.dq)
        products.pack_weights_a(
            u, rows, std::min(from, round_up(rows, products.rows)), j, columns, k.count,
            scratch.weights.get<char>(products.weights_a_bytes(block_queries, block_keys)));
}

void AttentionGradient::block(const WorkUnit& part, const Queries& q, const Keys& k) const {
    if (p.causal && q.first + q.count + p.diagonal <= k.first) return;
    const bool dropped = p.dropout.threshold != 0;
    std::uint8_t *seen = nullptr, *dropout = nullptr;
    if (p.mask.by_query() || dropped) {
        const std::int64_t size = block_queries * round_up(block_keys, nr);
        seen = scratch.masks.get<std::uint8_t>(2 * size);
        dropout = seen + size;
        std::memset(seen, 1, std::size_t(2 * size));
        if (!read_masks(part, q, k, seen, dropout)) return;
    }
    for (std::int64_t j = 0; j < k.count; j += nr)
        panel(part, q, k, j, seen ? seen + j * q.count : nullptr, dropped ? dropout + j * q.count : nullptr);
    if (!part.dq) return;
    const char* const ds = scratch.weights.get<char>(products.weights_a_bytes(block_queries, block_keys));
    products.multiply(Types::weights_inputs, ds, k.count, k.k, k.count, q.count, p.dim, q.dq, ldq, true);
}

void AttentionGradient::write_keys(const WorkUnit& part, const Keys& k) const {
    float* const turned = scratch.turned.get<float>(ldq * nr);
    for (std::int64_t j = 0; j < k.count; j += nr) {
        const std::int64_t columns = std::min(nr, k.count - j);
        write_transposed(gemm, k.dk + j * p.dim, p.dim, columns, float(p.scale), turned, dk,
                         dk.at(part.b, k.first + j, part.h));
        write_transposed(gemm, k.dv + j * p.dim, p.dim, columns, float(p.dropout.scale), turned, dv,
                         dv.at(part.b, k.first + j, part.h));
    }
}

// Sets the gradients of keys [first, end), which are hidden from all queries, to 0.
void AttentionGradient::zero_keys(const WorkUnit& part, std::int64_t first, std::int64_t end) const {
    if (p.dim == 0) return;  // no elements, and perhaps no memory
    for (const Heads* x : {&dk, &dv})
        for (std::int64_t j = first; j < end; ++j)
            std::memset(x->at(part.b, j, part.h), 0, std::size_t(p.dim) * size_of(x->dtype));
}

void AttentionGradient::run(const WorkUnit& part) const {
    auto& s = scratch;
    const std::int64_t count = part.end_query - part.first_query;
    const std::int64_t blocks = (count + block_queries - 1) / block_queries;
    std::uint8_t* const seen = s.seen.get<std::uint8_t>(p.key);
    const KeyRange visible = p.visible_keys(part.b, part.h, seen);
    float *const maximum = s.rows.get<float>(3 * count), *const log2_sum = maximum + count,
                 *const delta = log2_sum + count;
    statistics(part, maximum, log2_sum, delta);
    float* const sums = part.dq ? s.query_sums.get<float>(count * ldq) : nullptr;
    if (sums) std::fill(sums, sums + count * ldq, 0.0f);
    char* const packed = s.queries.get<char>(blocks * bytes_of_queries());
    Queries* const list = s.list.get<Queries>(blocks);
    for (std::int64_t n = 0; n < blocks; ++n) {
        const std::int64_t first = n * block_queries;
        list[n] = queries(part, part.first_query + first, packed + n * bytes_of_queries());
        list[n].maximum = maximum + first;
        list[n].log2_sum = log2_sum + first;
        list[n].delta = delta + first;
        list[n].dq = sums ? sums + first * ldq : nullptr;
    }
    char* const packed_keys =
        s.keys.get<char>(2 * products.b_bytes(block_keys, p.dim) + products.b_bytes(p.dim, block_keys));
    for (std::int64_t n = part.first_block; n < part.end_block; ++n) {
        const std::int64_t first = visible.begin + n * block_keys;
        if (first >= visible.end) break;
        Keys k = keys(part, first, std::min(block_keys, visible.end - first), packed_keys);
        if (p.mask.by_key()) k.seen = seen + first;
        for (std::int64_t i = 0; i < blocks; ++i) block(part, list[i], k);
        if (part.dkv) write_keys(part, k);
    }
    if (part.dq)
        write_rows(sums, ldq, count, p.dim, float(p.scale), dq, dq.at(part.b, part.first_query, part.h));
    if (!part.dkv || part.first_block != 0) return;
    zero_keys(part, 0, visible.begin);
    zero_keys(part, visible.end, p.key);
}

// A head is one part, unless there are fewer heads than threads. Then each block of its keys, which gives dk
// and dv, and each block of its queries, which gives dq, is a part. Sums have the same terms in the same
// order either way.
struct WorkUnits {
    const AttentionProblem& p;
    std::int64_t of_keys = 0, of_queries = 0;

    explicit WorkUnits(const AttentionProblem& problem) : p(problem) {
        if (p.batch * p.heads >= num_threads()) return;
        of_keys = (p.key + block_keys - 1) / block_keys;
        of_queries = (p.query + block_queries - 1) / block_queries;
        if (of_keys + of_queries <= 2) of_keys = of_queries = 0;
    }
    std::int64_t per_head() const { return std::max<std::int64_t>(1, of_keys + of_queries); }
    WorkUnit at(std::int64_t index) const {
        const std::int64_t head = index / per_head(), n = index % per_head();
        const std::int64_t blocks = (p.key + block_keys - 1) / block_keys;
        WorkUnit part{head / p.heads, head % p.heads, 0, p.query, 0, blocks, true, true};
        if (per_head() == 1) return part;
        part.dkv = n < of_keys;
        part.dq = !part.dkv;
        if (part.dkv) {
            part.first_block = n;
            part.end_block = n + 1;
        } else {
            part.first_query = (n - of_keys) * block_queries;
            part.end_query = std::min(p.query, part.first_query + block_queries);
        }
        return part;
    }
};

}  // namespace
}  // namespace mezzo::cpu

namespace mezzo::cpu_kernels {

void scaled_dot_product_attention_grad(In in, const kernels::ScaledDotProductAttentionGrad& at, Out out) {
    bool f64 = out[0]->dtype == float64;
    for (std::size_t i = 0; i < 5; ++i) f64 = f64 || in[i]->dtype == float64;
    if (f64) return cpu::attention_grad_f64(in, at.forward, out);
    const cpu::AttentionProblem p(in[1], in[2], in[3], in[7], at.forward);
    if (p.batch * p.heads == 0) return;
    if (p.hides_nonfinite() || p.spoils_keys(cpu::Heads(in[0])))
        return cpu::attention_grad_f64(in, at.forward, out);
    const bool same = in[0]->dtype == in[1]->dtype;
    const cpu::AttentionGradient backward(in, p, out, same ? p.tiles() : nullptr),
        on_vectors(in, p, out, nullptr);
    const cpu::WorkUnits parts(p);
    const std::int64_t count = p.batch * p.heads * parts.per_head();
    constexpr std::int64_t least_work = 1 << 18;  // multiply-adds worth waking a thread for
    const std::int64_t work = 5 * p.query * p.key * p.dim / parts.per_head();
    cpu::parallel_for(count, least_work / (work + 1) + 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) try {
                backward.run(parts.at(i));
            } catch (const cpu::NoPlanes&) {
                on_vectors.run(parts.at(i));
            }
    });
}

void packed_attention_grad(In in, const kernels::PackedAttentionGrad& at, Out out) {
    kernels::run_packed_attention_grad(in, at, out, scaled_dot_product_attention_grad);
}

constinit const KernelList attention_grad_list =
    kernel_list<scaled_dot_product_attention_grad, packed_attention_grad>;

}  // namespace mezzo::cpu_kernels
