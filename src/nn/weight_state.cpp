#include "nn/weight_state.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "autograd/autocast_state.h"
#include "core/tensor_impl.h"
#include "mezzo/autograd.h"
#include "mezzo/module.h"
#include "mezzo/ops.h"
#include "mezzo/pointwise_ops.h"
#include "mezzo/quantize.h"
#include "mezzo/reduce_ops.h"

namespace mezzo::nn {

namespace {

constexpr std::string_view suffix = "_scale";

bool is_code(Dtype dtype) { return dtype == int8 || dtype == float8_e4m3fn || dtype == float8_e5m2; }

// The scale with as many dimensions as the value.
Tensor with_dims(const Tensor& scale, const Tensor& value) {
    Shape shape;
    for (int d = 0; d < value.dim(); ++d) shape.push_back(1);
    if (scale.numel() == 1) return scale.reshape(shape);
    if (scale.dim() == value.dim()) return scale;
    shape[0] = scale.numel();
    return scale.reshape(shape);
}

// codes times scale in float32.
Tensor numbers_of(const StateWeight& weight) {
    if (!weight.scale.defined()) return weight.value;
    const Tensor codes = alias(weight.value);
    codes->grads().scale = with_dims(weight.scale, codes);
    return dequantize_weight(codes);
}

// Whether each group of a weight has one factor in another scale of its codes.
bool covers(const Tensor& own, const Tensor& given) {
    for (int d = 0; d < own.dim(); ++d)
        if (given.size(d) != 1 && given.size(d) != own.size(d)) return false;
    return true;
}

// Whether codes are copied as they are.
bool same_codes(const StateWeight& to, const StateWeight& from) {
    return to.scale.defined() && from.scale.defined() && from.value.dtype() == to.value.dtype() &&
           covers(to.scale, with_dims(from.scale, from.value));
}

void check_scale(const char* op, const std::string& name, const StateWeight& from) {
    if (!from.scale.defined()) return;
    const Dtype dtype = from.scale.dtype();
    check(dtype == float8_e8m0fnu || is_floating(dtype), ErrorKind::dtype, op, ": the scale of ", name,
          " is ", dtype, "; it needs a floating dtype or float8_e8m0fnu");
    if (from.scale.numel() == 1) return;
    const Shape &scale = from.scale.shape(), &value = from.value.shape();
    bool fits = scale.size() == value.size();
    for (int d = 0; fits && d < value.size(); ++d) fits = scale[d] > 0 && value[d] % scale[d] == 0;
    fits = fits || (scale.size() == 1 && value.size() > 0 && scale[0] == value[0]);
    check(fits, ErrorKind::shape, op, ": the scale ", scale, " of ", name, " does not fit its codes ", value,
          "; it needs one element, one for each row, or sizes that divide those of the codes");
}

// Whether two tensors have the same elements; NaN equals NaN.
bool same_elements(const Tensor& a, const Tensor& b) {
    if (a.impl() == b.impl()) return true;
    const auto numbers = [](const Tensor& x) { return is_storage_only(x.dtype()) ? x.to(float32) : x; };
    const Tensor x = numbers(a), y = numbers(b.to(a.device()));
    if (equal(x, y)) return true;
    const IsCloseOptions exactly{.rtol = 0, .atol = 0, .equal_nan = true};
    return is_floating(x.dtype()) && all(isclose(x, y, exactly)).item<bool>();
}

// Whether two weights for one tensor are the same, with their scales.
bool same_weight(const StateWeight& a, const StateWeight& b) {
    if (a.scale.defined() != b.scale.defined() || !same_elements(a.value, b.value)) return false;
    return !a.scale.defined() || (a.scale.shape() == b.scale.shape() && same_elements(a.scale, b.scale));
}

// Weights of one tensor may be given by each of its names.
void check_repeated(const char* op, const OwnState& own, const WeightCopy& first, const WeightCopy& second) {
    check(same_weight(first.from, second.from), ErrorKind::value, op, ": ", first.name,
          first.name == second.name
              ? " is there twice"
              : " and " + second.name + " are both " + own.entries()[first.target].first,
          ", with other values");
}

void copy_weight(const StateWeight& to, const StateWeight& from) {
    if (!to.scale.defined()) {
        to.value.copy_(numbers_of(from).to(to.value.device()));
        return;
    }
    if (same_codes(to, from)) {
        to.value.copy_(from.value.to(to.value.device()));
        to.scale.copy_(with_dims(from.scale, from.value).to(to.scale.device()).expand(to.scale.shape()));
        return;
    }
    const Tensor numbers = numbers_of(from).to(to.value.device());
    // The scale has the codes' number of rows, unless as_saved() has transposed both.
    const bool rows = to.scale.size(0) == to.value.size(0);
    const StateWeight made =
        quantize_rows(rows ? numbers : numbers.t(), to.value.dtype(), to.scale.size(rows ? 1 : 0));
    to.value.copy_(rows ? made.value : made.value.t());
    to.scale.copy_(rows ? made.scale : made.scale.t());
}

}  // namespace

OwnState::OwnState(const Module& module, std::pair<StateDict, NamePositions> listed)
    : entries_(std::move(listed.first)), info_(entries_.size()) {
    for (std::size_t t = 0; t < entries_.size(); ++t) positions_.emplace(entries_[t].first, t);
    for (auto& [name, t] : listed.second) positions_.emplace(std::move(name), t);
    for (const auto& [name, p] : module.named_parameters()) {
        const std::size_t t = find(name);
        if (t == size()) continue;
        info_[t].is_parameter = true;
        if (!is_quantized(p)) continue;
        info_[t].scale = entries_[t + 1].second;  // state_dict() has it behind the weight
        info_[t + 1].is_scale = true;
    }
}

std::size_t OwnState::find(std::string_view name) const {
    const auto found = positions_.find(std::string(name));
    return found == positions_.end() ? size() : found->second;
}

bool OwnState::takes_scale(std::size_t t) const {
    const Tensor& x = entries_[t].second;
    return info_[t].scale.defined() || (is_floating(x.dtype()) && x.dim() > 1);  // vectors are no weights
}

StateScales::StateScales(const StateDict& state, const std::vector<std::size_t>& targets,
                         const OwnState& own) {
    std::unordered_map<std::string_view, std::size_t> codes;
    for (std::size_t i = 0; i < state.size(); ++i)
        if (state[i].second.defined() && is_code(state[i].second.dtype())) codes.emplace(state[i].first, i);
    if (codes.empty()) return;
    scales_.resize(state.size());
    is_scale_.resize(state.size());
    for (std::size_t i = 0; i < state.size(); ++i) {
        const auto& [name, scale] = state[i];
        if (!name.ends_with(suffix) || !scale.defined()) continue;
        const auto of = codes.find(std::string_view(name).substr(0, name.size() - suffix.size()));
        if (of == codes.end()) continue;
        if (targets[i] < own.size() && !own.is_scale(targets[i])) continue;
        const std::size_t target = targets[of->second];
        if (target < own.size() && !own.takes_scale(target)) continue;
        scales_[of->second] = scale;
        is_scale_[i] = true;
    }
}

bool lacks_scale(const StateWeight& to, const StateWeight& from) {
    return to.scale.defined() && !from.scale.defined() && from.value.dtype() == to.value.dtype();
}

void check_copies(const char* op, const OwnState& own, const std::vector<WeightCopy>& copies) {
    const NoGrad no_grad;
    const NoAutocast plain;
    std::vector<const WeightCopy*> first(own.size());
    for (const WeightCopy& copy : copies) {
        const auto& [target, name, from] = copy;
        if (first[target] == nullptr)
            first[target] = &copy;
        else
            check_repeated(op, own, *first[target], copy);
        const StateWeight to = own.weight(target);
        check(from.value.dtype() != int8 || from.scale.defined() || !own.is_parameter(target) ||
                  !own.takes_scale(target),
              ErrorKind::value, op, ": ", name, " has int8 codes, and their scale ", name, suffix,
              " is not there");
        check_scale(op, name, from);
        if (!to.scale.defined() || same_codes(to, from)) continue;
        const Tensor numbers = numbers_of(from);  // in 16 bit without a copy
        const Tensor finite = isfinite(is_16bit(numbers.dtype()) ? numbers : numbers.to(float32));
        check(all(finite).item<bool>(), ErrorKind::value, op, ": ", name,
              " has elements that are not finite, and the module's weight is in 8 bit");
    }
}

void copy_weights(const OwnState& own, const std::vector<WeightCopy>& copies) {
    const NoGrad plain;
    for (const WeightCopy& copy : copies) copy_weight(own.weight(copy.target), copy.from);
}

StateWeight quantize_rows(const Tensor& numbers, Dtype dtype, std::int64_t groups) {
    const NoGrad no_grad;
    const std::int64_t n = numbers.size(0), k = numbers.size(1);
    const double largest = dtype_info(dtype).max;
    constexpr double least = 0x1p-126;  // scale
    const TensorOptions of_scale{.dtype = dtype == int8 ? bfloat16 : float32, .device = numbers.device()};
    const StateWeight made{empty({n, k}, {.dtype = dtype, .device = numbers.device()}),
                           empty({n, groups}, of_scale)};
    // A block of rows at a time, so that float32 copies of large weights are small.
    const std::int64_t block = std::max<std::int64_t>(1, (1 << 22) / k);
    for (std::int64_t begin = 0; begin < n; begin += block) {
        const std::int64_t end = std::min(n, begin + block);
        const Tensor x = numbers.slice(0, begin, end).to(float32).reshape({end - begin, groups, k / groups});
        const Tensor top = max(abs(x), -1, {.keepdim = true});
        const Tensor scale = where(top > 0.0, clamp(top / largest, least, 0x1p127), 1.0).to(of_scale.dtype);
        Tensor q = x / scale.to(float32);
        if (dtype == int8) q = round(q);
        made.value.slice(0, begin, end)
            .copy_(clamp(q, -largest, largest).to(dtype).reshape({end - begin, k}));
        made.scale.slice(0, begin, end).copy_(scale.squeeze(-1));
    }
    return made;
}

}  // namespace mezzo::nn
