#include "nn/weight_state.h"

#include <algorithm>
#include <string_view>

#include "core/tensor_impl.h"
#include "mezzo/autograd.h"
#include "mezzo/ops.h"
#include "mezzo/quantize.h"
#include "mezzo/reduce_ops.h"

namespace mezzo::nn {

namespace {

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

}  // namespace

StateScales::StateScales(const StateDict& state) {
    const auto has_codes = [](const auto& entry) {
        return entry.second.defined() && is_code(entry.second.dtype());
    };
    if (std::none_of(state.begin(), state.end(), has_codes)) return;
    scales_.resize(state.size());
    is_scale_.resize(state.size());
    constexpr std::string_view suffix = "_scale";
    for (std::size_t i = 0; i < state.size(); ++i) {
        const auto& [name, scale] = state[i];
        if (!name.ends_with(suffix) || !scale.defined() || !is_floating(scale.dtype())) continue;
        const std::string_view of = std::string_view(name).substr(0, name.size() - suffix.size());
        for (std::size_t j = 0; j < state.size(); ++j)
            if (state[j].first == of && has_codes(state[j])) scales_[j] = scale, is_scale_[i] = true;
    }
}

void check_scale(const char* op, const std::string& name, const StateWeight& from) {
    if (!from.scale.defined() || from.scale.numel() == 1) return;
    const Shape &scale = from.scale.shape(), &value = from.value.shape();
    bool fits = scale.size() == value.size();
    for (int d = 0; fits && d < value.size(); ++d) fits = scale[d] > 0 && value[d] % scale[d] == 0;
    fits = fits || (scale.size() == 1 && value.size() > 0 && scale[0] == value[0]);
    check(fits, ErrorKind::shape, op, ": the scale ", scale, " of ", name, " does not fit its codes ", value,
          "; it needs one element, one for each row, or sizes that divide those of the codes");
}

void copy_weight(const StateWeight& to, const StateWeight& from) {
    if (!to.scale.defined()) {
        to.value.copy_(numbers_of(from).to(to.value.device()));
        return;
    }
    if (from.scale.defined() && from.value.dtype() == to.value.dtype()) {
        const Tensor scale = with_dims(from.scale, from.value);
        if (covers(to.scale, scale)) {
            to.value.copy_(from.value.to(to.value.device()));
            to.scale.copy_(scale.to(to.scale.device()).expand(to.scale.shape()));
            return;
        }
    }
    const Tensor numbers = numbers_of(from).to(to.value.device());
    if (to.value.is_contiguous()) {
        const StateWeight made = quantized_rows(numbers, to.value.dtype(), to.scale.size(1));
        to.value.copy_(made.value), to.scale.copy_(made.scale);
    } else {  // as_saved() has transposed both
        const StateWeight made = quantized_rows(numbers.t(), to.value.dtype(), to.scale.size(0));
        to.value.copy_(made.value.t()), to.scale.copy_(made.scale.t());
    }
}

StateWeight quantized_rows(const Tensor& numbers, Dtype dtype, std::int64_t groups) {
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
