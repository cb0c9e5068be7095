// The matrix products of attention, on vectors or on tiles: inputs are packed once and multiplied with blocks
// of float32 weights. On tiles 16 significant bits of the weights are used (two planes, tile_tables.h), and
// an infinity in a bfloat16 input may give NaN where vectors give an infinity.
#pragma once

#include <cstdint>

#include "cpu/amx/tile_tables.h"
#include "cpu/attention/attention_tables.h"

namespace mezzo::cpu {

// Thrown if an element has no planes (TileProduct); the caller then computes the products on vectors.
struct NoPlanes {};

class AttentionProducts {
public:
    // Types of op(A) and op(B).
    enum class Types : std::uint8_t { inputs, inputs_weights, weights_inputs };

    // Multiplies on vectors if `tiles` is null. `type` is that of the inputs; tiles need a 16-bit one.
    AttentionProducts(const GemmKernels& vectors, const TileKernels* tiles, Dtype type);

    // A part of a packed op(A) may begin at a multiple of `rows` rows and of `steps` steps of k, a part of a
    // packed op(B) at a multiple of `columns` columns. Blocks of weights are `columns` wide.
    std::int64_t rows, steps, columns;

    // The size of packed inputs in bytes, and packing, which may throw NoPlanes.
    std::int64_t a_bytes(std::int64_t m, std::int64_t k) const;
    std::int64_t b_bytes(std::int64_t n, std::int64_t k) const;
    void pack_a(const Operand& x, std::int64_t m, std::int64_t k, char* to) const;
    void pack_b(const Operand& x, std::int64_t n, std::int64_t k, char* to) const;
    // Packed op(A) from row i and step p on, of k steps in all; packed op(B) from column j on.
    const char* a_from(const char* a, std::int64_t i, std::int64_t p, std::int64_t k) const;
    const char* b_from(const char* b, std::int64_t j, std::int64_t k) const;

    // t[k, columns] as op(B): on vectors t itself, on tiles a packed copy in memory of the calling thread
    // that is valid until its next call.
    const char* weights_b(const float* t, std::int64_t k, std::int64_t n) const;
    // The size in bytes of weights[m, k] packed as op(A), and the packing of `n` <= columns of their columns
    // from column j on. The first `zeros` rows, a multiple of `rows`, become 0 whatever t holds.
    std::int64_t weights_a_bytes(std::int64_t m, std::int64_t k) const;
    void pack_weights_a(const float* t, std::int64_t m, std::int64_t zeros, std::int64_t j, std::int64_t n,
                        std::int64_t k, char* to) const;

    // t[m, n] = or += op(A)[m, k] op(B)[k, n]; op(A) was packed with all_k >= k steps.
    void multiply(Types types, const char* a, std::int64_t all_k, const char* b, std::int64_t k,
                  std::int64_t m, std::int64_t n, float* t, std::int64_t ldt, bool accumulate) const;

private:
    const TileProduct& product(Types types) const;
    std::int64_t a_panel(std::int64_t k) const;

    const GemmKernels& vectors_;
    const TileKernels* tiles_;
    Dtype type_;
};

}  // namespace mezzo::cpu
