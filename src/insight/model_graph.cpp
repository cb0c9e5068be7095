// Graphs of models: one forward pass is watched, op by op.
#include "mezzo/model_graph.h"

#include <algorithm>
#include <unordered_map>

#include "autograd/op_observer.h"
#include "insight/evaluating.h"
#include "insight/places.h"

namespace mezzo::nn {
namespace {

class GraphTracer final : public OpObserver {
public:
    explicit GraphTracer(const Module& model) : places_(&model) {}

    void called(const Row& row, In given, In results) override {
        add(places_.path(places_.of_call(given)), row.name, given, results);
    }
    void viewed(const Tensor& given, const Tensor& view) override {
        const In one(&given, 1);
        add(places_.path(places_.of_call(one)), view->grad_meta->node->row->name, one, In(&view, 1));
    }
    void backward_begins(const Tensors&) override {}
    void visiting(const Node&) override {}
    void gradient(const Node&, int, const Tensor&) override {}
    void inner_gradient(const Node&, const Tensor&) override {}
    void sum(const Node&, const Tensor&) override {}

    ModelGraph graph;

private:
    void add(const std::string& module, const std::string& op, In given, In results) {
        if (results.empty() || !results[0].defined()) return;
        std::vector<std::string> inputs;
        for (const Tensor& x : given)
            if (x.defined()) inputs.push_back(source(x));
        const std::string name = unique(module.empty() ? op : module + "." + op);
        graph.push_back({name, op, std::move(inputs), results[0].shape(), results[0].dtype()});
        for (const Tensor& y : results)
            if (y.defined()) remember(y, name);
    }
    // The node that has made a tensor, which is new if none has.
    std::string source(const Tensor& x) {
        if (const auto known = made_.find(x.impl()); known != made_.end()) return known->second;
        const std::string parameter = places_.parameter(x);
        const std::string name = unique(parameter.empty() ? "input" : parameter);
        graph.push_back({name, parameter.empty() ? "Input" : "Parameter", {}, x.shape(), x.dtype()});
        remember(x, name);
        return name;
    }
    void remember(const Tensor& x, const std::string& name) {
        made_.insert_or_assign(x.impl(), name);
        alive_.push_back(x);
    }
    // "a.b" as "a/b", "a/b_1", "a/b_2", ... TensorBoard makes the folders of a graph from the names.
    std::string unique(std::string path) {
        std::replace(path.begin(), path.end(), '.', '/');
        const int earlier = used_[path]++;
        return earlier == 0 ? path : unique(path + "_" + std::to_string(earlier));
    }

    insight::Places places_;
    std::unordered_map<const TensorImpl*, std::string> made_;
    std::unordered_map<std::string, int> used_;
    Tensors alive_;  // so that no address is used twice
};

}  // namespace

ModelGraph detail::trace_graph(Module& model, const autograd::Callback<void()>& forward) {
    const insight::Evaluating evaluating(model);
    GraphTracer tracer(model);
    forward();
    return std::move(tracer.graph);
}

}  // namespace mezzo::nn
