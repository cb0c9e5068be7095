// --profile FILE: profiles some training steps.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <mezzo/mezzo.h>

namespace CLI {
class App;
}

namespace training {

void add_profile_option(CLI::App& app, std::string& path);

// Profiles up to 5 steps after a warm-up of 3; in shorter trainings at least the last step. Afterwards prints
// two tables, by op and by module, and writes the trace; the other steps run without a profiler. Of several
// ranks only the leader profiles.
class StepProfile {
public:
    // path: of the trace; empty: nothing is profiled. steps: the number of remaining steps. The model has its
    // final parameters and outlives the object. Throws std::runtime_error if the file cannot be written.
    StepProfile(const std::string& path, const mezzo::distributed::Group& group,
                const mezzo::nn::Module& model, mezzo::Device device, std::int64_t steps);
    // Called after each step. Throws mezzo::Error if the trace cannot be written.
    void step_done();

private:
    void begin();
    void end();

    std::string path_;
    const mezzo::nn::Module& model_;
    mezzo::Device device_;
    std::int64_t warmup_ = 0, last_ = 0, done_ = 0;
    std::optional<mezzo::insight::Profiler> profiler_;
};

}  // namespace training
