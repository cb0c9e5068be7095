// export_onnx(): runs and traces the model, names the graph's values, writes the file.
#include "mezzo/interchange/onnx.h"

#include <algorithm>
#include <set>
#include <unordered_set>

#include "autograd/autocast_state.h"
#include "interchange/onnx/batch.h"
#include "interchange/onnx/tracer.h"
#include "interchange/onnx_file.h"
#include "io/json.h"
#include "mezzo/autograd.h"
#include "mezzo/eval_mode.h"
#include "mezzo/ops.h"
#include "mezzo/quantize.h"

namespace mezzo::io {

namespace {

using onnx::Graph;
using onnx::Value;
using onnx::ValueKind;
using onnx::Values;

void check_inputs(nn::Module& model, const Tensors& inputs, const OnnxOptions& options) {
    check(!inputs.empty(), ErrorKind::value, "export_onnx: the list of inputs is empty");
    for (const Tensor& x : inputs) {
        check(x.defined() && x.numel() > 0, ErrorKind::value,
              "export_onnx: an input is undefined or has no elements");
        check(!is_floating(x.dtype()) || x.dtype() == float32, ErrorKind::dtype, "export_onnx: an input is ",
              x.dtype(), "; convert floating inputs to float32");
        if (!options.dynamic_batch) continue;
        check(x.dim() > 0 && x.size(0) == inputs[0].size(0), ErrorKind::value, "export_onnx: inputs ",
              inputs[0].shape(), " and ", x.shape(),
              " have no common batch in dimension 0; export with dynamic_batch = false");
    }
    for (const auto& [name, p] : model.named_parameters()) {
        check(!weight_scale(p).defined(), ErrorKind::dtype, "export_onnx: ", name,
              " is an 8-bit weight of quantize_weights(); export a model with the numbers of "
              "dequantize_weight()");
        check(p.dtype() == float32, ErrorKind::dtype, "export_onnx: ", name, " is ", p.dtype(),
              "; convert the model with to(float32)");
    }
}

std::vector<std::string> checked_names(const char* what, const std::vector<std::string>& given,
                                       std::size_t count, const std::string& standard) {
    std::vector<std::string> names = given;
    for (std::size_t i = 0; given.empty() && i < count; ++i)
        names.push_back(count == 1 ? standard : standard + "_" + std::to_string(i));
    check(names.size() == count, ErrorKind::value, "export_onnx: ", given.size(), " names for ", count, " ",
          what);
    for (const std::string& name : names)
        check(first_invalid_utf8(name) == name.size(), ErrorKind::value, "export_onnx: the name ",
              shown(name), " is not valid UTF-8");
    const bool unique = std::set<std::string>(names.begin(), names.end()).size() == count;
    check(unique && std::find(names.begin(), names.end(), "") == names.end(), ErrorKind::value,
          "export_onnx: the names of the ", what, " must be different and not empty");
    return names;
}

struct Traced {
    Graph graph;
    Values outputs;
    std::vector<Shape> inputs;  // their shapes
};

// Traces a call with `batch` copies of the first item of each input, or with the inputs themselves if it is
// 0.
Traced trace(nn::Module& model, const Tensors& inputs, const OnnxForward& forward, std::int64_t batch) {
    const NoGrad plain;
    const NoAutocast exact;
    const nn::EvalMode mode(model);
    Tensors own;
    for (const Tensor& x : inputs)
        own.push_back(batch == 0
                          ? x.clone()
                          : index_select(x, 0, zeros({batch}, {.dtype = int64, .device = x.device()})));
    Traced traced;
    for (const Tensor& x : own) traced.inputs.push_back(x.shape());
    onnx::Tracer tracer(model, own);
    const Tensors results = forward(own);
    check(!results.empty(), ErrorKind::value, "export_onnx: the model has no results");
    for (const Tensor& y : results) {
        check(y.defined(), ErrorKind::value, "export_onnx: a result of the model is undefined");
        traced.outputs.push_back(tracer.value_of(y));
    }
    traced.graph = std::move(tracer.graph());
    return traced;
}

// Lists the nodes that the outputs need, with names for all values.
class Naming {
public:
    Naming(const Graph& graph, std::vector<std::string> inputs, const std::vector<std::string>& outputs)
        : graph_(graph), names_(std::size_t(graph.size())) {
        for (std::size_t i = 0; i < inputs.size(); ++i) names_[i] = inputs[i];  // a tracer's first values
        used_.insert(inputs.begin(), inputs.end());
        for (const std::string& name : outputs)
            check(used_.insert(name).second, ErrorKind::value,
                  "export_onnx: an input and an output are named ", name);
        for (Value x = 0; x < graph.size(); ++x)
            check(graph[x].kind != ValueKind::weight || used_.insert(graph[x].name).second, ErrorKind::value,
                  "export_onnx: an input or output is named ", graph[x].name,
                  ", as a parameter or buffer of the model is; pass other input_names and output_names");
    }

    void add_outputs(const Values& outputs, const std::vector<std::string>& names) {
        for (std::size_t i = 0; i < outputs.size(); ++i) {
            std::string& name = names_[std::size_t(outputs[i])];
            if (graph_[outputs[i]].kind == ValueKind::node && name.empty())
                name = names[i];
            else
                identities_.emplace_back(outputs[i], names[i]);
        }
    }

    OnnxGraph list(const Values& nodes) {
        for (const Value node : nodes) {
            OnnxNode result{.type = graph_[node].name};
            for (const Value input : graph_[node].inputs) result.inputs.push_back(name_of(input));
            result.name = node_name(node);
            for (int i = 0; i < graph_[node].output; ++i)  // unused results must have names, too
                result.outputs.push_back(unique(result.name + "/unused"));
            result.outputs.push_back(name_of(node));
            result.attributes = graph_[node].attributes;
            listed_.nodes.push_back(std::move(result));
        }
        for (const auto& [value, name] : identities_)
            listed_.nodes.push_back({.type = "Identity",
                                     .name = unique(name + "/Identity"),
                                     .inputs = {name_of(value)},
                                     .outputs = {name}});
        return std::move(listed_);
    }

private:
    std::string unique(const std::string& wanted) {
        if (used_.insert(wanted).second) return wanted;
        for (;;) {
            std::string name = wanted + "_" + std::to_string(++numbers_[wanted]);
            if (used_.insert(name).second) return name;
        }
    }
    std::string node_name(Value node) {
        std::string path = graph_[node].module;
        std::replace(path.begin(), path.end(), '.', '/');
        return unique(path.empty() ? graph_[node].name : path + "/" + graph_[node].name);
    }
    std::string initializer(const std::string& wanted, const Tensor& value) {
        const std::string name = unique(wanted);
        listed_.initializers.push_back({name, value});
        return name;
    }
    std::string integers(const onnx::Ints& numbers) {
        return initializer("constant", Tensor::from<std::int64_t>(numbers, {std::int64_t(numbers.size())}));
    }
    std::string node(const char* type, const std::vector<std::string>& inputs,
                     const onnx::Attributes& attributes = {}) {
        const std::string value = unique("value");
        listed_.nodes.push_back({type, unique(type), inputs, {value}, attributes});
        return value;
    }
    // Returns a multiple of the batch, int64 [1]. The batch is the size of the first input.
    std::string times_batch(std::int64_t factor) {
        if (batch_.empty())
            batch_ = node("Shape", {names_[0]}, {{"start", std::int64_t(0)}, {"end", std::int64_t(1)}});
        return factor == 1 ? batch_ : node("Mul", {batch_, integers({factor})});
    }
    // Returns sizes, some of them multiples of the batch.
    std::string sizes(const onnx::Ints& numbers, const onnx::Ints& of_batch) {
        std::vector<std::string> parts;
        for (std::size_t i = 0; i < numbers.size();) {
            onnx::Ints fixed;
            if (of_batch[i] != 0) parts.push_back(times_batch(of_batch[i++]));
            while (i < numbers.size() && of_batch[i] == 0) fixed.push_back(numbers[i++]);
            if (!fixed.empty()) parts.push_back(integers(fixed));
        }
        return parts.size() == 1 ? parts[0] : node("Concat", parts, {{"axis", std::int64_t(0)}});
    }
    // Returns an arithmetic progression whose length is a multiple of the batch, from its first two elements.
    std::string progression(const Tensor& two, std::int64_t factor) {
        const std::string count = node("Squeeze", {times_batch(factor), integers({0})});
        const std::string zero = initializer("constant", zeros({}, {.dtype = int64})),
                          one = initializer("constant", ones({}, {.dtype = int64}));
        std::string x = node("Range", {zero, count, one});
        if (two.dtype() != int64) x = node("Cast", {x}, {{"to", onnx_data_type(two.dtype())}});
        const Tensor first = two.select(0, 0), step = two.select(0, 1) - first;
        if (step.item<double>() != 1) x = node("Mul", {x, initializer("constant", step)});
        if (first.item<double>() != 0) x = node("Add", {x, initializer("constant", first)});
        return x;
    }
    std::string constant(const onnx::Entry& entry) {
        const Tensor& x = entry.tensor;
        if (entry.of_batch.empty()) return initializer("constant", x);
        if (x.dim() == 1 && x.size(0) == 2) return progression(x, entry.of_batch[0]);
        return node("Expand", {initializer("constant", x), sizes(onnx::ints_of(x.shape()), entry.of_batch)});
    }
    // Lists weights and constants when they are first read.
    const std::string& name_of(Value x) {
        static const std::string& left_out = *new std::string;  // never destroyed, like all statics here
        if (x == onnx::none) return left_out;
        std::string& name = names_[std::size_t(x)];
        if (!name.empty()) return name;
        const onnx::Entry& entry = graph_[x];
        if (entry.kind == ValueKind::node) return name = unique("value");
        if (entry.kind == ValueKind::constant) return name = constant(entry);
        if (entry.kind == ValueKind::integers)
            return name = entry.of_batch.empty() ? integers(entry.numbers)
                                                 : sizes(entry.numbers, entry.of_batch);
        listed_.initializers.push_back({entry.name, entry.tensor});
        return name = entry.name;
    }

    const Graph& graph_;
    std::vector<std::string> names_;
    std::vector<std::pair<Value, std::string>> identities_;
    std::unordered_set<std::string> used_;
    std::unordered_map<std::string, int> numbers_;
    std::string batch_;  // name of the batch size, once it is used
    OnnxGraph listed_;
};

// Names the sizes that differ for batches of 2 and 3: "batch" for the batch, a name of its own for another
// size.
OnnxValue described(const std::string& name, Dtype dtype, const Shape& shape, const Shape& other) {
    OnnxValue value{name, dtype, {}};
    for (int d = 0; d < shape.size(); ++d) {
        const bool free = shape[d] != other[d];
        const bool batch = free && shape[d] == 2 && other[d] == 3;
        value.shape.push_back({shape[d], batch ? "batch" : free ? name + "_" + std::to_string(d) : ""});
    }
    return value;
}

}  // namespace

void export_onnx(nn::Module& model, const Tensors& inputs, const std::string& path,
                 const OnnxForward& forward, const OnnxOptions& options) {
    check_inputs(model, inputs, options);
    const std::vector<std::string> input_names =
        checked_names("inputs", options.input_names, inputs.size(), "input");
    Traced traced = trace(model, inputs, forward, options.dynamic_batch ? 2 : 0);
    const std::vector<std::string> output_names =
        checked_names("outputs", options.output_names, traced.outputs.size(), "output");
    Traced other = options.dynamic_batch ? trace(model, inputs, forward, 3) : traced;
    if (options.dynamic_batch) onnx::free_batch(traced.graph, traced.outputs, other.graph, other.outputs);

    const Graph& graph = traced.graph;
    Naming naming(graph, input_names, output_names);
    naming.add_outputs(traced.outputs, output_names);
    OnnxGraph file = naming.list(onnx::live_nodes(graph, traced.outputs));
    file.name = model.type_name();
    for (std::size_t i = 0; i < inputs.size(); ++i)
        file.inputs.push_back(
            described(input_names[i], inputs[i].dtype(), traced.inputs[i], other.inputs[i]));
    for (std::size_t i = 0; i < traced.outputs.size(); ++i)
        file.outputs.push_back(described(output_names[i], graph.dtype(traced.outputs[i]),
                                         graph.shape(traced.outputs[i]),
                                         other.graph.shape(other.outputs[i])));
    save_onnx("export_onnx", path, file, options.external_data);
}

}  // namespace mezzo::io
