// ModuleScope: marks the running module, for reports that name ops by the path of their module
// (mezzo/insight/insight.h).
//
//   {
//       const nn::ModuleScope here(net);  // (*this) in a module's operator()
//       y = relu(x);                      // an op of net in reports
//   }
#pragma once

#include "mezzo/cpp20.h"

#pragma GCC visibility push(default)

namespace mezzo::nn {

class Module;

namespace detail {

[[nodiscard]] bool module_scopes_wanted() noexcept;
void enter_module(const Module& module);
void leave_module() noexcept;

}  // namespace detail

// Attributes the ops of this thread to the module until the scope ends. Use it as the first line of
// operator() in a user's module: const nn::ModuleScope here(*this). Layers with parameters are found without
// it. The cost is negligible while no report is open. The scopes of a thread end in reverse order.
class [[nodiscard]] ModuleScope {
public:
    explicit ModuleScope(const Module& module) : entered_(detail::module_scopes_wanted()) {
        if (entered_) detail::enter_module(module);
    }
    ~ModuleScope() {
        if (entered_) detail::leave_module();
    }
    ModuleScope(const ModuleScope&) = delete;
    ModuleScope& operator=(const ModuleScope&) = delete;

private:
    bool entered_;
};

}  // namespace mezzo::nn

#pragma GCC visibility pop
