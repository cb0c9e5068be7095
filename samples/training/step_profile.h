// --profile FILE: where the time of some training steps goes.
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

// Profiles up to 5 steps after a warm-up of 3; of shorter trainings the last step at least. When they are over, prints two
// tables, by op and by module, and writes the trace; the other steps run without a profiler. Of several ranks the
// leader does this.
class StepProfile {
public:
    // path: of the trace; empty: nothing is profiled. steps: that the training still has. The model, whose parameters are
    // those of the training already, outlives the object. Throws std::runtime_error where the file cannot be written.
    StepProfile(const std::string& path, const mezzo::distributed::Group& group,
                const mezzo::nn::Module& model, mezzo::Device device, std::int64_t steps);
    // A step is over. Throws mezzo::Error where the trace cannot be written.
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
