// Callback: type-erased callable, so that no header needs <functional>.
#pragma once

#include "mezzo/cpp20.h"

#include <type_traits>
#include <utility>

#include "mezzo/shared.h"

#pragma GCC visibility push(default)

namespace mezzo::autograd {

// Type-erased callable, as std::function but with shared state: copies share the callable, and may be made
// and destroyed in several threads. Calls from several threads at once are as safe as the callable itself.
template <class Result, class... Args> class Callback;
template <class Result, class... Args> class Callback<Result(Args...)> {
public:
    template <class F>
    requires(!std::is_same_v<std::decay_t<F>, Callback>) Callback(F f)
        : object_(new Holder<F>(std::move(f))) {}
    Result operator()(Args... args) const { return object_->call(static_cast<Args>(args)...); }

private:
    struct Base : mezzo::detail::SharedObject {
        virtual Result call(Args... args) = 0;
    };
    template <class F> struct Holder final : Base {
        explicit Holder(F f) : function(std::move(f)) {}
        Result call(Args... args) override { return function(static_cast<Args>(args)...); }
        F function;
    };
    mezzo::detail::SharedHandle<Base> object_;
};

}  // namespace mezzo::autograd

#pragma GCC visibility pop
