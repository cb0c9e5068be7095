// Attention in float64, which gradient checks use: one query's scores at a time, in plain loops.
#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu/attention/attention.h"
#include "cpu/elementwise/strided.h"
#include "cpu/kernels.h"

namespace mezzo::cpu {
namespace {

const double* row(const Heads& x, std::int64_t b, std::int64_t i, std::int64_t h) {
    return reinterpret_cast<const double*>(x.at(b, i, h));
}
double* row_of(const Heads& x, std::int64_t b, std::int64_t i, std::int64_t h) {
    return reinterpret_cast<double*>(x.at(b, i, h));
}

double dot(const double* a, const double* b, std::int64_t n) {
    double sum = 0;
    for (std::int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
    return sum;
}
void add(double* to, const double* x, double factor, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) to[i] += factor * x[i];
}

// The weights of one query, before dropout, and the factors that dropout multiplies them by.
struct Row {
    std::vector<double> weight, kept;
    std::vector<std::uint8_t> bytes;
    double top = 0, total = 0;  // the largest score, and the sum of exponentials
    explicit Row(std::int64_t key)
        : weight(std::size_t(key)), kept(std::size_t(key), 1.0), bytes(std::size_t(key)) {}

    void compute(const AttentionProblem& p, std::int64_t b, std::int64_t h, std::int64_t i) {
        const std::int64_t end = p.causal ? std::min(p.key, i + p.diagonal + 1) : p.key;
        std::fill(weight.begin(), weight.end(), -INFINITY);
        std::fill(bytes.begin(), bytes.end(), std::uint8_t(1));
        if (p.mask.any()) p.mask.read(b, h, i, 0, p.key, bytes.data());
        top = -INFINITY;
        total = 0;
        for (std::int64_t j = 0; j < end; ++j) {
            if (!bytes[std::size_t(j)]) continue;
            weight[std::size_t(j)] = dot(row(p.q, b, i, h), row(p.k, b, j, h), p.dim);
            top = std::max(top, weight[std::size_t(j)]);
        }
        const double shift = top == -INFINITY ? 0 : top;
        for (double& w : weight) total += w = std::exp(p.scale * (w - shift));
        for (double& w : weight) w = w == 0 ? 0 : w / total;  // 0 stays 0 if the total is NaN
        if (p.dropout.threshold == 0) return;
        for (std::int64_t j = 0; j < p.key; j += attention_keys) {
            const std::int64_t n = std::min(attention_keys, p.key - j);
            p.dropout.read(p.element(b, h, i, j), n, bytes.data() + j);
        }
        for (std::size_t j = 0; j < kept.size(); ++j) kept[j] = bytes[j] ? p.dropout.scale : 0;
    }
};

// Calls body(b, h, row of weights) for every head, in parallel.
template <class F> void for_heads(const AttentionProblem& p, const F& body) {
    parallel_for(p.batch * p.heads, 1, [&](std::int64_t begin, std::int64_t end) {
        Row weights(p.key);
        for (std::int64_t head = begin; head < end; ++head) body(head / p.heads, head % p.heads, weights);
    });
}

// x itself if it is float64 already.
Tensor as_double(const Tensor& x) {
    if (!x.defined() || x->dtype == float64) return x;
    const Tensor result = empty(x->shape, {.dtype = float64});
    cpu_kernels::cast({&x, 1}, {}, {&result, 1});
    return result;
}

}  // namespace

void attention_f64(const AttentionProblem& p, Out out) {
    const Heads y(out[0]);
    const auto keep = [&](std::size_t result, std::int64_t row, double value) {
        if (out.size() > 1) reinterpret_cast<double*>(out[result]->bytes())[row] = value;
    };
    for_heads(p, [&](std::int64_t b, std::int64_t h, Row& weights) {
        for (std::int64_t i = 0; i < p.query; ++i) {
            weights.compute(p, b, h, i);
            double* const to = row_of(y, b, i, h);
            std::fill(to, to + p.dim, 0.0);
            for (std::int64_t j = 0; j < p.key; ++j) {
                const double w = weights.weight[std::size_t(j)] * weights.kept[std::size_t(j)];
                if (w != 0) add(to, row(p.v, b, j, h), w, p.dim);
            }
            keep(1, (b * p.heads + h) * p.query + i, weights.top);
            keep(2, (b * p.heads + h) * p.query + i, weights.total);
        }
    });
}

void attention_through_f64(In in, const kernels::ScaledDotProductAttention& at, Out out) {
    Tensors x, results;
    for (std::size_t i = 0; i < 3; ++i) x.push_back(as_double(in[i]));
    for (const Tensor& y : out) results.push_back(empty(y->shape, {.dtype = float64}));
    attention_f64(AttentionProblem(x[0], x[1], x[2], in[3], at), results);
    for (std::size_t i = 0; i < results.size(); ++i) cpu_kernels::cast({&results[i], 1}, {}, {&out[i], 1});
}

// dv = d(p)^T g, ds = p (d(g v^T) - sum(g y)), dq = scale ds k, dk = scale ds^T q, d being dropout.
void attention_grad_f64(In in, const kernels::ScaledDotProductAttention& at, Out out) {
    Tensors x, grads;
    for (std::size_t i = 0; i < 5; ++i) x.push_back(as_double(in[i]));
    for (const Tensor& y : out)
        grads.push_back(y->dtype == float64 && y->contiguous ? y : empty(y->shape, {.dtype = float64}));
    for (const Tensor& y : grads) std::fill_n(static_cast<double*>(raw(y)), y->numel, 0.0);
    const AttentionProblem p(x[1], x[2], x[3], in[7], at);
    const Heads g(x[0]), y(x[4]), dq(grads[0]), dk(grads[1]), dv(grads[2]);
    for_heads(p, [&](std::int64_t b, std::int64_t h, Row& weights) {
        for (std::int64_t i = 0; i < p.query; ++i) {
            weights.compute(p, b, h, i);
            const double* const gi = row(g, b, i, h);
            const double delta = dot(gi, row(y, b, i, h), p.dim);
            for (std::int64_t j = 0; j < p.key; ++j) {
                const double w = weights.weight[std::size_t(j)], kept = weights.kept[std::size_t(j)];
                if (w == 0) continue;
                const double ds = p.scale * w * (kept * dot(gi, row(p.v, b, j, h), p.dim) - delta);
                add(row_of(dv, b, j, h), gi, w * kept, p.dim);
                add(row_of(dq, b, i, h), row(p.k, b, j, h), ds, p.dim);
                add(row_of(dk, b, j, h), row(p.q, b, i, h), ds, p.dim);
            }
        }
    });
    for (std::size_t i = 0; i < 3; ++i)
        if (grads[i].impl() != out[i].impl()) cpu_kernels::cast({&grads[i], 1}, {}, {&out[i], 1});
}

}  // namespace mezzo::cpu
