// ReduceLROnPlateau, the only schedule that depends on a metric.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/enumerators.h"
#include "core/step_recorder.h"
#include "mezzo/ops.h"
#include "optim/optimizer.h"

namespace mezzo::optim {

namespace {

using Options = ReduceLROnPlateauOptions;

double worst(Options::Mode mode) {
    const double inf = std::numeric_limits<double>::infinity();
    return mode == Options::Mode::min ? inf : -inf;
}

void require(bool holds, const char* option, double value, const char* rule) {
    check(holds, ErrorKind::value, "ReduceLROnPlateau: ", option, " is ", value, "; it must be ", rule);
}

void check_options(const Options& o) {
    check_enumerator("ReduceLROnPlateau", "mode", o.mode, Options::Mode::max);
    check_enumerator("ReduceLROnPlateau", "threshold_mode", o.threshold_mode, Options::Threshold::absolute);
    require(o.factor >= 0 && o.factor < 1, "factor", o.factor, "in [0, 1)");
    require(o.patience >= 0, "patience", double(o.patience), ">= 0");
    require(std::isfinite(o.threshold) && o.threshold >= 0, "threshold", o.threshold, "finite and >= 0");
    require(o.cooldown >= 0, "cooldown", double(o.cooldown), ">= 0");
    require(std::isfinite(o.min_lr) && o.min_lr >= 0, "min_lr", o.min_lr, "finite and >= 0");
    require(std::isfinite(o.eps) && o.eps >= 0, "eps", o.eps, "finite and >= 0");
}

double number(const StateDict& state, const char* name) {
    for (const auto& [key, value] : state)
        if (key == name && value.defined()) return value.item<double>();
    fail(ErrorKind::value, "ReduceLROnPlateau.load_state_dict: ", name, " is missing");
}

std::int64_t count(const StateDict& state, const char* name) {
    const double value = number(state, name);
    check(value >= 0 && value <= 9007199254740992 && value == std::floor(value), ErrorKind::value,
          "ReduceLROnPlateau.load_state_dict: ", name, " is ", value, "; it must be a whole number >= 0");
    return std::int64_t(value);
}

}  // namespace

ReduceLROnPlateau::ReduceLROnPlateau(Optimizer& optimizer, const ReduceLROnPlateauOptions& options)
    : optimizer_(&optimizer), options_(options), best_(worst(options.mode)) {
    check_options(options);
}

bool ReduceLROnPlateau::better(double metric) const {
    const double sign = options_.mode == Options::Mode::min ? -1 : 1;
    if (options_.threshold_mode == Options::Threshold::absolute)
        return sign * metric > sign * (best_ + sign * options_.threshold);
    return sign * metric > sign * (best_ * (1 + sign * options_.threshold));
}

void ReduceLROnPlateau::reduce() {
    for (Group& group : optimizer_->impl().groups) {
        const double lower = std::max(group.lr() * options_.factor, options_.min_lr);
        if (group.lr() - lower > options_.eps) group.lr() = lower;
    }
}

void ReduceLROnPlateau::step(double metric) {
    refuse_in_capture("ReduceLROnPlateau.step", "change the learning rate");
    if (better(metric)) {
        best_ = metric;
        bad_metrics_ = 0;
    } else {
        ++bad_metrics_;
    }
    if (cooldown_ > 0) {
        --cooldown_;
        bad_metrics_ = 0;
    }
    if (bad_metrics_ <= options_.patience) return;
    reduce();
    cooldown_ = options_.cooldown;
    bad_metrics_ = 0;
}

StateDict ReduceLROnPlateau::state_dict() const {
    const auto entry = [](double value) { return scalar(value, {.dtype = float64}); };
    return {{"best", entry(best_)},
            {"bad_metrics", entry(double(bad_metrics_))},
            {"cooldown", entry(double(cooldown_))}};
}

void ReduceLROnPlateau::load_state_dict(const StateDict& state) {
    const double best = number(state, "best");
    check(!std::isnan(best), ErrorKind::value, "ReduceLROnPlateau.load_state_dict: best is nan");
    const std::int64_t bad = count(state, "bad_metrics"), left = count(state, "cooldown");
    for (const auto& [name, value] : state)
        check(name == "best" || name == "bad_metrics" || name == "cooldown", ErrorKind::value,
              "ReduceLROnPlateau.load_state_dict: unknown entry ", name);
    best_ = best;
    bad_metrics_ = bad;
    cooldown_ = left;
}

}  // namespace mezzo::optim
