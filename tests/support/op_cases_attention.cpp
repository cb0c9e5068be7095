// Op cases of merged_linear, packed_attention and rotary_embedding.
#include "mezzo/attention_ops.h"
#include "tests/support/op_cases.h"

namespace mezzo::test {

namespace {

Tensor joined(In x) { return merged_linear(x[0], {x[1], x[2]}, {x[3], x[4]}); }
Tensor joined_bare(In x) { return merged_linear(x[0], {x[1], x[2], x[3]}); }
// The weights are adjacent slices of one tensor: one product.
Tensor joined_slices(In x) {
    const auto rows = [&](const Tensor& all) {
        return Tensors{all.slice(0, 0, 5), all.slice(0, 5, 8), all.slice(0, 8, 12)};
    };
    return merged_linear(x[0], rows(x[1]), rows(x[2]));
}
Tensor joined_twice(In x) { return merged_linear(x[0], {x[1], x[1]}, {x[2], Tensor()}); }

Tensor padded(In x) { return packed_attention(x[0], {.mask = x[1]}); }
Tensor causal(In x) { return packed_attention(x[0], {.mask = x[1], .causal = true}); }

// Rotates by constant angles.
template <RotaryPairs pairs> Tensor rotary(In x) {
    const Tensor angles = arange(12, {.dtype = float64, .device = x[0].device()}).reshape({3, 4}) * 0.3;
    const Dtype dtype = x[0].dtype() == float64 ? float64 : float32;
    return rotary_embedding(x[0], cos(angles).to(dtype), sin(angles).to(dtype), pairs);
}

}  // namespace

std::vector<OpCase> attention_cases() {
    using enum Under;
    using enum Domain;
    const Shape qkv{2, 4, 3, 5, 8};
    // clang-format off
    return {
        {"merged_linear", joined, {{6, 4}, {5, 4}, {3, 4}, {5}, {3}}, nullptr, low},
        {"merged_linear without biases", joined_bare, {{2, 3, 4}, {5, 4}, {5, 4}, {1, 4}}, nullptr, low},
        {"merged_linear of slices", joined_slices, {{6, 4}, {12, 4}, {12}}, nullptr, low, any, "", "", true, false},
        {"merged_linear with one weight twice", joined_twice, {{6, 4}, {5, 4}, {5}}, nullptr, low},
        // Numeric ranges are tested with scaled_dot_product_attention, whose kernels these are
        // (merged_linear_test).
        {"packed_attention", [](In x) { return packed_attention(x[0]); }, {qkv}, nullptr, low, unit, "",
         "packed_attention_grad", true, false},
        {"packed_attention with a padding mask", padded, {qkv, {2, 1, 1, 4}}, nullptr, low, unit, "fb", "", true, false, false},
        {"packed_attention with a full mask, causal", causal, {qkv, {2, 5, 4, 4}}, nullptr, low, unit, "fb", "", true, false, false},
        {"packed_attention with an added mask", padded, {qkv, {4, 4}}, nullptr, low, unit, "", "", true, false, false},
        {"rotary_embedding", rotary<RotaryPairs::halves>, {{2, 5, 3, 8}}, nullptr, keep, any, "", "", true, false, false},
        {"rotary_embedding of neighbours", rotary<RotaryPairs::neighbours>, {{2, 5, 3, 8}}, nullptr, keep, any, "", "", true, false, false},
    };
    // clang-format on
}

}  // namespace mezzo::test
