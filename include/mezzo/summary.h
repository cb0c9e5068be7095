// What a model consists of: its modules with the shapes of their results, parameters, bytes and products.
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
    bool ran = false;             // whether it was seen to compute something
    Shape output = {};            // of its last op, if it ran
    Dtype dtype = float32;        // of the same
    std::int64_t parameters = 0;  // elements of its own, not those of modules inside of it
    double flops = 0;             // of the products in it and in the modules inside of it
};

struct Summary {
    std::vector<ModuleSummary> modules;  // the model first, then depth first
    std::int64_t parameters = 0, trainable = 0;
    std::int64_t buffers = 0;  // elements
    // Of parameters and buffers as they are, and of parameters in each precision: what a model costs to keep.
    std::int64_t bytes = 0;
    double flops = 0;  // 2 per multiplication and addition of matrix products, convolutions and attention
    // Parameters that an op has read and that no module and no optimizer has listed, such as "float32 [3],
    // read by mul in head": fields that MEZZO_MODULE does not name. The log sink (mezzo/log.h) gets a line
    // with them.
    std::vector<std::string> unlisted = {};

    // A table and its totals.
    [[nodiscard]] std::string to_string() const;
};
std::ostream& operator<<(std::ostream& out, const Summary& summary);

namespace detail {
[[nodiscard]] Summary summarize(Module& model, const autograd::Callback<void()>& forward);
}

// Runs model(inputs...) once in eval mode, and restores the training flags and requires_grad. A module is
// found by the parameters that its ops read, by nn::ModuleScope, or by standing in a Sequential, ModuleList
// or ModuleDict; others are listed without an output, and so is an activation that Sequential fuses with the
// layer before it.
template <class M, class... Inputs> [[nodiscard]] Summary summary(M& model, const Inputs&... inputs) {
    return detail::summarize(model, [&] { static_cast<void>(model(inputs...)); });
}

}  // namespace mezzo::nn

#pragma GCC visibility pop
