// The matrix products of attention, on vectors or on tiles: inputs are packed once and multiplied with blocks
// of float32 weights. On tiles weights keep 16 significant bits (two planes, tile_tables.h), and an infinity in
// a bfloat16 input may give NaN where vectors give an infinity.
#pragma once

#include <cstdint>

#include "cpu/attention_tables.h"
#include "cpu/tile_tables.h"

namespace mezzo::cpu {

// Thrown where an element has no planes (TileProduct): the products then run on vectors.
struct NoPlanes {};

class AttentionProducts {
public:
    // Types of op(A) and op(B).
    enum class Types : std::uint8_t { inputs, inputs_weights, weights_inputs };

    // Multiplies on vectors without tiles. `type`: of the inputs, 16-bit with tiles.
    AttentionProducts(const GemmKernels& vectors, const TileKernels* tiles, Dtype type);

    // A packed op(A) can be entered at multiples of `rows` rows and `steps` steps of k; a packed op(B) at
    // multiples of `columns` columns. Blocks of weights are `columns` wide.
    std::int64_t rows, steps, columns;

    // Bytes of packed inputs. Packing throws NoPlanes.
    std::int64_t a_bytes(std::int64_t m, std::int64_t k) const;
    std::int64_t b_bytes(std::int64_t n, std::int64_t k) const;
    void pack_a(const Operand& x, std::int64_t m, std::int64_t k, char* to) const;
    void pack_b(const Operand& x, std::int64_t n, std::int64_t k, char* to) const;
    // Packed op(A) from row i and step p on, of k steps in all; packed op(B) from column j on.
    const char* a_from(const char* a, std::int64_t i, std::int64_t p, std::int64_t k) const;
    const char* b_from(const char* b, std::int64_t j, std::int64_t k) const;

    // t[k, columns] as op(B): t itself on vectors, else packed in memory of the calling thread, up to its
    // next call.
    const char* weights_b(const float* t, std::int64_t k, std::int64_t n) const;
    // Bytes of weights[m, k] as op(A), and packing of `n` <= columns of them from column j on. The first
    // `zeros` rows, a multiple of `rows`, are 0, whatever t says.
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
