// StateDict: named tensors in a fixed order, the state of models, optimizers and scalers.
//
//   const StateDict state = net.state_dict();
//   const Tensor first = state["0.weight"];
//   for (const auto& [name, tensor] : state) std::cout << name << ' ' << tensor.shape() << '\n';
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mezzo/tensor.h"

#pragma GCC visibility push(default)

namespace mezzo {

// A vector of (name, tensor) with look-up by name. Names are compared one after the other: for loops over
// many names of a large state, make a table of your own.
class StateDict : public std::vector<std::pair<std::string, Tensor>> {
public:
    using Entries = std::vector<std::pair<std::string, Tensor>>;
    using Entries::Entries;
    using Entries::operator[];
    using Entries::at;
    StateDict() = default;
    StateDict(Entries entries) : Entries(std::move(entries)) {}

    // The first tensor of that name, or null. Deleted for temporaries, whose tensors would be destroyed.
    [[nodiscard]] const Tensor* find(std::string_view name) const&;
    const Tensor* find(std::string_view name) const&& = delete;
    [[nodiscard]] bool contains(std::string_view name) const { return find(name) != nullptr; }
    // The first tensor of that name. Throws Error(value) for an unknown name; the message lists the most
    // similar names. For a temporary, as in net.state_dict()["weight"], it returns a handle by value.
    [[nodiscard]] const Tensor& at(std::string_view name) const&;
    [[nodiscard]] Tensor at(std::string_view name) const&& { return at(name); }
    [[nodiscard]] const Tensor& operator[](std::string_view name) const& { return at(name); }
    [[nodiscard]] Tensor operator[](std::string_view name) const&& { return at(name); }
    [[nodiscard]] std::vector<std::string> names() const;
    // Deep copy: detached tensors with their own elements.
    [[nodiscard]] StateDict clone() const;
};

}  // namespace mezzo

#pragma GCC visibility pop
