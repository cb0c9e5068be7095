// What a RangeTrace notes while a step runs.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "autograd/op_observer.h"
#include "insight/places.h"
#include "insight/ranges.h"

namespace mezzo::insight {

// A tensor that was looked at.
struct Noted {
    enum class Kind : std::uint8_t { input, parameter, result, gradient };
    Kind kind;
    int place;         // the module
    std::string name;  // of the op; of a parameter
    int index = 0;
    std::string parameter = {};
    Shape shape = {};
    Dtype dtype = Dtype::float32;
    std::vector<int> from = {};  // of a result: what it was computed from
    std::vector<int> near = {};  // of a gradient: results and inputs of the op in forward
};

struct TraceImpl final : OpObserver {
    explicit TraceImpl(const nn::Module& model) : parameters(model.named_parameters()), places(&model) {}

    void called(const Row& row, In given, In results) override;
    void viewed(const Tensor& given, const Tensor& view) override;
    void backward_begins(const Tensors& outputs) override;
    void visiting(const Node& node) override;
    void gradient(const Node& node, int i, const Tensor& value) override;
    void inner_gradient(const Node& below, const Tensor& value) override;
    void sum(const Node& node, const Tensor& value) override;

    void clear();
    // The place in `noted` of the forward result from which the bad numbers of a finished step come, or -1.
    int first_forward(const std::vector<Range>& ranges) const;
    int first_backward(const std::vector<Range>& ranges) const;
    // What a noted input that is not finite was most likely before: the latest earlier result of as many elements of
    // its dtype with the same range, or -1. Inputs without a node lead here: what was computed under NoGrad or from
    // frozen parameters, or was detached.
    int earlier_result(int i, const std::vector<Range>& ranges) const;
    bool is_origin(int i, const std::vector<Range>& ranges) const;
    OpRange describe(int i, const std::vector<Range>& ranges) const;

    StateDict parameters;  // of the model, which may end before the trace
    Places places;
    RangeTable table;          // has the ranges of `noted`, in the same order
    std::vector<Noted> noted;  // in the order of events
    std::vector<int> losses;   // that backward began with

private:
    int look_at(const Tensor& x, Noted about);
    int source(const Row& row, int place, const Tensor& x);
    void note_gradient(const Node& node, std::string name, int i, const Tensor& value);
    int earliest_origin(const std::vector<int>& from, const std::vector<Range>& ranges) const;

    using Results = std::unordered_map<std::uint64_t, std::vector<int>>;
    Results results_;  // by the sequence of their node
    struct Parameter {
        int index;
        std::uint64_t version;
    };
    std::unordered_map<const TensorImpl*, Parameter> parameters_;
    std::unordered_map<std::uint64_t, std::vector<int>> given_;  // to a node
    std::uint64_t visited_ = 0;
    int visited_place_ = 0;
    std::string visited_name_;
};

}  // namespace mezzo::insight
