// Observes one forward call, and makes a graph of the ops that run.
#pragma once

#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "autograd/op_observer.h"
#include "interchange/onnx/mapping.h"
#include "nn/module_paths.h"

namespace mezzo::onnx {

class Tracer final : public OpObserver {
public:
    // `inputs` share no elements with each other or with the model.
    Tracer(nn::Module& model, const Tensors& inputs);

    // Returns the value of a tensor. A tensor that no op has made is a constant. Throws Error(value), with op
    // and module, if the op that made it has no ONNX form, if it has been modified since, or if another
    // thread has made it.
    Value value_of(const Tensor& x);
    Graph& graph() { return graph_; }

    void computed(const AnyOp& op, In given, const void* at, In results) override;
    void wrote(const Tensor& x) override;

private:
    class Inside;
    // Elements in memory. Tensors with the same elements in memory have the same value, whichever handle they
    // are.
    struct Known {
        Tensor tensor;  // keeps the memory, so that no address is reused
        Value value;
        std::string missing;  // why there is no value
        // of the memory then: writes of other threads are not reported
        std::uint64_t version;
    };
    const Known* find(const Tensor& x) const;
    void remember(const Tensor& x, Value value, const std::string& missing = {});
    void list_weights(nn::Module& model);
    Value mapped(const AnyOp& op, In given, const void* at, const Tensor& result);
    Tensors decomposed(const AnyOp& op, In given, const void* at);
    std::string no_form(const AnyOp& op, const Shape& result) const;
    std::string place() const;
    std::string reader() const;

    const ForeignMark elsewhere_;
    nn::Places places_;
    Graph graph_;
    std::unordered_map<const Storage*, std::vector<Known>> known_;
    std::unordered_set<const Storage*> written_;
    Tensors kept_;
};

}  // namespace mezzo::onnx
