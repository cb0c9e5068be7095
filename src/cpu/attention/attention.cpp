// scaled_dot_product_attention by FlashAttention-2 (Dao, arXiv 2307.08691): scores exist only as blocks in
// the cache, and a query's sums are rescaled when a block raises the maximum of its scores.
//
// Scores are computed transposed, a row per key and a column per query, in panels of the GEMM tile's width.
// Maxima and sums then run down the columns, for as many queries at a time as a vector has lanes, and the
// weights already have the layout of the second product's packed operand, sums[dim, query] += v^T[dim, key]
// weights[key, query].
#include "cpu/attention/attention.h"

#include <algorithm>

#include "cpu/buffer.h"
#include "cpu/kernels.h"
#include "cpu/parallel.h"
#include "kernels/packed_attention.h"

namespace mezzo::cpu {
namespace {

using Types = AttentionProducts::Types;

constexpr float infinity = __builtin_inff();
constexpr std::int64_t longest_chunk = 512;  // most queries that share one packing of keys and values

// Buffers of each thread.
thread_local struct { Buffer q, k, v, scores, sums, statistics, bytes, seen, turned; } scratch;

// A panel of queries that share the columns of a block.
struct Panel {
    std::int64_t first, columns;  // queries
    const char* q;                // packed
    float *sums, *maximum, *total;
    bool started;  // sums, maximum and total hold something
};

class Forward {
public:
    Forward(const AttentionProblem& problem, const Heads& result, Out out, const TileKernels* tiles)
        : p(problem), y(result), products(gemm, tiles, p.q.dtype), nr(gemm.nr), scale(p.log2_scale()) {
        if (out.size() < 2) return;
        maxima = reinterpret_cast<float*>(out[1]->bytes());
        totals = reinterpret_cast<float*>(out[2]->bytes());
    }

    // Queries [first, first + count) of one head. Throws NoPlanes before it writes any result.
    void run(std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t count) const;

private:
    struct Keys {
        std::int64_t b, h, first, count;
        const char *k, *v;  // packed: rows of k, and v^T
        const std::uint8_t*
            seen;  // the keys that a query may attend to, if the same for all queries; or null
    };
    std::int64_t visible_rows(const Keys& keys, const Panel& panel) const;
    bool hide(const Keys& keys, const Panel& panel, std::int64_t rows, std::uint8_t* bytes) const;
    void attend(const Keys& keys, Panel& panel) const;
    void drop(const Keys& keys, const Panel& panel, std::int64_t rows, float* t, std::uint8_t* bytes) const;
    void finish(std::int64_t b, std::int64_t h, const Panel& panel) const;

    const AttentionProblem& p;
    const Heads& y;
    float *maxima = nullptr, *totals = nullptr;  // of the softmax, [batch, heads, query], or null
    const AttentionKernels& kernels = active_attention_kernels();
    const GemmKernels& gemm = kernels.gemm;
    const AttentionProducts products;
    const std::int64_t nr;
    const float scale;
};

// Number of rows (keys) of the block that causality lets the last query of the panel attend to.
std::int64_t Forward::visible_rows(const Keys& keys, const Panel& panel) const {
    if (!p.causal) return keys.count;
    return std::clamp<std::int64_t>(panel.first + panel.columns + p.diagonal - keys.first, 0, keys.count);
}

// bytes[row, nr] = whether the column's query may attend to the row's key. Returns false if no query may
// attend to any of them.
bool Forward::hide(const Keys& keys, const Panel& panel, std::int64_t rows, std::uint8_t* bytes) const {
    std::uint8_t row[attention_keys];
    bool any = false;
    std::fill(bytes, bytes + rows * nr, std::uint8_t(1));
    for (std::int64_t j = 0; j < panel.columns; ++j) {
        any = p.mask.read(keys.b, keys.h, panel.first + j, keys.first, rows, row) || any;
        for (std::int64_t i = 0; i < rows; ++i) bytes[i * nr + j] = row[i];
    }
    return any;
}

// Sets dropped weights to 0; the others are scaled with the result.
void Forward::drop(const Keys& keys, const Panel& panel, std::int64_t rows, float* t,
                   std::uint8_t* bytes) const {
    std::uint8_t row[attention_keys];
    std::fill(bytes, bytes + rows * nr, std::uint8_t(1));
    for (std::int64_t j = 0; j < panel.columns; ++j) {
        p.dropout.read(p.element(keys.b, keys.h, panel.first + j, keys.first), rows, row);
        for (std::int64_t i = 0; i < rows; ++i) bytes[i * nr + j] = row[i];
    }
    kernels.keep(t, bytes, rows * nr, 0);
}

// Adds a block of keys to the sums of a panel of queries.
void Forward::attend(const Keys& keys, Panel& panel) const {
    const std::int64_t rows = visible_rows(keys, panel);
    if (rows == 0) return;
    std::uint8_t* const bytes = scratch.bytes.get<std::uint8_t>(attention_keys * nr);
    if (p.mask.by_query() && !hide(keys, panel, rows, bytes)) return;
    float* const t = scratch.scores.get<float>(attention_keys * nr);
    products.multiply(Types::inputs, keys.k, p.dim, panel.q, p.dim, rows, panel.columns, t, nr, false);
    if (p.mask.by_query()) kernels.keep(t, bytes, rows * nr, -infinity);
    if (keys.seen)
        for (std::int64_t i = 0; i < rows; ++i)
            if (!keys.seen[i]) std::fill(t + i * nr, t + (i + 1) * nr, -infinity);
    if (p.causal) {
        const std::int64_t seen_by_all = panel.first + p.diagonal - keys.first + 1;  // rows
        for (std::int64_t i = std::max<std::int64_t>(0, seen_by_all); i < rows; ++i)
            std::fill(t + i * nr, t + i * nr + (i + 1 - seen_by_all), -infinity);
    }
    SoftmaxBlock block{};
    block.t = t;
    block.ld = nr;
    block.rows = rows;
    block.columns = panel.columns;
    block.scale = scale;
    block.maximum = panel.maximum;
    block.total = panel.total;
    block.sums = panel.started ? panel.sums : nullptr;
    block.dim = p.dim;
    kernels.softmax(block);
    if (p.dropout.threshold != 0) drop(keys, panel, rows, t, bytes);
    products.multiply(Types::inputs_weights, keys.v, keys.count, products.weights_b(t, rows, panel.columns),
                      rows, p.dim, panel.columns, panel.sums, nr, panel.started);
    panel.started = true;
}

// Writes sums / totals to y, and the maxima and totals that the gradient reads.
void Forward::finish(std::int64_t b, std::int64_t h, const Panel& panel) const {
    if (!panel.started) std::fill(panel.sums, panel.sums + p.dim * nr, 0.0f);
    kernels.divide(panel.sums, nr, p.dim, panel.columns, panel.total, float(p.dropout.scale));
    float* const turned = scratch.turned.get<float>(round_up(p.dim, nr) * nr);
    write_transposed(gemm, panel.sums, p.dim, panel.columns, 1, turned, y, y.at(b, panel.first, h));
    if (!maxima) return;
    const std::int64_t row = (b * p.heads + h) * p.query + panel.first;
    std::copy_n(panel.maximum, panel.columns, maxima + row);
    std::copy_n(panel.total, panel.columns, totals + row);
}

void Forward::run(std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t count) const {
    auto& s = scratch;
    const std::int64_t width = round_up(count, nr);
    char* const q = s.q.get<char>(products.b_bytes(count, p.dim));
    float* const sums = s.sums.get<float>(width * p.dim);
    float* const statistics = s.statistics.get<float>(2 * width);
    products.pack_b(p.q.along_dim(b, first, h), count, p.dim, q);
    std::fill(statistics, statistics + width, -infinity);
    std::fill(statistics + width, statistics + 2 * width, 0.0f);
    std::uint8_t* const seen = s.seen.get<std::uint8_t>(p.key);
    const KeyRange keys = p.visible_keys(b, h, seen);
    char* const k = s.k.get<char>(products.a_bytes(attention_keys, p.dim));
    char* const v = s.v.get<char>(products.a_bytes(p.dim, attention_keys));
    Panel panels[longest_chunk / 4];
    for (std::int64_t i = 0; i < width; i += nr)
        panels[i / nr] = {first + i,
                          std::min(nr, count - i),
                          products.b_from(q, i, p.dim),
                          sums + i * p.dim,
                          statistics + i,
                          statistics + width + i,
                          false};
    const std::int64_t end = p.causal ? std::min(keys.end, first + count + p.diagonal) : keys.end;
    for (std::int64_t j = keys.begin; j < end; j += attention_keys) {
        const std::int64_t n = std::min(attention_keys, end - j);
        products.pack_a(p.k.along_dim(b, j, h), n, p.dim, k);
        products.pack_a(p.v.along_rows(b, j, h), p.dim, n, v);
        const Keys block{b, h, j, n, k, v, p.mask.by_key() ? seen + j : nullptr};
        for (std::int64_t i = 0; i < width; i += nr) attend(block, panels[i / nr]);
    }
    for (std::int64_t i = 0; i < width; i += nr) finish(b, h, panels[i / nr]);
}

// Number of queries that a thread takes at once: a multiple of nr, few enough that every thread gets some.
// The number does not change any result, unless an element has no planes (TileProduct).
std::int64_t chunk_of_queries(const AttentionProblem& p, std::int64_t nr) {
    const std::int64_t panels = (p.query + nr - 1) / nr;
    const std::int64_t share = p.batch * p.heads * panels / (4 * num_threads());
    return std::clamp<std::int64_t>(share, 1, std::min(panels, longest_chunk / nr)) * nr;
}

}  // namespace
}  // namespace mezzo::cpu

namespace mezzo::cpu_kernels {

void scaled_dot_product_attention(In in, const kernels::ScaledDotProductAttention& at, Out out) {
    const cpu::AttentionProblem p(in[0], in[1], in[2], in[3], at);
    if (p.batch * p.heads * p.query == 0) return;
    if (in[0]->dtype == float64) return cpu::attention_f64(p, out);
    if (p.hides_nonfinite()) return cpu::attention_through_f64(in, at, out);
    const cpu::Heads y(out[0]);
    if (p.query == 1 && out.size() == 1 && p.dropout.threshold == 0) return cpu::attention_of_one_query(p, y);
    const cpu::Forward forward(p, y, out, p.tiles()), on_vectors(p, y, out, nullptr);
    const std::int64_t chunk = cpu::chunk_of_queries(p, cpu::active_attention_kernels().gemm.nr);
    const std::int64_t chunks = (p.query + chunk - 1) / chunk;
    constexpr std::int64_t least_work = 1 << 18;  // multiply-adds worth waking a thread for
    const std::int64_t grain = least_work / (2 * chunk * (p.key + 1) * (p.dim + 1)) + 1;
    cpu::parallel_for(p.batch * p.heads * chunks, grain, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t u = begin; u < end; ++u) {
            const std::int64_t head = u / chunks, first = u % chunks * chunk;
            const std::int64_t b = head / p.heads, h = head % p.heads,
                               count = std::min(chunk, p.query - first);
            try {
                forward.run(b, h, first, count);
            } catch (const cpu::NoPlanes&) {
                on_vectors.run(b, h, first, count);
            }
        }
    });
}

void packed_attention(In in, const kernels::PackedAttention& at, Out out) {
    kernels::run_packed_attention(in, at, out, scaled_dot_product_attention);
}

constinit const KernelList attention_list = kernel_list<scaled_dot_product_attention, packed_attention>;

}  // namespace mezzo::cpu_kernels
