#include "mezzo/activation_layers.h"

#include <fmt/format.h>

namespace mezzo::nn {

std::string detail::described(const char* option, double value) {
    return fmt::format("{}={:g}", option, value);
}

std::string Hardtanh::describe() const { return fmt::format("min_val={:g}, max_val={:g}", min_val, max_val); }

std::string Threshold::describe() const {
    return fmt::format("threshold={:g}, value={:g}", threshold, value);
}

Tensor Softplus::operator()(const Tensor& input) const {
    return with_hooks(
        [this](const Tensor& x) {
            if (beta == 1 && threshold >= 20) return softplus(x);
            return where(x * beta > threshold, x, softplus(x * beta) / beta);
        },
        input);
}

std::string Softplus::describe() const { return fmt::format("beta={:g}, threshold={:g}", beta, threshold); }

PReLU::PReLU(const PReLUOptions& options) {
    check(options.num_parameters > 0, ErrorKind::value, "PReLU: num_parameters is ", options.num_parameters,
          "; it must be positive");
    weight = Parameter(
        full({options.num_parameters}, options.init, {.dtype = options.dtype, .device = options.device}));
}

std::string PReLU::describe() const { return fmt::format("num_parameters={}", weight.numel()); }

}  // namespace mezzo::nn
