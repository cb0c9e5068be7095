// Makes summaries of models: observes one forward pass, op by op.
#include "mezzo/insight/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>
#include <unordered_map>

#include "autograd/op_observer.h"
#include "core/gradient/unlisted.h"
#include "insight/flops.h"
#include "insight/si_number.h"
#include "mezzo/amp.h"
#include "mezzo/autograd.h"
#include "mezzo/eval_mode.h"
#include "mezzo/quantize.h"
#include "nn/module_paths.h"

namespace mezzo::nn {
namespace {

using insight::scaled;

// Prepares a model for tracing while it lives: turns off the training flags of all modules, and turns on
// requires_grad of all parameters but 8-bit weights, so that views have histories and observers see them.
class [[nodiscard]] Evaluating {
public:
    explicit Evaluating(Module& model) : mode_(model) {
        for (const Tensor& p : model.parameters()) {
            if (p.requires_grad() || is_quantized(p)) continue;
            frozen_.push_back(p);
            p.set_requires_grad(true);
        }
    }
    ~Evaluating() {
        for (const Tensor& p : frozen_) p.set_requires_grad(false);
    }
    Evaluating(const Evaluating&) = delete;
    Evaluating& operator=(const Evaluating&) = delete;

private:
    const EnableGrad recorded_;
    EvalMode mode_;
    Tensors frozen_;
};

class Watcher final : public OpObserver {
public:
    explicit Watcher(const Module& model) : places_(&model) {}

    void called(const AnyOp& op, In given, In results) override {
        if (!results.empty() && results[0].defined())
            note(op.name(), given, results[0], insight::flops_of(op, given, results));
    }
    // For example the last step of a batch norm, which restores the shape of its rows.
    void viewed(const Tensor& given, const Tensor& view) override { note("a view", {&given, 1}, view, 0); }

    void describe(ModuleSummary& module) const {
        const auto seen = seen_.find(module.path);
        if (seen == seen_.end()) return;
        module.ran = true;
        module.output = seen->second.output;
        module.dtype = seen->second.dtype;
        module.flops = seen->second.flops;
    }

    const UnlistedParameters& unlisted() const { return unlisted_; }

private:
    struct Seen {
        Shape output;
        Dtype dtype = float32;
        double flops = 0;
    };
    // Records a result of the module to which an op belongs, and of the modules around it.
    void note(const char* op, In given, const Tensor& result, double flops) {
        std::string path = places_.path(places_.of_call(given));
        for (const Tensor& x : given) unlisted_.note(x, op, path);
        for (;;) {
            Seen& seen = seen_[path];
            seen.output = result.shape();
            seen.dtype = result.dtype();
            seen.flops += flops;
            if (path.empty()) return;
            const std::size_t dot = path.rfind('.');
            path.resize(dot == std::string::npos ? 0 : dot);
        }
    }
    nn::Places places_;
    UnlistedParameters unlisted_;
    std::unordered_map<std::string, Seen> seen_;
};

class OwnElements : public FieldVisitor {
public:
    void parameter(const std::string&, Parameter& p) override { count += p.defined() ? p.numel() : 0; }
    std::int64_t count = 0;
};

std::int64_t own_parameters(Module& module) {
    OwnElements own;
    module.visit_fields(own);
    return own.count;
}

std::int64_t bytes_of(const Tensor& x) { return x.numel() * std::int64_t(size_of(x.dtype())); }

// "1,234,567".
std::string grouped(std::int64_t number) {
    const std::string digits = fmt::format("{}", number);
    std::string text;
    for (std::size_t i = 0; i < digits.size(); ++i) {
        if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
        text += digits[i];
    }
    return text;
}

std::string label(const ModuleSummary& module) {
    const std::size_t dot = module.path.rfind('.');
    std::string text(std::size_t(2 * module.depth), ' ');
    if (!module.path.empty()) text.append(module.path, dot == std::string::npos ? 0 : dot + 1).append(": ");
    return text.append(module.type);
}

std::string output_of(const ModuleSummary& module) {
    if (!module.ran) return "-";
    return mezzo::detail::text_of(module.output) +
           (module.dtype == float32 ? "" : std::string(" ") + name(module.dtype));
}

}  // namespace

Summary detail::summarize(Module& model, const autograd::Callback<void()>& forward) {
    Summary result;
    const auto modules = model.named_modules();
    {
        const Evaluating evaluating(model);
        const Watcher watcher(model);
        amp::Fp8State fp8(model);
        const StateDict histories = fp8.state_dict();
        try {
            forward();
        } catch (...) {
            fp8.load_state_dict(histories);
            throw;
        }
        fp8.load_state_dict(histories);
        for (const auto& [path, module] : modules) {
            ModuleSummary& entry = result.modules.emplace_back();
            entry.path = path;
            entry.type = module->type_name();
            entry.depth = path.empty() ? 0 : 1 + int(std::count(path.begin(), path.end(), '.'));
            entry.parameters = own_parameters(*module);
            watcher.describe(entry);
        }
        result.unlisted = watcher.unlisted().texts();
        watcher.unlisted().warn(std::string("nn::summary: ") + model.type_name());
    }
    result.parameters = model.num_parameters();
    result.trainable = model.num_parameters(true);
    for (const auto& [name, tensor] : model.named_buffers()) {
        result.buffers += tensor.numel();
        result.bytes += bytes_of(tensor);
    }
    for (const Tensor& p : model.parameters()) {
        result.bytes += bytes_of(p);
        if (const Tensor scale = weight_scale(p); scale.defined()) result.bytes += bytes_of(scale);
    }
    result.flops = result.modules.front().flops;
    return result;
}

std::string Summary::to_string() const {
    std::size_t first = 6, second = 6;
    for (const ModuleSummary& module : modules) {
        first = std::max(first, label(module).size());
        second = std::max(second, output_of(module).size());
    }
    std::string text = fmt::format("{:<{}}  {:<{}}  {:>13}  {:>12}\n", "module", first, "output", second,
                                   "parameters", "FLOPs");
    for (const ModuleSummary& module : modules)
        text += fmt::format("{:<{}}  {:<{}}  {:>13}  {:>12}\n", label(module), first, output_of(module),
                            second, module.parameters > 0 ? grouped(module.parameters) : "-",
                            module.flops > 0 ? scaled(module.flops, "") : "-");
    text += fmt::format("parameters: {}, {} of them trainable; buffers: {}\n", grouped(parameters),
                        grouped(trainable), grouped(buffers));
    for (const std::string& parameter : unlisted)
        text += "no module lists a parameter, " + parameter + ": neither trained nor saved\n";
    text += fmt::format("memory: {} as it is; parameters in float32 {}, in 16 bit {}\n",
                        scaled(double(bytes), "B"), scaled(4.0 * double(parameters), "B"),
                        scaled(2.0 * double(parameters), "B"));
    return text + fmt::format("products of this input: {}\n", scaled(flops, "FLOPs"));
}

std::ostream& operator<<(std::ostream& out, const Summary& summary) { return out << summary.to_string(); }

}  // namespace mezzo::nn
