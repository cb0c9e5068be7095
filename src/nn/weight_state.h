// 8-bit weights in states: codes named "weight", and their scale "weight_scale".
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "mezzo/state_dict.h"

namespace mezzo::nn {

class Module;

// A weight of a state: numbers, or codes with a scale.
struct StateWeight {
    Tensor value, scale;
};

using NamePositions = std::vector<std::pair<std::string, std::size_t>>;
// The state_dict() of a module, which has each tensor once, and the positions of tensors in it by the further
// names that tied weights have.
std::pair<StateDict, NamePositions> list_state(const Module& module);

// The state of a module: its state_dict(), and which entries are parameters, 8-bit weights and their scales.
class OwnState {
public:
    explicit OwnState(const Module& module) : OwnState(module, list_state(module)) {}
    const StateDict& entries() const { return entries_; }
    std::size_t size() const { return entries_.size(); }
    // Position of the entry of a name; a tied weight has several. size() for an unknown name.
    std::size_t find(std::string_view name) const;
    // Entry t with its scale, which is undefined unless the entry is an 8-bit weight of quantize_weights().
    StateWeight weight(std::size_t t) const { return {entries_[t].second, info_[t].scale}; }
    // Whether entry t is the scale of an 8-bit weight.
    bool is_scale(std::size_t t) const { return info_[t].is_scale; }
    bool is_parameter(std::size_t t) const { return info_[t].is_parameter; }
    // Whether codes with a scale are converted for entry t: floating tensors and 8-bit weights.
    bool takes_scale(std::size_t t) const;

private:
    struct Info {
        Tensor scale;
        bool is_scale = false, is_parameter = false;
    };
    OwnState(const Module& module, std::pair<StateDict, NamePositions> listed);

    StateDict entries_;
    std::unordered_map<std::string, std::size_t> positions_;
    std::vector<Info> info_;
};

// Scales of the 8-bit weights of a given state, by the position of an entry: "x_scale" is the scale of codes
// "x", unless the module has an entry "x_scale" that is no scale, or an entry "x" that takes codes as they
// are. targets: for each entry of the state its position in `own`, or own.size().
class StateScales {
public:
    StateScales(const StateDict& state, const std::vector<std::size_t>& targets, const OwnState& own);
    // The scale of the tensor at i; undefined if it has none.
    Tensor of(std::size_t i) const { return scales_.empty() ? Tensor() : scales_[i]; }
    // Whether entry i is the scale of another one.
    bool is_scale(std::size_t i) const { return !is_scale_.empty() && is_scale_[i]; }

private:
    Tensors scales_;
    std::vector<bool> is_scale_;
};

// Whether `from` has codes for an 8-bit weight of the same dtype, but no scale.
bool lacks_scale(const StateWeight& to, const StateWeight& from);
// A copy from a state into entry `target` of a module's own state. `name` is the one in the state.
struct WeightCopy {
    std::size_t target;
    std::string name;
    StateWeight from;
};
// Throws, in the name of `op`, for what copy_weights() cannot copy:
//   Error(shape)  the scale has neither one element, nor one for each row of the value, nor as many
//                 dimensions as the value, each a divisor of its size
//   Error(dtype)  the scale is neither floating nor float8_e8m0fnu
//   Error(value)  int8 codes without a scale for a parameter, numbers that are not finite for 8 bit, or two
//                 entries for one target with different values
void check_copies(const char* op, const OwnState& own, const std::vector<WeightCopy>& copies);
// Copies values, converting dtype and device. Codes are copied as they are if both have the same dtype and
// each group of the target has one factor in the given scale; else they become numbers, and these become
// codes.
void copy_weights(const OwnState& own, const std::vector<WeightCopy>& copies);

// Codes [n, k] of a dtype and their scale [n, groups], from finite numbers [n, k] (mezzo/quantize.h).
StateWeight quantize_rows(const Tensor& numbers, Dtype dtype, std::int64_t groups);

}  // namespace mezzo::nn
