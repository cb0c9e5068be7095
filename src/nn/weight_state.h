// 8-bit weights in states: codes named "weight", and their scale "weight_scale".
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "mezzo/state_dict.h"

namespace mezzo::nn {

// Scales of the 8-bit tensors of a state, by the position of an entry.
class StateScales {
public:
    explicit StateScales(const StateDict& state);
    // The scale of the tensor at i; undefined if it has none.
    Tensor of(std::size_t i) const { return scales_.empty() ? Tensor() : scales_[i]; }
    // Whether entry i is the scale of another one.
    bool is_scale(std::size_t i) const { return !is_scale_.empty() && is_scale_[i]; }

private:
    Tensors scales_;
    std::vector<bool> is_scale_;
};

// A weight of a state: numbers, or codes with a scale.
struct StateWeight {
    Tensor value, scale;
};
// Throws Error(shape), in the name of `op`, unless the scale is undefined, has one element, one for each row
// of the value, or as many dimensions as the value, each a divisor of its size.
void check_scale(const char* op, const std::string& name, const StateWeight& from);
// Copies values, converting dtype and device. Codes are copied as they are if both have the same dtype and
// each group of `to` has one factor in the scale of `from`; else they become numbers, and these become codes.
void copy_weight(const StateWeight& to, const StateWeight& from);

// Codes [n, k] of a dtype and their scale [n, groups], from finite numbers [n, k] (mezzo/quantize.h).
StateWeight quantized_rows(const Tensor& numbers, Dtype dtype, std::int64_t groups);

}  // namespace mezzo::nn
