#include "mezzo/averaged_model.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <unordered_set>

#include "core/step_recorder.h"
#include "mezzo/ops.h"

namespace mezzo::optim {

namespace {

// The content of state_dict(): parameters, then buffers, then the scales of 8-bit weights.
StateDict values_of(const nn::Module& module) {
    std::unordered_set<std::string> names;
    const auto move_to_front = [&](StateDict& values) {
        std::stable_partition(values.begin(), values.end(),
                              [&](const auto& value) { return names.contains(value.first); });
    };
    StateDict values = module.state_dict();
    for (const auto& [name, buffer] : module.named_buffers()) names.insert(name);
    move_to_front(values);
    names.clear();
    for (const auto& [name, parameter] : module.named_parameters()) names.insert(name);
    move_to_front(values);
    return values;
}

Tensor wide(const Tensor& value, Device device) {
    const Tensor x = value.detach().to(device);
    return is_16bit(x.dtype()) ? x.to(float32) : x;
}

void check_same(const char* op, const StateDict& own, const StateDict& given) {
    check(own.size() == given.size(), ErrorKind::value, op, ": ", given.size(),
          " tensors, the averages are of ", own.size());
    for (std::size_t i = 0; i < own.size(); ++i)
        check(own[i].first == given[i].first && own[i].second.shape() == given[i].second.shape(),
              ErrorKind::value, op, ": ", given[i].first, " of shape ", given[i].second.shape(),
              " in the place of ", own[i].first, " of shape ", own[i].second.shape());
}

}  // namespace

AverageFunction equal_average() {
    return [](const Tensor& average, const Tensor& value, std::int64_t averaged) {
        return average + (value - average) / double(averaged + 1);
    };
}

AverageFunction ema_average(double decay) {
    check(decay >= 0 && decay <= 1, ErrorKind::value, "ema_average: decay is ", decay,
          "; it must be in [0, 1]");
    return [decay](const Tensor& average, const Tensor& value, std::int64_t) {
        return decay * average + (1 - decay) * value;
    };
}

AveragedModel::AveragedModel(const nn::Module& module, const AveragedModelOptions& options)
    : options_(options), parameters_(module.named_parameters().size()) {
    NoGrad plain;
    for (const auto& [name, value] : values_of(module))
        values_.emplace_back(name, wide(value, options.device.value_or(value.device())).clone());
}

void AveragedModel::update_parameters(const nn::Module& module) {
    refuse_in_capture("AveragedModel.update_parameters", "count averages; call it after the step");
    NoGrad plain;
    const StateDict given = values_of(module);
    check_same("AveragedModel.update_parameters", values_, given);
    StateDict fresh = values_;
    const std::size_t end = parameters_ + (options_.use_buffers ? module.named_buffers().size() : 0);
    for (std::size_t i = 0; i < fresh.size(); ++i) {
        Tensor& average = fresh[i].second;
        const Tensor value = wide(given[i].second, average.device());
        const bool averages = averaged_ > 0 && is_floating(average.dtype()) && i < end;
        average = averages ? options_.average(average, value, averaged_).to(average.dtype()) : value.clone();
        check(average.shape() == value.shape(), ErrorKind::shape, "AveragedModel: the average of ",
              fresh[i].first, " has shape ", average.shape(), ", not ", value.shape());
    }
    values_ = std::move(fresh);
    ++averaged_;
}

void AveragedModel::copy_to(nn::Module& module) const { module.load_state_dict(values_); }

StateDict AveragedModel::state_dict() const {
    NoGrad plain;
    StateDict state{{"n_averaged", scalar(double(averaged_), {.dtype = float64})}};
    for (const auto& [name, value] : values_) state.emplace_back("module." + name, value.clone());
    return state;
}

void AveragedModel::load_state_dict(const StateDict& state) {
    NoGrad plain;
    std::unordered_map<std::string, Tensor> entries(state.begin(), state.end());
    check(entries.size() == state.size(), ErrorKind::value, "AveragedModel.load_state_dict: of ",
          state.size(), " entries only ", entries.size(), " have a name of their own");
    const auto take = [&](const std::string& name) {
        const auto at = entries.find(name);
        check(at != entries.end() && at->second.defined(), ErrorKind::value,
              "AveragedModel.load_state_dict: ", name, " is missing");
        const Tensor value = at->second;
        entries.erase(at);
        return value;
    };
    const double averaged = take("n_averaged").item<double>();
    check(averaged >= 0 && averaged <= 0x1p53 && averaged == std::floor(averaged), ErrorKind::value,
          "AveragedModel.load_state_dict: n_averaged is ", averaged,
          "; it must be a whole number in [0, 2^53]");
    StateDict fresh = values_;
    for (auto& [name, average] : fresh) {
        const Tensor value = take("module." + name);
        check(value.shape() == average.shape(), ErrorKind::shape, "AveragedModel.load_state_dict: module.",
              name, " has shape ", value.shape(), ", not ", average.shape());
        average = value.detach().to(average.device()).to(average.dtype()).clone();
    }
    check(entries.empty(), ErrorKind::value, "AveragedModel.load_state_dict: unknown entry ",
          entries.empty() ? "" : entries.begin()->first);
    values_ = std::move(fresh);
    averaged_ = std::int64_t(averaged);
}

}  // namespace mezzo::optim
