#include "interchange/onnx/batch.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <unordered_map>

#include <fmt/ranges.h>

#include "autograd/op_observer.h"
#include "core/tensor_impl.h"
#include "mezzo/autograd.h"
#include "mezzo/ops.h"

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
        if (live[std::size_t(x)] && graph[x].kind == ValueKind::node) nodes.push_back(x);
    return nodes;
}

namespace {

// Compares contiguous tensors in host memory.
bool same_tensor(const Tensor& a, const Tensor& b) {
    return a.shape() == b.shape() && a.dtype() == b.dtype() &&
           std::memcmp(raw(a), raw(b), std::size_t(a.numel()) * size_of(a.dtype())) == 0;
}

// Describes a value in which two graphs differ, for an error: its sizes, number or op.
std::string described(const Entry& entry) {
    const Tensor& x = entry.tensor;
    switch (entry.kind) {
        case ValueKind::node:
            return "a result of " + (entry.op.empty() ? entry.name : entry.op);
        case ValueKind::integers:
            return fmt::format("[{}]", fmt::join(entry.numbers, ", "));
        case ValueKind::constant:
            if (x.numel() == 1) return fmt::format("{:g}", x.item<double>());
            return "a tensor " + detail::text_of(x.shape()) + " that no op has made";
        case ValueKind::input:
        case ValueKind::weight:
            break;
    }
    return "another tensor";
}

class Comparison {
public:
    Comparison(Graph& graph, const Graph& other) : graph_(graph), other_(other) {}

    void run(const Values& outputs, const Values& other_outputs) {
        const Values nodes = live_nodes(graph_, outputs), others = live_nodes(other_, other_outputs);
        const std::size_t both = std::min(nodes.size(), others.size());
        for (std::size_t i = 0; i < both; ++i) {
            compare(nodes[i], others[i]);
            pairs_[nodes[i]] = others[i];
        }
        if (nodes.size() > both) refuse(graph_[nodes[both]], "runs it", "does not");
        if (others.size() > both) refuse(other_[others[both]], "does not run it", "does");
        check(outputs.size() == other_outputs.size(), ErrorKind::value, "export_onnx: the model has ",
              outputs.size(), " results for a batch of ", batch(graph_), " and ", other_outputs.size(),
              " for one of ", batch(other_), "; their number must be the same, or export with ",
              "dynamic_batch = false");
        for (std::size_t i = 0; i < outputs.size(); ++i)
            if (!same(outputs[i], other_outputs[i]))
                refuse_input(graph_[outputs[i]], outputs[i], other_outputs[i]);
    }

private:
    // Inputs come first in a graph.
    static std::int64_t batch(const Graph& graph) { return graph.shape(0)[0]; }

    [[noreturn]] void refuse(const Entry& entry, const std::string& one, const std::string& other) const {
        fail(ErrorKind::value, "export_onnx: ", entry.op.empty() ? entry.name : entry.op,
             ": the batch cannot be of any size, because ",
             entry.module.empty() ? std::string("the model itself") : "module " + entry.module, " ", one,
             " for a batch of ", batch(graph_), " and ", other, " for one of ", batch(other_),
             "; have the batch in dimension 0 of each input, compute what follows from it with ops of the "
             "inputs, "
             "or export with dynamic_batch = false");
    }
    [[noreturn]] void refuse_input(const Entry& reader, Value a, Value b) const {
        const std::string one = described(graph_[a]), other = described(other_[b]);
        refuse(reader, "computes with " + one, one == other ? "of other elements" : "with " + other);
    }

    // Returns, for each size, its multiple of the batch, or 0 if the sizes are equal; nothing if another size
    // differs.
    std::optional<Ints> multiples(const Ints& sizes, const Ints& others) const {
        if (sizes.size() != others.size()) return std::nullopt;
        const std::int64_t one = batch(graph_), other = batch(other_);
        Ints found(sizes.size(), 0);
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            if (sizes[i] == others[i]) continue;
            found[i] = sizes[i] / one;
            if (found[i] * one != sizes[i] || found[i] * other != others[i]) return std::nullopt;
        }
        return found;
    }

    // Whether two values are the same apart from sizes that depend on the batch, which are replaced in the
    // first graph.
    bool same(Value a, Value b) {
        if (a == none || b == none) return a == b;
        const Entry &x = graph_[a], &y = other_[b];
        if (x.kind != y.kind || x.dtype != y.dtype) return false;
        if (const auto pair = pairs_.find(a); pair != pairs_.end()) return pair->second == b;
        switch (x.kind) {
            case ValueKind::node:
                return false;
            case ValueKind::constant:
                return same_tensor(x.tensor, y.tensor) || free_constant(a, b);
            case ValueKind::integers:
                return x.numbers == y.numbers || free_integers(a, x.numbers, y.numbers);
            case ValueKind::input:  // both graphs list the inputs and the weights first, in the same order
            case ValueKind::weight:
                break;
        }
        return a == b;
    }

    void compare(Value a, Value b) {
        const Entry x = graph_[a], y = other_[b];
        if (x.name != y.name || x.inputs.size() != y.inputs.size())
            refuse(x, "runs it", y.op == x.op ? "other operators" : "runs " + y.op + " instead");
        if (x.attributes != y.attributes) refuse(x, "runs it", "with other attributes");
        for (std::size_t i = 0; i < x.inputs.size(); ++i) {
            const bool sizes = i == 1 && (x.name == "Reshape" || x.name == "Expand");
            if (!(sizes ? same_sizes(x, y) : same(x.inputs[i], y.inputs[i])))
                refuse_input(x, x.inputs[i], y.inputs[i]);
        }
    }

    bool free_integers(Value a, const Ints& sizes, const Ints& others) {
        const auto found = multiples(sizes, others);
        if (found) graph_.at(a).of_batch = *found;
        return found.has_value();
    }

    // Frees a tensor that no op has made: it depends on the batch if it repeats one item or counts the items.
    bool free_constant(Value a, Value b) {
        const Observers::Unwatched unwatched;
        const NoGrad plain;
        const Tensor x = graph_[a].tensor, y = other_[b].tensor;
        const auto found = multiples(ints_of(x.shape()), ints_of(y.shape()));
        if (!found) return false;
        Tensor one = x;
        for (int d = 0; d < x.dim(); ++d)
            if ((*found)[std::size_t(d)] != 0) one = one.slice(d, 0, 1);
        const auto repeats = [&](const Tensor& all) {
            return same_tensor(one.expand(all.shape()).contiguous(), all);
        };
        if (!repeats(x) || !repeats(y)) {
            if (!counts(x) || !counts(y)) return false;
            one = x.slice(0, 0, 2);
            if (!same_tensor(one.contiguous(), y.slice(0, 0, 2).contiguous())) return false;
        }
        graph_.at(a).tensor = one.contiguous();
        graph_.at(a).of_batch = *found;
        pairs_[a] = b;
        return true;
    }
    static bool counts(const Tensor& x) {
        if (x.dim() != 1 || x.numel() < 2 ||
            (x.dtype() != int64 && x.dtype() != int32 && x.dtype() != float32))
            return false;
        const std::vector<double> values = x.to(float64).to_vector<double>();
        for (std::size_t i = 2; i < values.size(); ++i)
            if (values[i] != values[0] + double(i) * (values[1] - values[0])) return false;
        return true;
    }

    // Replaces sizes that the operator can compute itself: a reshape infers one size (-1), an expansion takes
    // sizes from its input (1).
    bool same_sizes(const Entry& node, const Entry& other) {
        const Value a = node.inputs[1], b = other.inputs[1];
        if (graph_[a].kind != ValueKind::integers || other_[b].kind != ValueKind::integers) return same(a, b);
        Ints sizes = graph_[a].numbers, others = other_[b].numbers;
        if (sizes.size() != others.size()) return false;
        const auto leave = [&](std::size_t d, std::int64_t mark) { sizes[d] = others[d] = mark; };
        const Shape &from = graph_.shape(node.inputs[0]), &other_from = other_.shape(other.inputs[0]);
        int differing = 0;
        for (std::size_t d = 0; d < sizes.size(); ++d) differing += sizes[d] != others[d];
        for (std::size_t d = 0; d < sizes.size(); ++d) {
            if (sizes[d] == others[d]) continue;
            const int own = int(d) - (int(sizes.size()) - from.size());
            if (node.name == "Reshape" && differing == 1)
                leave(d, -1);
            else if (node.name == "Expand" && own >= 0 && from[own] == sizes[d] &&
                     other_from[own] == others[d])
                leave(d, 1);
        }
        if (!free_integers(a, sizes, others)) return false;
        graph_.at(a).numbers = sizes;
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
