// Loops over the elements of recurrent cells, one table per instruction set (isa_unit.h): a row of `hidden`
// elements at a time.
#pragma once

#include <cstdint>

#include "cpu/isa/isa.h"
#include "mezzo/dtype.h"

namespace mezzo::cpu {

// Pointers of a row. T is `dtype`, R float, or double for double. Gates lie `n` elements apart.
// A null input counts as zeros, and a null output is not written.
struct RecurrentRow {
    Dtype dtype;
    std::int64_t n;
    const void *gates, *bias, *state;  // T
    const void *product, *cell_state;  // R
    void *new_state, *saved;           // T
    void *new_cell, *last_cell;        // R
};
struct RecurrentGradRow {
    Dtype dtype;
    std::int64_t n;
    const void* g;                          // T
    const void* carried_in;                 // R
    const void *new_state, *state, *saved;  // T
    const void *new_cell, *cell_state;      // R
    void *carried, *cell_grad;              // R; the second is read as well
    void *gates, *product;                  // T
};

// By RecurrentCell.
struct RecurrentLoopsOf {
    void (*forward[4])(const RecurrentRow& row);
    void (*grad[4])(const RecurrentGradRow& row);
};
struct RecurrentLoops {
    RecurrentLoopsOf f32, f64;  // computed in; f64 in recurrent_portable only: it is rare
};
extern const RecurrentLoops recurrent_portable, recurrent_avx2, recurrent_avx512;

}  // namespace mezzo::cpu
