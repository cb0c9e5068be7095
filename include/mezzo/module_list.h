// ModuleList and ModuleDict: modules of different types in a list, or by name, for a module that calls them
// in its own operator(). For modules of one type a field of type std::vector is enough.
//
//   nn::ModuleList layers(nn::Linear(784, 128), nn::Tanh(), nn::Linear(128, 10));
//   for (const nn::AnyModule& layer : layers) x = layer(x);
//   nn::ModuleDict heads;
//   heads.insert("sentiment", nn::Linear(10, 2));
//   y = heads["sentiment"](x);
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mezzo/any_module.h"

#pragma GCC visibility push(default)

namespace mezzo::nn {

// A list of modules. A handle: copies share the modules, their parameters and their training flags. The
// modules' names are "0", "1", ...
class ModuleList : public Module {
public:
    ModuleList() = default;
    template <class... Modules>
    requires(sizeof...(Modules) > 0 && (std::is_base_of_v<Module, std::remove_cvref_t<Modules>> && ...) &&
             !(sizeof...(Modules) == 1 && (std::is_same_v<std::remove_cvref_t<Modules>, ModuleList> &&
                                           ...))) explicit ModuleList(Modules&&... modules) {
        (push_back(std::forward<Modules>(modules)), ...);
    }

    template <class M> void push_back(M&& module) {
        modules_.push_back(AnyModule(std::remove_cvref_t<M>(std::forward<M>(module))));
    }
    [[nodiscard]] std::size_t size() const { return modules_.size(); }
    // Module i. at<Linear>(0) returns it as its own type. Throws Error(value) if there is none.
    [[nodiscard]] const AnyModule& operator[](std::size_t i) const;
    template <class M> [[nodiscard]] M& at(std::size_t i) const { return (*this)[i].template as<M>(); }
    [[nodiscard]] auto begin() const { return modules_.begin(); }
    [[nodiscard]] auto end() const { return modules_.end(); }

    const char* type_name() const override { return "ModuleList"; }
    void visit_fields(FieldVisitor& visitor) override;
    void own_copies(detail::OwnCopies& made) override;

private:
    std::vector<AnyModule> modules_;
};

// Modules by name, in the order of insertion. A handle, as ModuleList.
class ModuleDict : public Module {
public:
    // Throws Error(value) for a name that is empty, contains a dot or is used already.
    template <class M> void insert(std::string name, M&& module) {
        add(std::move(name), AnyModule(std::remove_cvref_t<M>(std::forward<M>(module))));
    }
    [[nodiscard]] std::size_t size() const { return modules_.size(); }
    [[nodiscard]] bool contains(std::string_view name) const;
    // Throws Error(value) for an unknown name; the message lists the names.
    [[nodiscard]] const AnyModule& operator[](std::string_view name) const;
    template <class M> [[nodiscard]] M& at(std::string_view name) const {
        return (*this)[name].template as<M>();
    }
    // Pairs of name and module.
    [[nodiscard]] auto begin() const { return modules_.begin(); }
    [[nodiscard]] auto end() const { return modules_.end(); }

    const char* type_name() const override { return "ModuleDict"; }
    void visit_fields(FieldVisitor& visitor) override;
    void own_copies(detail::OwnCopies& made) override;

private:
    void add(std::string name, AnyModule module);
    std::vector<std::pair<std::string, AnyModule>> modules_;
};

}  // namespace mezzo::nn

#pragma GCC visibility pop
