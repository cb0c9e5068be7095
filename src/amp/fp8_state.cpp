// Fp8State: saves and loads the histories next to the weights (ops/gemm/fp8_weight.h).
#include <algorithm>
#include <cmath>
#include <vector>

#include "core/step_recorder.h"
#include "mezzo/amp.h"
#include "mezzo/ops.h"
#include "ops/gemm/fp8_weight.h"

namespace mezzo::amp {

namespace {

constexpr const char* op = "Fp8State.load_state_dict: ";

const Tensor* find(const StateDict& state, const std::string& name) {
    const auto found =
        std::find_if(state.begin(), state.end(), [&](const auto& entry) { return entry.first == name; });
    return found == state.end() ? nullptr : &found->second;
}

std::string entry_name(const std::string& path, std::int64_t operand) {
    return path + "." + fp8_operand_names[operand];
}

// The running step may hold an infinity or NaN, which the end of the step drops.
void check_numbers(const std::string& name, const std::vector<float>& row) {
    const bool steps = std::all_of(row.begin() + fp8_largest, row.end(),
                                   [](float value) { return value >= 0 && std::isfinite(value); });
    check(!(row[fp8_running] < 0) && steps, ErrorKind::value, op, name,
          " has a number that is negative or not finite");
}

// The history of a parameter in the state, on the parameter's device; undefined if the state has none.
Tensor history_of(const StateDict& state, const std::string& path, const Tensor& parameter,
                  std::size_t& used) {
    Tensors rows;
    for (std::int64_t i = 0; i < fp8_operands; ++i) {
        const std::string name = entry_name(path, i);
        const Tensor* const row = find(state, name);
        if (row == nullptr) {
            check(rows.empty(), ErrorKind::value, op, name, " is missing; all operands of a layer are saved");
            continue;
        }
        check(rows.size() == std::size_t(i), ErrorKind::value, op, entry_name(path, 0),
              " is missing; all operands of a layer are saved");
        check(row->defined(), ErrorKind::value, op, name, " is undefined");
        check(row->dtype() == float32, ErrorKind::dtype, op, name, " is ", row->dtype(), ", not float32");
        check(row->dim() == 1 && row->size(0) > fp8_steps &&
                  (rows.empty() || row->size(0) == rows.front().size(0)),
              ErrorKind::shape, op, name, " has shape ", row->shape(),
              "; it must be [2 + history], as of the other operands");
        check_numbers(name, row->to_vector<float>());
        rows.push_back(row->detach());
        ++used;
    }
    return rows.empty() ? Tensor() : stack(rows, 0).to(parameter.device());
}

}  // namespace

Fp8State::Fp8State(const nn::Module& module) : parameters_(module.named_parameters()) {}

StateDict Fp8State::state_dict() const {
    const NoGrad plain;
    StateDict state;
    for (const auto& [path, parameter] : parameters_) {
        const Ref<Fp8Weight> weight = Fp8Weight::existing(parameter);
        const Tensor history = weight ? weight->history() : Tensor();
        for (std::int64_t i = 0; history.defined() && i < fp8_operands; ++i)
            state.emplace_back(entry_name(path, i), history.select(0, i).clone());
    }
    return state;
}

void Fp8State::load_state_dict(const StateDict& state) {
    refuse_in_capture("Fp8State.load_state_dict", "replace histories");
    const NoGrad plain;
    std::size_t used = 0;
    Tensors histories;
    for (const auto& [path, parameter] : parameters_)
        histories.push_back(history_of(state, path, parameter, used));
    for (const auto& given : state) {
        const bool known = std::any_of(parameters_.begin(), parameters_.end(), [&](const auto& entry) {
            for (std::int64_t i = 0; i < fp8_operands; ++i)
                if (entry_name(entry.first, i) == given.first) return true;
            return false;
        });
        check(known, ErrorKind::value, op, given.first, " is of no parameter of the module");
    }
    check(used == state.size(), ErrorKind::value, op, "an entry is there twice");
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
        const Tensor& parameter = parameters_[i].second;
        const Ref<Fp8Weight> weight =
            histories[i].defined() ? Fp8Weight::of(parameter) : Fp8Weight::existing(parameter);
        if (weight) weight->set_history(histories[i]);
    }
}

}  // namespace mezzo::amp
