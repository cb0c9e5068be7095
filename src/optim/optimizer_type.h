// Description of an optimizer type: names and rules of its options, names of its state. Made from a row of
// kernels/optimizers.h or from a CustomType.
#pragma once

#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/step.h"
#include "mezzo/callback.h"

namespace mezzo::optim {

struct OptionInfo {
    std::string name;  // in errors and in state_dict()
    Rule rule = Rule::finite;
    bool flag = false;
    bool saved = true;   // in state_dict(); others are printed only if they are not 0
    bool whole = false;  // an integer or an enumerator
    std::span<const char* const> enumerators = {};                       // their names, if they are printed
    double low = -std::numeric_limits<double>::infinity(), high = -low;  // bounds, with the rule
};

struct OptimizerType {
    std::string type;
    double code = 0;                  // stands for the type in state_dict()
    std::vector<OptionInfo> options;  // the first is lr
    std::vector<std::string> state;
    // Names of the numbers in device memory for each parameter: "steps", then those of the row.
    std::vector<std::string> numbers;
    // Bit k of the result: state k takes part with these options. Null: all state always does.
    unsigned (*used)(const StepArgs& args) = nullptr;
    // Storage of the state with these options. Null: all of it is wide.
    StateStorage (*storage)(const StepArgs& args) = nullptr;
    unsigned signed_state = 0;  // bit k: state k has signs, if it is stored in blocks
    // Whether "steps" of a parameter may start anew when its state is made by a later step.
    bool counts_from_state = false;
    // Returns the error of a combination of options that are valid one by one; null if there is none. The
    // function itself is null if every combination is valid.
    const char* (*problem)(const StepArgs& args) = nullptr;
    // The shape of a state of one parameter. Empty: the parameter's.
    std::optional<autograd::Callback<Shape(const std::string& state, const Shape& parameter)>> state_shape;
    OptimizerId row{};  // of a type with a kernel; otherwise not read

    // The index of an option, or -1.
    int find(std::string_view option) const;
};

// "lr=0.1, momentum=0.9, nesterov=true": values in the order of OptimizerType::options.
std::string text_of(const OptimizerType& kind, std::span<const double> values);
// The type of an optimizer with a kernel.
std::shared_ptr<const OptimizerType> kind_of(OptimizerId id);
// The code of a type other than SGD, Adam and AdamW: a hash of its name.
double type_code(std::string_view type);
// Throw Error(value), "where: lr is …", for options and rates that an optimizer of the kind cannot have.
void check_options(const std::string& where, const OptimizerType& kind, std::span<const double> options);
void check_rate(const std::string& where, double lr);

}  // namespace mezzo::optim
