// AnyModule: type-erased handle to a module, the element of Sequential, ModuleList and ModuleDict.
//
//   const nn::AnyModule layer(nn::Linear(784, 10));
//   y = layer(x);
//   nn::init::zeros_(layer.as<nn::Linear>().bias);
#pragma once

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "mezzo/module.h"
#include "mezzo/module_scope.h"
#include "mezzo/shared.h"

#pragma GCC visibility push(default)

namespace mezzo::nn {

// A handle to a module of any type; copies share the module. A call with one tensor calls the module; throws
// Error(value) if the module has no operator() for one tensor.
class AnyModule {
public:
    template <class M>
    requires(std::is_base_of_v<Module, M>) explicit AnyModule(M module)
        : holder_(new Holder<M>(std::move(module))) {}
    [[nodiscard]] Tensor operator()(const Tensor& x) const {
        const ModuleScope here(holder_->module());
        if (holder_->module().has_hooks()) [[unlikely]]
            return call_with_hooks(x);
        return holder_->call(x);
    }
    [[nodiscard]] Module& module() const { return holder_->module(); }
    // The module as its own type M, to call it with other arguments. Throws Error(value) if it has another
    // type.
    template <class M> [[nodiscard]] M& as() const {
        M* const found = dynamic_cast<M*>(&module());
        check(found != nullptr, ErrorKind::value, "AnyModule: it is a ", module().type_name());
        return *found;
    }

    // A handle to a deep copy of the module. Handles that share a module share its copy, by the table `made`.
    [[nodiscard]] AnyModule own_copy(detail::OwnCopies& made) const;

private:
    Tensor call_with_hooks(const Tensor& x) const;
    struct Base : mezzo::detail::SharedObject {
        virtual Tensor call(const Tensor& x) = 0;
        virtual Module& module() = 0;
        virtual Base* copy() = 0;
    };
    template <class M> struct Holder final : Base {
        explicit Holder(M m) : value(std::move(m)) {}
        Tensor call(const Tensor& x) override {
            if constexpr (std::is_invocable_r_v<Tensor, M&, const Tensor&>)
                return value(x);
            else
                fail(ErrorKind::value, value.type_name(), ": no operator() takes one tensor; use as<M>()");
        }
        Module& module() override { return value; }
        Base* copy() override {
            if constexpr (std::is_copy_constructible_v<M>)
                return new Holder(value);
            else
                fail(ErrorKind::value, value.type_name(), ": cannot be copied");
        }
        M value;
    };
    explicit AnyModule(Base* base) : holder_(base) {}
    mezzo::detail::SharedHandle<Base> holder_;
};

namespace detail {

// Table of the modules that were copied during a clone(), and their copies.
struct OwnCopies {
    std::vector<std::pair<const Module*, AnyModule>> made;
};

}  // namespace detail
}  // namespace mezzo::nn

#pragma GCC visibility pop
