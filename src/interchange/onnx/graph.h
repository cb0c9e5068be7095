// A graph of ONNX operators under construction. Every value has its shape and dtype, so that steps that
// cancel each other, such as transpositions between mezzo's channels-last images and ONNX's, are dropped
// while the graph is built.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "interchange/onnx_file.h"
#include "mezzo/tensor.h"

namespace mezzo::onnx {

using Value = int;                 // index in its graph
inline constexpr Value none = -1;  // an omitted input
using Values = std::vector<Value>;
using Ints = std::vector<std::int64_t>;
using Attributes = std::vector<io::OnnxAttribute>;

enum class ValueKind : std::uint8_t {
    input,     // of the model
    weight,    // a parameter or buffer, by name
    constant,  // a tensor without a name
    integers,  // a list that a node reads as int64, such as a shape; one node reads each
    node       // the result of an operator
};

struct Entry {
    ValueKind kind;
    Shape shape;
    Dtype dtype;
    std::string name = {};  // of a weight: its name; of a node: the operator
    Tensor tensor = {};     // of weights and constants
    Ints numbers = {};
    Values inputs = {};
    Attributes attributes = {};
    std::string module = {};  // path of the module that a node belongs to
    std::string op = {};      // name of the op that the program called
    int output = 0;           // of a node: index of the operator's result
    // Multiples of the batch, set by free_batch(); empty if there are none. For integers: number i is
    // of_batch[i] times the batch, unless of_batch[i] is 0. For a constant: the number of copies of the
    // tensor along dimension i per batch item; a tensor [2] with one dimension to copy instead holds the
    // first two elements of an arithmetic progression of that length.
    Ints of_batch = {};
};

Ints ints_of(const Shape& shape);

class Graph {
public:
    Value input(const Shape& shape, Dtype dtype);
    Value weight(const std::string& name, const Tensor& value);
    Value constant(const Tensor& value);  // copies the elements
    Value integers(const Ints& numbers);
    Value number(double value, Dtype dtype);  // 0-dim

    // Adds an operator and returns its result.
    Value node(const char* type, const Values& inputs, const Shape& shape, Dtype dtype,
               const Attributes& attributes = {});
    // The same, with shape and dtype of the first input.
    Value like(const char* type, const Values& inputs, const Attributes& attributes = {});

    Value permuted(Value x, const Axes& axes);
    Value reshaped(Value x, const Shape& shape);
    Value expanded(Value x, const Shape& shape);
    Value converted(Value x, Dtype dtype);
    // Returns `count` elements along a dimension, from `start` on, `step` apart.
    Value sliced(Value x, int dim, std::int64_t start, std::int64_t step, std::int64_t count);

    // The value of which x is a permutation, if the last step permuted it.
    struct Permuted {
        Value of;
        Axes axes;
    };
    std::optional<Permuted> permutation(Value x) const;
    // Returns the value that x has been reshaped from; x itself if it has not been reshaped.
    Value before_reshape(Value x) const;

    const Entry& operator[](Value x) const { return entries_[std::size_t(x)]; }
    Entry& at(Value x) { return entries_[std::size_t(x)]; }
    const Shape& shape(Value x) const { return (*this)[x].shape; }
    Dtype dtype(Value x) const { return (*this)[x].dtype; }
    int size() const { return int(entries_.size()); }

    // Assigns later nodes to this module and op.
    void enter(const std::string& module, const std::string& op) {
        module_ = module;
        op_ = op;
    }
    const std::string& module() const { return module_; }
    const std::string& op() const { return op_; }

private:
    Value add(Entry entry);
    std::vector<Entry> entries_;
    std::string module_, op_;
};

// Returns the axes of the inverse permutation.
Axes inverse(const Axes& axes);

// Applies the element-wise f to x. If x is a permutation f is applied to the original, so that the
// permutation moves on until it cancels with its inverse.
template <class F> Value elementwise(Graph& graph, Value x, const F& f) {
    if (const auto before = graph.permutation(x)) return graph.permuted(f(before->of), before->axes);
    return f(x);
}

}  // namespace mezzo::onnx
