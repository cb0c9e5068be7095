// Sets a variable for the time of a scope:
//
//   const ScopedValue second_run(thread_state.recomputing, true);
#pragma once

#include <utility>

namespace mezzo {

template <class T> class [[nodiscard]] ScopedValue {
public:
    ScopedValue(T& variable, T value)
        : variable_(variable), before_(std::exchange(variable, std::move(value))) {}
    ~ScopedValue() { variable_ = std::move(before_); }
    ScopedValue(const ScopedValue&) = delete;
    ScopedValue& operator=(const ScopedValue&) = delete;

private:
    T& variable_;
    T before_;
};

}  // namespace mezzo
