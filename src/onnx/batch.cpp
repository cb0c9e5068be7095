#include "onnx/batch.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "core/tensor_impl.h"

namespace mezzo::onnx {

Values live_nodes(const Graph& graph, const Values& outputs) {
    std::vector<bool> live(std::size_t(graph.size()), false);
    for (const Value output : outputs) live[std::size_t(output)] = true;
    for (Value x = graph.size() - 1; x >= 0; --x)  // inputs come before the nodes that read them
        if (live[std::size_t(x)])
            for (const Value input : graph[x].inputs)
                if (input != none) live[std::size_t(input)] = true;
    Values nodes;
    for (Value x = 0; x < graph.size(); ++x)
        if (live[std::size_t(x)] && graph[x].kind == Kind::node) nodes.push_back(x);
    return nodes;
}

namespace {

bool same_tensor(const Tensor& a, const Tensor& b) {
    return a.shape() == b.shape() && a.dtype() == b.dtype() &&
           std::memcmp(raw(a), raw(b), std::size_t(a.numel()) * size_of(a.dtype())) == 0;
}

class Comparison {
public:
    Comparison(Graph& graph, const Graph& other) : graph_(graph), other_(other) {}

    void run(const Values& outputs, const Values& other_outputs) {
        const Values nodes = live_nodes(graph_, outputs), others = live_nodes(other_, other_outputs);
        for (std::size_t i = 0; i < std::min(nodes.size(), others.size()); ++i) {
            if (!alike(nodes[i], others[i])) refuse(nodes[i]);
            pairs_[nodes[i]] = others[i];
        }
        bool same = nodes.size() == others.size() && outputs.size() == other_outputs.size();
        for (std::size_t i = 0; same && i < outputs.size(); ++i)
            same = same_input(outputs[i], other_outputs[i]);
        check(same, ErrorKind::value,
              "export_onnx: batches of different sizes run different ops; export with "
              "dynamic_batch = false");
    }

private:
    [[noreturn]] void refuse(Value node) const {
        const Entry& entry = graph_[node];
        fail(ErrorKind::value, "export_onnx: the batch cannot be of any size, because ", entry.name, " in ",
             entry.module.empty() ? std::string("the model itself") : "module " + entry.module,
             " depends on it; dimension 0 of each input must be the batch, or export with dynamic_batch = "
             "false");
    }

    bool same_input(Value a, Value b) const {
        if (a == none || b == none) return a == b;
        const Entry &x = graph_[a], &y = other_[b];
        if (x.kind != y.kind || x.dtype != y.dtype) return false;
        switch (x.kind) {
            case Kind::node: {
                const auto pair = pairs_.find(a);
                return pair != pairs_.end() && pair->second == b;
            }
            case Kind::constant:
                return same_tensor(x.tensor, y.tensor);
            case Kind::integers:
                return x.numbers == y.numbers;
            case Kind::input:  // both graphs list the inputs and the weights first, in the same order
            case Kind::weight:
                break;
        }
        return a == b;
    }

    // Whether two operators do the same once sizes that follow from the batch are taken out of the first one.
    bool alike(Value a, Value b) {
        const Entry x = graph_[a], y = other_[b];
        if (x.name != y.name || x.attributes != y.attributes || x.inputs.size() != y.inputs.size())
            return false;
        for (std::size_t i = 0; i < x.inputs.size(); ++i) {
            if (same_input(x.inputs[i], y.inputs[i])) continue;
            const bool shape = i == 1 && (x.name == "Reshape" || x.name == "Expand");
            if (!shape || graph_[x.inputs[1]].kind != Kind::integers) return false;
            const Ints &own = graph_[x.inputs[1]].numbers, &others = other_[y.inputs[1]].numbers;
            if (own.size() != others.size()) return false;
            const bool freed =
                x.name == "Reshape" ? free_reshape(x, own, others) : free_expand(x, y, own, others);
            if (!freed) return false;
        }
        return true;
    }

    // The only size that differs is what the others leave.
    bool free_reshape(const Entry& node, Ints sizes, const Ints& others) {
        int differing = 0;
        for (std::size_t d = 0; d < sizes.size(); ++d)
            if (sizes[d] != others[d]) {
                sizes[d] = -1;
                ++differing;
            }
        graph_.at(node.inputs[1]).numbers = sizes;
        return differing == 1;
    }

    // A size that the input has itself is kept by 1.
    bool free_expand(const Entry& node, const Entry& other, Ints sizes, const Ints& others) {
        const Shape &from = graph_.shape(node.inputs[0]), &other_from = other_.shape(other.inputs[0]);
        for (std::size_t d = 0; d < sizes.size(); ++d) {
            if (sizes[d] == others[d]) continue;
            const int own = int(d) - (int(sizes.size()) - from.size());
            if (own < 0 || from[own] != sizes[d] || other_from[own] != others[d]) return false;
            sizes[d] = 1;
        }
        graph_.at(node.inputs[1]).numbers = sizes;
        return true;
    }

    Graph& graph_;
    const Graph& other_;
    std::unordered_map<Value, Value> pairs_;
};

}  // namespace

void free_batch(Graph& graph, const Values& outputs, const Graph& other, const Values& other_outputs) {
    Comparison(graph, other).run(outputs, other_outputs);
}

}  // namespace mezzo::onnx
