// User-defined functions and checkpoints: nodes whose gradient is a callback.
#include <algorithm>

#include "autograd/engine.h"
#include "autograd/extra.h"
#include "autograd/op_observer.h"
#include "core/scoped_value.h"
#include "core/thread_state.h"
#include "mezzo/ops.h"

namespace mezzo {

namespace {

const Op<NoAttributes> function_op{{.name = "function", .saves = save_none}};
const Op<NoAttributes> checkpoint_op{{.name = "checkpoint", .saves = save_none}};

// Versions of saved tensors after the forward pass.
class SavedVersions {
public:
    SavedVersions() = default;
    explicit SavedVersions(const Tensors& saved) {
        for (const Tensor& x : saved) versions_.push_back(x.defined() ? x.version() : 0);
    }
    // Throws Error(state) if one of the tensors was written to since. `what` is their name in the error.
    void check_unchanged(const char* op, const char* what, const Tensors& saved) const {
        for (std::size_t i = 0; i < saved.size(); ++i)
            check(
                !saved[i].defined() || saved[i].version() == versions_[i], ErrorKind::state, op, ": its ",
                what, " ", i,
                " was changed in place after the forward pass, and the gradient needs the old value; change "
                "a clone()");
    }

private:
    std::vector<std::uint64_t> versions_;
};

struct UserFunction final : NodeFunction {
    UserFunction(const char* n, autograd::Context c, autograd::Backward b, const AutocastState& s)
        : name(n), context(std::move(c)), gradient(std::move(b)), state(s), versions(context.saved) {}

    Tensors backward(const Node& node, const Tensors& g) override {
        versions.check_unchanged(name.c_str(), "saved tensor", context.saved);
        AutocastGuard same_as_forward(state);
        // With the history of saved results they hold the node that holds them.
        const ScopedValue saved_values(context.saved, Tensors(context.saved));
        for (auto [saved, output] : saved_outputs)
            context.saved[saved] = with_history(node, context.saved[saved], output);
        Tensors filled = g;
        for (std::size_t i = 0; i < filled.size(); ++i)
            if (!filled[i].defined())
                filled[i] = zeros(node.outputs[i].shape,
                                  {.dtype = node.outputs[i].dtype, .device = node.outputs[i].device});
        Tensors result = gradient(context, filled);
        check_gradients(node, result);
        return result;
    }
    In saved() const override { return context.saved; }
    void release() override { context.saved.clear(); }

    void check_gradients(const Node& node, const Tensors& result) const {
        check(result.size() == node.edges.size(), ErrorKind::value, name, ": backward returned ",
              result.size(), " gradients for ", node.edges.size(),
              " inputs; return one for each, an undefined tensor where there is none");
        for (std::size_t i = 0; i < result.size(); ++i) {
            if (!result[i].defined() || !node.edges[i].needed()) continue;
            const Shape& shape = node.inputs[i].shape;
            check(reduces_to(result[i].shape(), shape), ErrorKind::shape, name,
                  ": backward returned a gradient of shape ", result[i].shape(), " for input ", i,
                  " of shape ", shape);
        }
    }
    // Whether a gradient of this shape can be summed to the input's shape, because the input broadcasts to
    // it.
    static bool reduces_to(const Shape& shape, const Shape& input) {
        const int added = shape.size() - input.size();
        if (added < 0) return false;
        for (int d = 0; d < input.size(); ++d)
            if (shape[d + added] != input[d] && input[d] != 1) return false;
        return true;
    }

    // A saved result is stored without history, because the node would otherwise hold itself alive. It gets
    // its history back here.
    static Tensor with_history(const Node& node, const Tensor& saved, std::uint32_t output) {
        if (!grad_enabled()) return saved;
        Tensor y = alias(saved);
        GradMeta& meta = y->grads();
        meta.requires_grad = true;
        meta.node = Ref<Node>(const_cast<Node*>(&node));
        meta.output = output;
        return y;
    }

    std::string name;
    autograd::Context context;
    autograd::Backward gradient;
    AutocastState state;
    SavedVersions versions;
    std::vector<std::pair<std::size_t, std::uint32_t>> saved_outputs;
};

struct Checkpoint final : NodeFunction {
    Checkpoint(autograd::Segment s, Tensors in) : segment(std::move(s)), inputs(std::move(in)) {}

    Tensors backward(const Node& node, const Tensors& g) override {
        check(!thread_state.engine->create_graph(), ErrorKind::state,
              "checkpoint: second derivatives through a checkpoint are not recorded; call the function "
              "directly");
        versions.check_unchanged("checkpoint", "input", inputs);
        const RandomState now = random_state();
        Tensors x, wanted, y;
        {
            AutocastGuard same_as_forward(state);
            EnableGrad recorded;
            const ScopedValue second_run(thread_state.recomputing, true);
            set_random_state(random);
            for (std::size_t i = 0; i < inputs.size(); ++i) {
                x.push_back(inputs[i].defined() ? alias(inputs[i]) : Tensor());
                if (!node.edges[i].needed()) continue;
                x[i]->grads().requires_grad = true;
                wanted.push_back(x[i]);
            }
            try {
                y = segment(x);
            } catch (...) {
                set_random_state(now);
                throw;
            }
            set_random_state(now);
        }
        check_same(node, y);
        return differentiate(node, y, g, wanted);
    }
    void release() override { inputs.clear(); }

    static void check_same(const Node& node, const Tensors& y) {
        check(y.size() == node.outputs.size(), ErrorKind::state, "checkpoint: the segment returned ",
              node.outputs.size(), " tensors in the forward pass and ", y.size(),
              " when backward ran it again; it must do the same both times");
        for (std::size_t j = 0; j < y.size(); ++j) {
            const TensorMeta& first = node.outputs[j];
            check(y[j].defined(), ErrorKind::state, "checkpoint: result ", j,
                  " of the segment is undefined when backward runs it again");
            check(y[j].shape() == first.shape && y[j].dtype() == first.dtype && y[j].device() == first.device,
                  ErrorKind::state, "checkpoint: result ", j, " of the segment was ", first.dtype, " ",
                  first.shape, " on ", first.device, " in the forward pass, and is ", y[j].dtype(), " ",
                  y[j].shape(), " on ", y[j].device(),
                  " when backward runs it again; it must do the same both times");
        }
    }
    bool opaque() const override { return true; }

    Tensors differentiate(const Node& node, const Tensors& y, const Tensors& g, const Tensors& wanted) const {
        Tensors outputs, root_gradients;
        for (std::size_t j = 0; j < y.size(); ++j)
            if (g[j].defined() && tracked(y[j])) {
                outputs.push_back(y[j]);
                root_gradients.push_back(g[j]);
            }
        const Tensors gradients = nested_backward(outputs, root_gradients, wanted);
        Tensors result(node.edges.size());
        for (std::size_t i = 0, k = 0; i < result.size(); ++i)
            if (node.edges[i].needed()) result[i] = gradients[k++];
        return result;
    }

    autograd::Segment segment;
    Tensors inputs;  // without history
    SavedVersions versions;
    AutocastState state = thread_state.autocast;
    RandomState random = random_state();
};

// alias(x), with the 16-bit copy that the kernel which made x has written. A parameter's copy is left out,
// because its optimizer updates only the parameter's own.
Tensor alias_with_copy(const Tensor& x) {
    Tensor y = alias(x);
    keep_fp8(y, x);
    if (x->grad_meta == nullptr || (tracked(x) && x.is_leaf())) return y;
    const Copy16& copy16 = x->grad_meta->copy16;
    if (!copy16.value.defined()) return y;
    y->grads().copy16.value = copy16.value;
    y->grads().copy16.version = copy16.version;
    return y;
}

// The inputs of forward() inside a region with cast_inputs: eligible tensors converted, with history.
Tensors cast_eligible(const Tensors& inputs, Dtype dtype) {
    Tensors result;
    for (const Tensor& x : inputs) result.push_back(autocast_takes(x) ? cast(x, dtype) : x);
    return result;
}

// Runs forward, and records a node of `op` whose gradient is backward. `name` is the function's in errors.
Tensors run_function(const AnyOp& op, const AttributesRef& at, const char* name, const AutocastState& state,
                     std::pair<autograd::Forward, autograd::Backward> function, const Tensors& inputs) {
    autograd::Context context;
    for (const Tensor& x : inputs) context.needs_grad.push_back(grad_enabled() && tracked(x));
    Tensors outputs;
    {
        NoGrad plain;
        AutocastGuard guard(state);
        outputs = function.first(context, inputs);
    }
    const std::vector<bool>& needed = context.needs_grad;
    if (std::find(needed.begin(), needed.end(), true) == needed.end()) return outputs;
    Tensors results;
    for (const Tensor& y : outputs) {
        check(y.defined(), ErrorKind::state, name, ": forward returned an undefined tensor");
        results.push_back(alias(y));
    }
    const Ref<Node> node = record(op, inputs, at, results);
    auto recorded =
        std::make_unique<UserFunction>(name, std::move(context), std::move(function.second), state);
    for (std::size_t s = 0; s < recorded->context.saved.size(); ++s)
        for (std::size_t j = 0; j < outputs.size(); ++j)
            if (recorded->context.saved[s].impl() == outputs[j].impl() && results[j].requires_grad())
                recorded->saved_outputs.emplace_back(s, std::uint32_t(j));
    extra_of(*node).function = std::move(recorded);
    return results;
}

}  // namespace

Tensors apply_as(const AnyOp& op, const AttributesRef& at, autograd::Forward forward,
                 autograd::Backward backward, const Tensors& inputs) {
    Tensors results;
    {
        const WatchedOp scope(op, inputs, results);
        const Observers::Unwatched inside;
        results = run_function(op, at, op.name(), thread_state.autocast,
                               {std::move(forward), std::move(backward)}, inputs);
    }
    tell_called(op, inputs, at.value, results);
    return results;
}

namespace autograd {

Tensors apply_function(const FunctionOptions& options, Forward forward, Backward backward,
                       const Tensors& given) {
    const bool casting = options.has_cast_inputs && thread_state.autocast.open();
    const Tensors inputs = casting ? cast_eligible(given, options.cast_inputs) : given;
    const AutocastState state = casting ? AutocastState{} : thread_state.autocast;
    return run_function(function_op, {}, options.name, state, {std::move(forward), std::move(backward)},
                        inputs);
}

Tensors checkpoint(Segment function, const Tensors& inputs) {
    if (!grad_enabled()) return function(inputs);
    Tensors kept, plain_inputs;  // saved for the second run; they share the memory of the inputs
    for (const Tensor& x : inputs) {
        kept.push_back(x.defined() ? alias(x) : Tensor());
        if (x.defined()) keep_fp8(kept.back(), x);
        plain_inputs.push_back(x.defined() ? alias_with_copy(x) : Tensor());
    }
    auto segment = std::make_unique<Checkpoint>(function, std::move(kept));
    Tensors outputs;
    {
        NoGrad plain;
        outputs = function(plain_inputs);
    }
    segment->versions = SavedVersions(segment->inputs);
    Tensors results;
    for (const Tensor& y : outputs) {
        check(y.defined(), ErrorKind::state, "checkpoint: the segment returned an undefined tensor");
        results.push_back(alias_with_copy(y));
    }
    const Ref<Node> node = record(checkpoint_op, inputs, {}, results);
    extra_of(*node).function = std::move(segment);
    return results;
}

}  // namespace autograd
}  // namespace mezzo
