// Modules of different types in a list, or by name, for a module whose operator() decides what to do with
// them. Where all have one type, a std::vector of them as a field does as well.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mezzo/any_module.h"

#pragma GCC visibility push(default)

namespace mezzo::nn {

// for (const nn::AnyModule& layer : layers) x = layer(x). A handle: copies share the modules, their
// parameters and their training flags. Their names are "0", "1", ...
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
    // Error(value) where there is none. at<Linear>(0) is a module of a known type.
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

// heads["segment"](x). The order is that of insertion. A handle, as ModuleList.
class ModuleDict : public Module {
public:
    // Error(value) for a name that is empty, holds a dot or is there already.
    template <class M> void insert(std::string name, M&& module) {
        add(std::move(name), AnyModule(std::remove_cvref_t<M>(std::forward<M>(module))));
    }
    [[nodiscard]] std::size_t size() const { return modules_.size(); }
    [[nodiscard]] bool contains(std::string_view name) const;
    // Error(value) where there is none; its text lists the names.
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
