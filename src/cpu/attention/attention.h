// Operands, mask and dropout of one head, for the CPU kernels of attention and of its gradient.
#pragma once

#include <cstdint>

#include "core/round_up.h"
#include "core/tensor_impl.h"
#include "cpu/attention/attention_products.h"
#include "kernels/attention.h"

namespace mezzo::cpu {

// A tensor [batch, length, heads, dim] with unit stride in dim.
struct Heads {
    char* data = nullptr;
    Dtype dtype = float32;
    std::int64_t batch = 0, row = 0, head = 0;  // strides in elements

    Heads() = default;
    explicit Heads(const Tensor& x);
    // Row i of head h of batch item b.
    char* at(std::int64_t b, std::int64_t i, std::int64_t h) const {
        if (!data) return nullptr;
        return data + (b * batch + i * row + h * head) * std::int64_t(size_of(dtype));
    }
    // The matrix [length, dim] from row i on, as an operand with k along dim (a line per row) or with k along
    // the rows (a line per element of dim).
    Operand along_dim(std::int64_t b, std::int64_t i, std::int64_t h) const {
        return {at(b, i, h), dtype, row, true};
    }
    Operand along_rows(std::int64_t b, std::int64_t i, std::int64_t h) const {
        return {at(b, i, h), dtype, row, false};
    }
};

// Attention mask: a boolean [batch, heads, query, key] of any strides, true where the query may attend to the
// key.
struct Mask {
    const std::uint8_t* data = nullptr;  // null: every query may attend to all keys
    std::int64_t batch = 0, head = 0, query = 0, key = 0;

    Mask() = default;
    explicit Mask(const Tensor& x);
    bool any() const { return data != nullptr; }
    // Whether the mask is the same for all queries, like a padding mask.
    bool by_key() const { return data && query == 0; }
    bool by_query() const { return data && query != 0; }
    // Copies keys [j, j + n) of one query; true if it may attend to any of them.
    bool read(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j, std::int64_t n,
              std::uint8_t* to) const;
};

// Dropout of the weights: element ((b heads + h) query + i) key + j of the stream (core/philox.h).
struct WeightDropout {
    std::uint32_t threshold = 0;  // in 2^-16; 0: no dropout
    std::uint64_t seed = 0, offset = 0;
    double scale = 1;  // of the weights that are not dropped

    WeightDropout() = default;
    WeightDropout(double p, const RandomState& stream);
    // to[i] = 0 if element first + i is dropped, else 1; n <= attention_keys.
    void read(std::int64_t first, std::int64_t n, std::uint8_t* to) const;
};

struct KeyRange {
    std::int64_t begin, end;
};

// One call of attention.
struct AttentionProblem {
    std::int64_t batch, heads, query, key, dim;
    double scale;           // of the scores
    bool causal;            // query i attends to keys 0 ... i + diagonal only
    std::int64_t diagonal;  // key - query
    Heads q, k, v;
    Mask mask;
    WeightDropout dropout;

    AttentionProblem(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                     const kernels::ScaledDotProductAttention& at);
    float log2_scale() const;
    // The tile kernels to multiply with; null to multiply with vectors.
    const TileKernels* tiles() const;
    // Index of a weight's element in the dropout stream.
    std::int64_t element(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
        return ((b * heads + h) * query + i) * key + j;
    }
    // The keys from the first to the last that the mask lets a query of the head attend to. If the mask is
    // the same for all queries, `seen` [key] gets it; otherwise the range is all keys.
    KeyRange visible_keys(std::int64_t b, std::int64_t h, std::uint8_t* seen) const;
    // Whether a key or value among visible_keys() is NaN or infinite and hidden from some query. The blocked
    // kernels multiply it by a weight of 0.
    bool hides_nonfinite() const;
    // Whether some queries are NaN or infinite, or their rows of the gradient g of the result, and a key is
    // hidden from all of these. The blocked gradients of keys multiply such rows by weights of 0. In a step
    // whose gradients have overflowed altogether, the last query spoils every key rightly.
    bool spoils_keys(const Heads& g) const;
};

// The largest block of keys.
inline constexpr std::int64_t attention_keys = 256;

// Writes alpha times the transpose of the first `rows` columns of sums[dim, nr] to rows of y. `turned` is
// scratch memory of round_up(dim, nr) * nr floats.
void write_transposed(const GemmKernels& gemm, const float* sums, std::int64_t dim, std::int64_t rows,
                      float alpha, float* turned, const Heads& y, char* to);
// Writes alpha times t[rows, columns] to the first `columns` elements of rows of y.
void write_rows(const float* t, std::int64_t ldt, std::int64_t rows, std::int64_t columns, float alpha,
                const Heads& y, char* to);

// Attention of one query per head without dropout, to y; not for float64.
void attention_of_one_query(const AttentionProblem& p, const Heads& y);

// The float64 kernels, which compute one row of weights at a time.
void attention_f64(const AttentionProblem& p, Out out);
// The same for inputs of any floating dtype. For no query does it read a key or value that is hidden from the
// query.
void attention_through_f64(In in, const kernels::ScaledDotProductAttention& at, Out out);
void attention_grad_f64(In in, const kernels::ScaledDotProductAttention& at, Out out);

}  // namespace mezzo::cpu
