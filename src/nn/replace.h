// Replacement of the elements of a tensor, which stays the same object.
#pragma once

#include "core/internal.h"
#include "mezzo/tensor.h"

namespace mezzo::nn {

// Makes tensor hold value's elements: its own, converted to any dtype or moved to any device. All handles of
// tensor see the change.
void replace_elements(const Tensor& tensor, const Tensor& value);

// Moves the elements of contiguous tensors into one allocation, directly behind each other
// (core/memory/flat_view.h), by replace_elements(). Does nothing if they lie like that already, or differ in
// dtype or device.
MEZZO_INTERNAL void place_side_by_side(const Tensors& tensors);

// The groups of tensors that lie directly behind each other in memory.
std::vector<Tensors> groups_side_by_side(const Tensors& tensors);

// Runs convert(), which replaces elements of the tensors, and then makes each of these groups contiguous
// again.
template <class F> void keep_side_by_side(const Tensors& tensors, const F& convert) {
    const std::vector<Tensors> groups = groups_side_by_side(tensors);
    convert();
    for (const Tensors& group : groups) place_side_by_side(group);
}

}  // namespace mezzo::nn
