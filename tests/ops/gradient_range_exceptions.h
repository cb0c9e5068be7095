// Lines of gradient_range_lines.h whose values or gradients have larger errors, and why.
#pragma once

#include <map>
#include <string>

namespace mezzo::test {

// Allowed error of a derivative by an input, beyond rounding, and the reason for it.
struct Exception {
    double steps = 0;             // of the least number of the dtype, times g
    double units = 0;             // of roundoff, times g
    double absolute = 0;          // times g
    bool of_logarithm = false;    // as if the logarithm of the derivative were rounded, and to 0
    bool beyond_float32 = false;  // infinite, or off by a subnormal number of float32, where float32 computes
    bool as_float32 = false;      // the same in float32 is no better
    const char* reason = "";
};
inline constexpr char reads_its_result[] =
    "the gradient reads the result, which rounding has made 0 or 1: reading the input would keep one more "
    "tensor";
inline constexpr char tail[] = "the error of the erf-form GELU in its left tail is absolute";
inline constexpr char narrow[] =
    "float32 computes it, and a factor of it leaves the range that bfloat16 shares with it";
inline constexpr char cancels[] = "terms cancel, so that an error is relative to the largest of them";

// The exception for the value itself, not for its gradient.
inline Exception exception_for_value(const std::string& name) {
    static const std::map<std::string, Exception> all = {
        {"gelu", {.absolute = 6e-8, .reason = tail}},
        {"mish_grad", {.as_float32 = true, .reason = narrow}},
        {"silu_grad", {.as_float32 = true, .reason = narrow}},
        {"addcmul", {.beyond_float32 = true, .reason = narrow}},
        {"kl_div", {.beyond_float32 = true, .reason = narrow}},
        {"linear with gelu", {.as_float32 = true, .reason = narrow}},
        {"cosine_embedding_loss", {.as_float32 = true, .reason = narrow}},
        {"batch_norm", {.as_float32 = true, .reason = narrow}},
        {"local_response_norm", {.as_float32 = true, .reason = narrow}},
    };
    const auto found = all.find(name);
    return found == all.end() ? Exception{} : found->second;
}

inline Exception exception_for(const std::string& name) {
    static const std::map<std::string, Exception> all = {
        {"exp", {.steps = 1, .reason = reads_its_result}},
        {"tanh", {.units = 2, .reason = reads_its_result}},
        {"sigmoid", {.units = 1, .reason = reads_its_result}},
        {"softmax", {.units = 2, .reason = reads_its_result}},
        {"softmin", {.units = 2, .reason = reads_its_result}},
        {"glu", {.beyond_float32 = true, .reason = narrow}},
        {"addcdiv", {.beyond_float32 = true, .reason = narrow}},
        {"log_softmax", {.steps = 1, .of_logarithm = true, .reason = reads_its_result}},
        {"linear with gelu", {.as_float32 = true, .reason = narrow}},
        {"cosine_similarity", {.as_float32 = true, .reason = cancels}},
        {"normalize", {.as_float32 = true, .reason = cancels}},
        {"normalize of p 3", {.as_float32 = true, .reason = cancels}},
        {"normalize of p 1", {.as_float32 = true, .reason = cancels}},
        {"cosine_embedding_loss", {.as_float32 = true, .reason = cancels}},
        {"layer_norm", {.as_float32 = true, .reason = cancels}},
        {"layer_norm with weights", {.as_float32 = true, .reason = cancels}},
        {"rms_norm", {.as_float32 = true, .reason = cancels}},
        {"dropout_add_layer_norm", {.as_float32 = true, .reason = cancels}},
        {"batch_norm", {.as_float32 = true, .reason = cancels}},
        {"group_norm", {.as_float32 = true, .reason = cancels}},
        {"instance_norm", {.as_float32 = true, .reason = cancels}},
        {"local_response_norm", {.as_float32 = true, .reason = cancels}},
        {"scaled_dot_product_attention", {.units = 2, .reason = reads_its_result}},
        {"packed_attention", {.units = 2, .reason = reads_its_result}},
        {"recurrent", {.units = 2, .reason = reads_its_result}},
        {"recurrent, an LSTM", {.units = 2, .reason = reads_its_result}},
        {"recurrent, a GRU", {.units = 2, .reason = reads_its_result}},
        {"gelu", {.absolute = 6e-8, .reason = tail}},
        {"mish", {.beyond_float32 = true, .reason = narrow}},
        {"silu", {.beyond_float32 = true, .reason = narrow}},
        {"gelu_tanh", {.beyond_float32 = true, .reason = narrow}},
        {"kl_div", {.beyond_float32 = true, .reason = narrow}},
        {"pow", {.beyond_float32 = true, .reason = narrow}},
        {"pow_scalar to -2", {.beyond_float32 = true, .reason = narrow}},
    };
    const auto found = all.find(name);
    return found == all.end() ? Exception{} : found->second;
}

}  // namespace mezzo::test
