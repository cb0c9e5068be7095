// Packed copies of weights that an InferenceMode uses again and again. Weights of linear() have them for
// products of few rows, whose time is that of reading the weight. Convolutions on vectors (window_rows.cpp)
// and products on tiles keep their own panels, which saves the packing of each call.
//
// A weight [n, k] of linear() lies in panels of 16 rows. The last panel is filled up with zeros, and so is k
// up to a multiple of 4. A panel is read in the order in which its elements lie:
//
//   float32, float16   [n / 16][k][16]
//   bfloat16           [n / 16][k / 2][16][2]
//
// Rows of 768 bfloat16 are short streams from memory, and their products need sums across the lanes of a
// vector. Panels are one long stream and need none.
#pragma once

#include <cstdint>
#include <functional>

#include "core/tensor_impl.h"
#include "cpu/amx/tile_tables.h"

namespace mezzo::cpu {

// Layout of a copy: two layouts that differ in bytes also differ in a member.
struct PackedLayout {
    const void* reader = nullptr;  // table of the kernels that read it; null: the panels of linear()
    std::int64_t n = 0, k = 0;
    std::size_t bytes = 0;
    std::int64_t taps = 1;  // of a convolution, whose steps lie tap by tap

    friend bool operator==(const PackedLayout&, const PackedLayout&) = default;
};

// Returns the copy of a weight in a layout. If the thread is in an InferenceMode and the copy is missing or
// out of date, makes it by write(memory of layout.bytes, 64-byte aligned), but not at the first use of the
// weight's version in any layout: weights that are computed for each call are not worth a copy. Returns null
// then, outside of that scope, for a view and for a weight that is not contiguous. Throws Error(memory).
Ref<Storage> packed_copy(const Tensor& weight, const PackedLayout& layout,
                         const std::function<void(char*)>& write);

// Returns the copy of a weight of linear() for a product of `rows` rows, under the conditions of
// packed_copy(). Returns null also for more than 8 rows, for a weight of fewer than 2^16 elements or 64
// outputs, for one that padding makes larger by more than an eighth, and for float64. Throws Error(memory).
Ref<Storage> packed_weight(const Tensor& weight, std::int64_t rows);

// Returns the copy of a bfloat16 weight [n, taps, channels] as panels for tiles of `product`, bfloat16's, in
// which the steps of each tap are filled up with zeros to whole tiles. For products of up to 4096 rows, under
// the conditions of packed_copy(); returns null also for more rows and for another dtype.
Ref<Storage> packed_for_tiles(const Tensor& weight, const TileProduct& product, std::int64_t taps,
                              std::int64_t channels, std::int64_t rows);
// Sets Gemm::b_tiles to such a copy of a weight [n, k], which is op(B), if tiles multiply. The returned copy
// must outlive the product.
Ref<Storage> read_packed_tiles(const Tensor& weight, Gemm& g);

// The panels of a packed copy.
const void* panels_of(const Storage& packed);

}  // namespace mezzo::cpu
