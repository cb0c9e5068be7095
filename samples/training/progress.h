// Shows the progress of a training: on a terminal one line that is rewritten, otherwise a plain line per
// report.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

namespace training {

struct ProgressState {
    std::string stage = {};  // such as "pre-training"; may be empty
    std::int64_t epoch = 0, epochs = 1;
    std::int64_t step = 0, steps = 1;  // of the whole stage
    double loss = 0;                   // mean since the last report
    double lr = 0;
    bool scaled = false;  // whether there is a gradient scaler
    double scale = 1;
    std::int64_t skipped = 0;
};

class Progress {
public:
    // terminal: rewrites one line on standard error. samples: their name, such as "texts".
    Progress(bool terminal, std::string samples)
        : terminal_(terminal), start_(Clock::now()), name_(std::move(samples)) {}
    // Adds processed samples, for the rate.
    void count(std::int64_t samples) { samples_ += samples; }
    void show(const ProgressState& state);
    // Ends the line, so that other output can follow.
    void end_line();
    // Returns the seconds of training, without those excluded by leave_out().
    double seconds() const {
        return std::chrono::duration<double>(Clock::now() - start_).count() - left_out_;
    }
    void leave_out(double since) { left_out_ += seconds() - since; }

private:
    using Clock = std::chrono::steady_clock;
    bool terminal_, open_ = false;
    Clock::time_point start_;
    std::string name_;
    std::int64_t samples_ = 0, first_step_ = -1;
    double first_seconds_ = 0, left_out_ = 0;
};

// 75 -> "1:15", 4000 -> "1:06:40".
std::string clock_time(double seconds);

}  // namespace training
