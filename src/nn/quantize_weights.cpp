// quantize_weights(): 8-bit weights of modules, for inference.
#include "mezzo/quantize.h"

#include "autograd/autocast_state.h"
#include "core/enumerators.h"
#include "core/tensor_impl.h"
#include "mezzo/autograd.h"
#include "mezzo/module.h"
#include "mezzo/ops.h"
#include "mezzo/reduce_ops.h"
#include "nn/replace.h"
#include "nn/visiting.h"
#include "nn/weight_state.h"

namespace mezzo::nn {

namespace {

// Lists the parameters for which a module around them says is_linear_weight(), and which are not in 8 bit.
class LinearWeights : public FieldVisitor {
public:
    explicit LinearWeights(Module& root) {
        levels_.push_back({&root, 0});
        root.visit_fields(*this);
    }
    void parameter(const std::string& name, Parameter& p) override {
        if (!p.defined() || p.numel() == 0 || is_quantized(p)) return;
        const std::string path = prefix_ + name;
        for (const Level& level : levels_)
            if (level.module->is_linear_weight(std::string_view(path).substr(level.prefix))) {
                found.emplace_back(path, p);
                return;
            }
    }
    void module(const std::string& name, Module& child) override {
        const Visiting here(this, child);
        const std::size_t outer = prefix_.size();
        prefix_ += name + ".";
        levels_.push_back({&child, prefix_.size()});
        child.visit_fields(*this);
        levels_.pop_back();
        prefix_.resize(outer);
    }
    StateDict found;

private:
    struct Level {
        const Module* module;
        std::size_t prefix;  // length of its path with the dot
    };
    std::vector<Level> levels_;
    std::string prefix_;
};

void check_options(const QuantizeWeightsOptions& o) {
    check_dtype("quantize_weights", o.dtype);
    check(o.dtype == int8 || o.dtype == float8_e4m3fn, ErrorKind::dtype, "quantize_weights: dtype is ",
          o.dtype, "; it must be int8 or float8_e4m3fn");
    check(o.group > 0 && o.group % 32 == 0, ErrorKind::value, "quantize_weights: group is ", o.group,
          "; it must be a positive multiple of 32");
}

void check_weight(const std::string& name, const Tensor& weight) {
    check(weight.dim() == 2 && is_floating(weight.dtype()), ErrorKind::value, "quantize_weights: ", name,
          " is ", weight.dtype(), " ", weight.shape(), ", no floating matrix [out, in]");
    const Tensor numbers = weight.dtype() == float64 ? weight.to(float32) : weight;
    check(all(isfinite(numbers)).item<bool>(), ErrorKind::value, "quantize_weights: ", name,
          " has elements that are not finite in float32");
}

}  // namespace

void quantize_weights(Module& module, const QuantizeWeightsOptions& options) {
    check_options(options);
    const NoGrad no_grad;
    const NoAutocast plain;
    const LinearWeights weights(module);
    for (const auto& [name, weight] : weights.found) check_weight(name, weight);
    for (const auto& [name, weight] : weights.found) {
        if (is_quantized(weight)) continue;  // it has two names
        const std::int64_t k = weight.size(1);
        const bool grouped = options.dtype == int8 && k % options.group == 0;
        const StateWeight made =
            quantize_rows(weight.detach(), options.dtype, grouped ? k / options.group : 1);
        GradMeta& meta = weight->grads();
        meta.row_dtype = weight.dtype();
        weight.set_grad({});
        weight.set_requires_grad(false);
        replace_elements(weight, made.value);
        meta.scale = made.scale;
    }
}

}  // namespace mezzo::nn
