// Helpers for names and parameters of modules.
#pragma once

#include <string>
#include <vector>

#include "kernels/kernel.h"
#include "mezzo/autograd.h"
#include "mezzo/module.h"
#include "mezzo/ops.h"

namespace mezzo::test {

inline std::vector<std::string> names_of(const StateDict& state) {
    std::vector<std::string> result;
    for (const auto& [name, value] : state) result.push_back(name);
    return result;
}

// Makes the given tensors the parameters of a module, in the order of parameters().
inline void assign_parameters(nn::Module& net, In values) {
    struct Assign : nn::FieldVisitor {
        explicit Assign(In v) : values(v) {}
        void parameter(const std::string&, nn::Parameter& p) override {
            if (p.defined()) static_cast<Tensor&>(p) = values[next++];
        }
        void buffer(const std::string&, nn::Buffer&) override {}
        void module(const std::string&, nn::Module& child) override { child.visit_fields(*this); }
        In values;
        std::size_t next = 0;
    };
    Assign assign(values);
    net.visit_fields(assign);
}

// `first`, then copies of the module's parameters in float64.
inline Tensors with_parameters(Tensors first, const nn::Module& net) {
    for (const Tensor& p : net.parameters()) first.push_back(p.detach().to(float64));
    return first;
}

// Adds noise to biases and norms, whose neutral initial values would hide an op that ignores them.
inline void disturb(const nn::Module& net) {
    const NoGrad plain;
    for (const Tensor& p : net.parameters())
        if (p.dim() == 1) p.add_(randn(p.shape()), 0.3);
}

}  // namespace mezzo::test
