// Data that a RangeTrace records while a step runs, and the observer that records it.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "autograd/op_observer.h"
#include "insight/ranges.h"
#include "nn/module_paths.h"

namespace mezzo::insight {

// A recorded tensor.
struct Noted {
    enum class Role : std::uint8_t { input, parameter, result, gradient };
    Role kind;
    int place;         // index of the module
    std::string name;  // of the op, or of the parameter
    int index = 0;
    std::string parameter = {};
    Shape shape = {};
    Dtype dtype = Dtype::float32;
    std::vector<int> from = {};  // of a result: what it was computed from
    std::vector<int> near = {};  // of a gradient: the op's inputs and results in forward
};

struct TraceImpl final : OpObserver {
    explicit TraceImpl(const nn::Module& model) : parameters(model.named_parameters()), places(&model) {}

    void called(const AnyOp& op, In given, In results) override;
    void viewed(const Tensor& given, const Tensor& view) override;
    void backward_begins(const Tensors& outputs) override;
    void visiting(const Node& node) override;
    void gradient(const Node& node, int i, const Tensor& value) override;
    void fused_gradient(const Node& below, const Tensor& value) override;
    void sum(const Node& node, const Tensor& value) override;

    void clear();
    // Returns the index in `noted` of the forward result in which the bad numbers of a finished step began,
    // or -1.
    int first_forward(const std::vector<Range>& ranges) const;
    int first_backward(const std::vector<Range>& ranges) const;
    // Returns the result that a recorded input with non-finite values most likely comes from: the latest
    // earlier result with as many elements, of its dtype and with the same range, or -1. For inputs without a
    // node: results computed under NoGrad or from frozen parameters, and detached tensors.
    int earlier_result(int i, const std::vector<Range>& ranges) const;
    bool is_origin(int i, const std::vector<Range>& ranges) const;
    OpRange describe(int i, const std::vector<Range>& ranges) const;

    StateDict parameters;  // of the model, which may be destroyed before the trace
    nn::Places places;
    RangeTable table;          // ranges of `noted`, in the same order
    std::vector<Noted> noted;  // in the order of events
    std::vector<int> losses;   // outputs that backward started from

private:
    int look_at(const Tensor& x, Noted about);
    int source(const AnyOp& op, int place, const Tensor& x);
    void note_gradient(const Node& node, std::string name, int i, const Tensor& value);
    int earliest_origin(const std::vector<int>& from, const std::vector<Range>& ranges) const;

    using Results = std::unordered_map<std::uint64_t, std::vector<int>>;
    Results results_;  // by the sequence of their node
    struct Parameter {
        int index;
        std::uint64_t version;
    };
    std::unordered_map<const TensorImpl*, Parameter> parameters_;
    std::unordered_map<std::uint64_t, std::vector<int>> given_;  // inputs, by the sequence of the node
    std::uint64_t visited_ = 0;
    int visited_place_ = 0;
    std::string visited_name_;
};

}  // namespace mezzo::insight
