// Operands, masks and dropout of attention, and stores of finished sums to tensors.
#include <algorithm>
#include <atomic>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <vector>

#include "cpu/attention/attention.h"
#include "cpu/elementwise/loops.h"
#include "cpu/gemm/choice.h"
#include "cpu/isa/isa.h"
#include "cpu/parallel.h"

namespace mezzo::cpu {

Heads::Heads(const Tensor& x)
    : data(x->numel ? x->bytes() : nullptr),
      dtype(x->dtype),
      batch(x->strides[0]),
      row(x->strides[1]),
      head(x->strides[2]) {}

Mask::Mask(const Tensor& x) {
    if (!x.defined() || x->numel == 0) return;
    data = reinterpret_cast<const std::uint8_t*>(x->bytes());
    const auto stride = [&](int d) { return x->shape[d] == 1 ? 0 : x->strides[d]; };
    batch = stride(0);
    head = stride(1);
    query = stride(2);
    key = stride(3);
}

bool Mask::read(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j, std::int64_t n,
                std::uint8_t* to) const {
    const std::uint8_t* from = data + b * batch + h * head + i * query + j * key;
    if (key == 1)
        std::memcpy(to, from, std::size_t(n));
    else
        for (std::int64_t e = 0; e < n; ++e) to[e] = from[e * key];
    return std::memchr(to, 1, std::size_t(n)) != nullptr;
}

WeightDropout::WeightDropout(double p, const RandomState& stream) {
    if (!(p > 0)) return;
    threshold = std::uint32_t(std::lround(p * 65536.0));
    seed = stream.seed;
    offset = stream.offset;
    scale = 1 / (1 - p);
}

void WeightDropout::read(std::int64_t first, std::int64_t n, std::uint8_t* to) const {
    constexpr std::int64_t longest = (attention_keys + 14) / 8;  // blocks
    std::uint32_t words[4 * longest];
    const std::int64_t skip = first % 8, blocks = (skip + n + 7) / 8;
    const Loops& loops = active_loops();
    loops.philox_blocks(words, seed, offset + std::uint64_t(first / 8), blocks);
    loops.kept(to, words, skip, n, threshold);
}

AttentionProblem::AttentionProblem(const Tensor& q_, const Tensor& k_, const Tensor& v_, const Tensor& mask_,
                                   const kernels::ScaledDotProductAttention& at)
    : batch(q_->shape[0]),
      heads(q_->shape[2]),
      query(q_->shape[1]),
      key(k_->shape[1]),
      dim(q_->shape[3]),
      scale(at.scale),
      causal(at.causal),
      diagonal(key - query),
      q(q_),
      k(k_),
      v(v_),
      mask(mask_),
      dropout(at.dropout_p, at.stream) {}

// The scale times log2(e); positive, so that -inf times it is -inf.
float AttentionProblem::log2_scale() const { return std::max(float(scale * 1.4426950408889634), FLT_MIN); }

const TileKernels* AttentionProblem::tiles() const {
    if (q.dtype != k.dtype || q.dtype != v.dtype || !is_16bit(q.dtype) || dim == 0) return nullptr;
    // A weight that multiplies fewer than 64 elements of v costs more to split into planes than tiles save
    // (measured: 0.9x the speed of vectors).
    if (q.dtype == float16 && dim < 64) return nullptr;
    const Gemm scores{.m = query, .n = key, .k = dim, .trans_b = true, .a_type = q.dtype, .b_type = q.dtype};
    return chosen_gemm_kernels(scores).tiles;
}

KeyRange AttentionProblem::visible_keys(std::int64_t b, std::int64_t h, std::uint8_t* seen) const {
    if (!mask.by_key()) return {0, key};
    mask.read(b, h, 0, 0, key, seen);
    KeyRange keys{0, key};
    while (keys.end > 0 && !seen[keys.end - 1]) --keys.end;
    while (keys.begin < keys.end && !seen[keys.begin]) ++keys.begin;
    return keys;
}

namespace {

// Whether no element has all the bits of the exponent set. It reads a vector at a time, because gcc's -O2
// leaves the plain loop scalar.
template <class U> bool all_finite(const char* x, std::int64_t n, U exponent) {
    typedef U Elements __attribute__((vector_size(16)));
    constexpr std::int64_t width = 16 / sizeof(U);
    decltype(Elements{} == Elements{}) bad = {};
    std::int64_t i = 0;
    for (; i + width <= n; i += width) {
        Elements bits;
        std::memcpy(&bits, x + i * std::int64_t(sizeof(U)), sizeof bits);
        bad |= (bits & exponent) == (Elements{} + exponent);
    }
    bool any = false;
    for (std::int64_t j = 0; j < width; ++j) any = any || bad[j] != 0;
    for (; i < n; ++i) {
        U bits;
        std::memcpy(&bits, x + i * std::int64_t(sizeof(U)), sizeof(U));
        any = any || (bits & exponent) == exponent;
    }
    return !any;
}

bool all_finite(const Heads& x, std::int64_t b, std::int64_t i, std::int64_t h, std::int64_t dim) {
    const char* const row = x.at(b, i, h);
    if (x.dtype == float64) return all_finite<std::uint64_t>(row, dim, 0x7ff0000000000000);
    if (x.dtype == float32) return all_finite<std::uint32_t>(row, dim, 0x7f800000);
    return all_finite<std::uint16_t>(row, dim, x.dtype == float16 ? 0x7c00 : 0x7f80);
}

}  // namespace

bool AttentionProblem::hides_nonfinite() const {
    const bool later = causal && query > 1;  // keys behind key - query are hidden from the first query
    if ((!mask.any() && !later) || dim == 0) return false;
    std::atomic<bool> found{false};
    parallel_for(batch * heads, (1 << 16) / (key * dim + 1) + 1, [&](std::int64_t begin, std::int64_t end) {
        std::vector<std::uint8_t> seen(std::size_t(key), 0);
        for (std::int64_t head = begin; head < end && !found.load(std::memory_order_relaxed); ++head) {
            const std::int64_t b = head / heads, h = head % heads;
            const KeyRange keys = visible_keys(b, h, seen.data());
            for (std::int64_t j = keys.begin; j < keys.end; ++j)
                if (((later && j > key - query) || (mask.any() && !seen[std::size_t(j)])) &&
                    (!all_finite(k, b, j, h, dim) || !all_finite(v, b, j, h, dim)))
                    found.store(true, std::memory_order_relaxed);
        }
    });
    return found;
}

bool AttentionProblem::spoils_keys(const Heads& g) const {
    if ((!mask.by_query() && !(causal && key > 1)) || dim == 0) return false;
    std::atomic<bool> found{false};
    parallel_for(batch * heads, (1 << 16) / (query * dim + 1) + 1, [&](std::int64_t begin, std::int64_t end) {
        std::vector<std::uint8_t> seen(std::size_t(key), 1), reached(seen);
        for (std::int64_t head = begin; head < end && !found.load(std::memory_order_relaxed); ++head) {
            const std::int64_t b = head / heads, h = head % heads;
            bool spoilt = false;
            std::fill(reached.begin(), reached.end(), std::uint8_t(0));
            for (std::int64_t i = query; i-- > 0;) {  // the last query of a causal problem sees most
                if (all_finite(q, b, i, h, dim) && all_finite(g, b, i, h, dim)) continue;
                spoilt = true;
                if (mask.by_query()) mask.read(b, h, i, 0, key, seen.data());
                const std::int64_t last = causal ? std::clamp<std::int64_t>(i + diagonal + 1, 0, key) : key;
                for (std::int64_t j = 0; j < last; ++j) reached[std::size_t(j)] |= seen[std::size_t(j)];
                if (std::find(reached.begin(), reached.end(), 0) == reached.end()) break;
            }
            if (spoilt && std::find(reached.begin(), reached.end(), 0) != reached.end())
                found.store(true, std::memory_order_relaxed);
        }
    });
    return found;
}

namespace {

AttentionKernels completed(AttentionKernels kernels, const GemmKernels& gemm) {
    if (kernels.gemm.mr == 0) kernels.gemm = gemm;
    return kernels;
}

}  // namespace

const AttentionKernels& active_attention_kernels() {
    static const AttentionKernels portable = completed(attention_portable, gemm_portable),
                                  avx2 = completed(attention_avx2, gemm_avx2),
                                  avx512 = completed(attention_avx512, gemm_avx512);
    const Isa isa = active_isa();
    if (isa >= Isa::avx512 && avx512.softmax) return avx512;
    if (isa >= Isa::avx2 && avx2.softmax) return avx2;
    return portable;
}

void write_rows(const float* t, std::int64_t ldt, std::int64_t rows, std::int64_t columns, float alpha,
                const Heads& y, char* to) {
    Epilogue e{};
    e.t = t;
    e.ldt = ldt;
    e.rows = rows;
    e.columns = columns;
    e.c = to;
    e.ldc = y.row;
    e.c_type = y.dtype;
    e.alpha = alpha;
    gemm_kernels(std::min(active_isa(), Isa::avx512)).epilogue(e);
}

void write_transposed(const GemmKernels& gemm, const float* sums, std::int64_t dim, std::int64_t rows,
                      float alpha, float* turned, const Heads& y, char* to) {
    // Packing transposes, into panels of nr columns.
    gemm.pack_b({sums, Dtype::float32, gemm.nr, true}, dim, rows, turned);
    for (std::int64_t d = 0; d < dim; d += gemm.nr)
        write_rows(turned + d * rows, gemm.nr, rows, std::min<std::int64_t>(gemm.nr, dim - d), alpha, y,
                   to + d * std::int64_t(size_of(y.dtype)));
}

}  // namespace mezzo::cpu
