// Exchanging the elements of a tensor while it stays the same object.
#pragma once

#include "mezzo/tensor.h"

namespace mezzo::nn {

// Makes tensor hold value's elements (of the same shape, any dtype and device). All handles of tensor see the
// change.
void replace_elements(const Tensor& tensor, const Tensor& value);

// Moves the elements of contiguous tensors, in the sense of replace_elements(), into one allocation, one
// directly behind the other (core/side_by_side.h). Nothing happens if they lie like that already, or differ
// in dtype or device.
void place_side_by_side(const Tensors& tensors);

// The groups of tensors that lie side by side.
std::vector<Tensors> groups_side_by_side(const Tensors& tensors);

// Runs convert(), which replaces elements of the tensors. What lay side by side does so afterwards.
template <class F> void keep_side_by_side(const Tensors& tensors, const F& convert) {
    const std::vector<Tensors> groups = groups_side_by_side(tensors);
    convert();
    for (const Tensors& group : groups) place_side_by_side(group);
}

}  // namespace mezzo::nn
