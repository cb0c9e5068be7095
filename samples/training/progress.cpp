#include "training/progress.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include <fmt/format.h>

#include "program.h"

namespace training {

std::string clock_time(double seconds) {
    const auto s = static_cast<std::int64_t>(std::llround(std::max(0.0, seconds)));
    if (s >= 3600) return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
    return fmt::format("{}:{:02}", s / 60, s % 60);
}

void Progress::show(const ProgressState& state) {
    const double now = seconds();
    // The first report only starts the clock for the rate: the time before it includes building the model.
    if (first_step_ < 0) {
        first_step_ = state.step;
        first_seconds_ = now;
    }
    const double per_step =
        state.step > first_step_ ? (now - first_seconds_) / double(state.step - first_step_) : 0;
    std::string line = fmt::format("{}{}epoch {}/{} step {}/{}  loss {:.4f}  lr {:.2e}", state.stage,
                                   state.stage.empty() ? "" : " ", state.epoch + 1, state.epochs, state.step,
                                   state.steps, state.loss, state.lr);
    if (state.scaled) line += fmt::format("  scale {:g}  skipped {}", state.scale, state.skipped);
    line += fmt::format("  {:.1f} {}/s", double(samples_) / std::max(now, 1e-9), name_);
    if (per_step > 0)
        line += fmt::format("  ETA {}", clock_time(per_step * double(state.steps - state.step)));
    if (terminal_) {
        program::tell(fmt::format("\r{:<110}", line));
        open_ = true;
    } else {
        fmt::print("{}\n", line);
        std::fflush(stdout);
    }
}

void Progress::end_line() {
    if (open_) program::tell("\n");
    open_ = false;
}

}  // namespace training
