// The names of an optimizer's state.
#pragma once

#include <string>

#include "optim/optimizer.h"

namespace mezzo::optim {

struct Option {
    const char* name;
    double StepArgs::*value;
};
inline constexpr Option options[] = {{"lr", &StepArgs::lr},
                                     {"weight_decay", &StepArgs::weight_decay},
                                     {"momentum", &StepArgs::momentum},
                                     {"dampening", &StepArgs::dampening},
                                     {"beta1", &StepArgs::beta1},
                                     {"beta2", &StepArgs::beta2},
                                     {"eps", &StepArgs::eps}};
struct Flag {
    const char* name;
    bool StepArgs::*value;
};
inline constexpr Flag flags[] = {{"nesterov", &StepArgs::nesterov}, {"maximize", &StepArgs::maximize}};

inline std::string group_key(std::size_t group, const char* name) {
    return "groups." + std::to_string(group) + "." + name;
}
inline std::string slot_key(std::size_t slot, const char* name) {
    return "state." + std::to_string(slot) + "." + name;
}

inline const char* moment_name(Algorithm algorithm, int moment) {
    if (algorithm == Algorithm::sgd) return "momentum_buffer";
    return moment == 0 ? "exp_avg" : "exp_avg_sq";
}

}  // namespace mezzo::optim
