// summary(): the modules of a model with their output shapes, parameters, bytes and FLOPs.
//
//   const nn::Summary summary = nn::summary(net, x);
//   std::cout << summary << summary.parameters << " parameters\n";
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "mezzo/callback.h"
#include "mezzo/module.h"

#pragma GCC visibility push(default)

namespace mezzo::nn {

struct ModuleSummary {
    std::string path;  // "encoder.layers.0"; "" for the model
    std::string type;
    int depth = 0;                // modules around it
    bool ran = false;             // whether an op of it was recorded
    Shape output = {};            // of its last op, if it ran
    Dtype dtype = float32;        // of the same
    std::int64_t parameters = 0;  // its own elements, without those of submodules
    double flops = 0;             // of the products in it and in its submodules
};

struct Summary {
    std::vector<ModuleSummary> modules;  // the model first, then depth first
    std::int64_t parameters = 0, trainable = 0;
    std::int64_t buffers = 0;  // elements
    // Size of parameters and buffers in their dtypes, and of the scales of 8-bit weights.
    std::int64_t bytes = 0;
    double flops = 0;  // 2 per multiplication and addition of matrix products, convolutions and attention
    // Parameters that an op has read but no module and no optimizer lists, such as "float32 [3], read by mul
    // in head": fields that MEZZO_MODULE does not name. The log sink (mezzo/log.h) gets a line with them.
    std::vector<std::string> unlisted = {};

    // A table and its totals.
    [[nodiscard]] std::string to_string() const;
};
std::ostream& operator<<(std::ostream& out, const Summary& summary);

namespace detail {
[[nodiscard]] Summary summarize(Module& model, const autograd::Callback<void()>& forward);
}

// Runs model(inputs...) once in eval mode, and restores training flags, requires_grad, and the histories of
// Recipe::delayed (mezzo/amp.h). A module is found by the parameters that its ops read, by nn::ModuleScope,
// or by standing in a Sequential, ModuleList or ModuleDict; others are listed without an output, and so is an
// activation that Sequential fuses with the layer before it.
template <class M, class... Inputs> [[nodiscard]] Summary summary(M& model, const Inputs&... inputs) {
    return detail::summarize(model, [&] { static_cast<void>(model(inputs...)); });
}

}  // namespace mezzo::nn

#pragma GCC visibility pop
