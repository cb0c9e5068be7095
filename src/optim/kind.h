// What an optimizer's type says of it: its options, the names of its state, which state takes part. Made from
// the rows of kernels/optimizers.h, or by a user's optimizer.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/step.h"

namespace mezzo::optim {

struct OptionInfo {
    std::string name;  // in errors and in state_dict()
    Rule rule = Rule::finite;
    bool flag = false;
};

struct Kind {
    std::string type;
    double code = 0;                  // what state_dict() calls it
    std::vector<OptionInfo> options;  // the first is lr
    std::vector<std::string> state;   // of the shape of the parameter
    // Of what the optimizer counts on the device for each parameter: "steps", and the row's own.
    std::vector<std::string> numbers;
    // Bit k: state k takes part with these options. Null: all do.
    unsigned (*used)(const StepArgs& args) = nullptr;
    // What is wrong with options that are right one by one, or null.
    const char* (*problem)(const StepArgs& args) = nullptr;
    OptimizerId row{};  // if it has a kernel

    // The place of an option, or -1.
    int find(std::string_view option) const;
};

// The kind of a row.
std::shared_ptr<const Kind> kind_of(OptimizerId id);
// The code of a type that is not one of the first three: the same for the same name, everywhere.
double type_code(std::string_view type);
// Throws for options that an optimizer of the kind cannot have, "where: lr is …".
void check_options(const std::string& where, const Kind& kind, std::span<const double> options);
void check_rate(const std::string& where, double lr);

}  // namespace mezzo::optim
