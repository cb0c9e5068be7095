#include "training/step_profile.h"

#include <algorithm>
#include <cstdio>

#include <fmt/format.h>

#include "program.h"
#include "training/places.h"

namespace mz = mezzo;

namespace training {

namespace {

constexpr std::int64_t usual_warmup = 3, most_steps = 5;

}  // namespace

void add_profile_option(CLI::App& app, std::string& path) {
    app.add_option("--profile", path,
                   "profile a few steps: print tables by op and by module, and write a trace for "
                   "ui.perfetto.dev into this file");
}

StepProfile::StepProfile(const std::string& path, const mz::distributed::Group& group,
                         const mz::nn::Module& model, mz::Device device, std::int64_t steps)
    : path_(group.leader() ? path : std::string()), model_(model), device_(device) {
    if (path_.empty() || steps <= 0) return;
    check_file("--profile", path_);
    warmup_ = std::min(usual_warmup, steps - 1);
    last_ = std::min(warmup_ + most_steps, steps);
    if (warmup_ == 0) begin();
}

void StepProfile::begin() {
    mz::synchronize(device_);  // the device's work of the warm-up is not profiled
    profiler_.emplace(mz::insight::ProfilerOptions{
        .model = &model_, .record_shapes = true, .device_times = true, .device = device_});
}

void StepProfile::end() {
    mz::synchronize(device_);
    const bool device_times = profiler_->device_times();
    const auto sort =
        device_times ? mz::insight::ProfileSort::self_device_time : mz::insight::ProfileSort::self_time;
    fmt::print("\nprofile of steps {} to {}\n\n", warmup_ + 1, last_);
    for (const auto group : {mz::insight::ProfileGroup::op, mz::insight::ProfileGroup::module})
        fmt::print("{}\n", profiler_->table({.group_by = group, .sort_by = sort}));
    profiler_->write_chrome_trace(path_);
    fmt::print("{}: the trace, for ui.perfetto.dev\n\n", path_);
    std::fflush(stdout);
    profiler_.reset();
}

void StepProfile::step_done() {
    if (done_ >= last_) return;
    ++done_;
    if (profiler_) profiler_->step();
    if (done_ == last_)
        end();
    else if (done_ == warmup_)
        begin();
}

}  // namespace training
