// TrainingStatus, the progress of a training, and ProgressBar, which displays it.
//
//   training::ProgressBar bar(stderr, {.label = "training"});
//   training::Trainer trainer(net, optimizer, {.epochs = 5, .progress = &bar});
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "mezzo/callback.h"
#include "mezzo/train/metrics.h"

#pragma GCC visibility push(default)

namespace mezzo::training {

// Progress of a training.
struct TrainingStatus {
    std::int64_t epoch = 0, epochs = 0;  // epochs completed, and in all
    std::int64_t step = 0, steps = 0;    // optimizer steps tried, and in all; 0: not known
    double loss = 0;                     // mean of the steps since the last report
    double lr = 0;                       // of the first group
    std::optional<double> scale = {};    // of the loss; none: it is not scaled
    std::int64_t skipped = 0;            // steps that overflowed
    io::Metrics metrics = {};            // of the last evaluation
};

// 75 is "1:15", 4000 is "1:06:40"; "?" for what is negative or not finite.
[[nodiscard]] std::string clock_time(double seconds);

enum class ProgressStyle : std::uint8_t {
    automatic,  // a bar on a terminal, unless TERM is "dumb"; lines elsewhere
    bar,        // one line, rewritten
    lines,      // plain lines for pipes and logs
};

struct ProgressBarOptions {
    std::string label = {};  // begins the line
    ProgressStyle style = ProgressStyle::automatic;
    // Least number of seconds between two outputs; negative: 0.1 for a bar, 10 for lines. The first and the
    // last step are always shown.
    double interval = -1;
    // Returns the time in seconds; none: a monotonic clock.
    std::optional<autograd::Callback<double()>> clock = {};
};

// Shows step, rate, ETA, loss and learning rate, and, if the loss is scaled, scale and skipped steps:
//
//   epoch 2/8 [=====>      ]  45 % 420/930  31.2 steps/s  ETA 0:16  loss 0.4031  lr 1.0e-03  scale 65536
//
// Uses colours only on a terminal, and not if the environment variable NO_COLOR is set and not empty. Write
// errors are ignored.
class ProgressBar {
public:
    // Writes to a stream that must outlive it: stderr, or a file of the caller. Error(value) for a null
    // stream and for a style that does not exist.
    explicit ProgressBar(std::FILE* to, const ProgressBarOptions& options = {});
    ~ProgressBar() { end_line(); }
    ProgressBar(const ProgressBar&) = delete;
    ProgressBar& operator=(const ProgressBar&) = delete;

    void show(const TrainingStatus& status);
    // Writes a line above the bar.
    void print(const std::string& line);
    // Ends the bar's line, so that other output can follow; the next show() begins a new line.
    void end_line();

private:
    [[nodiscard]] double now() const;
    [[nodiscard]] std::string text_of(const TrainingStatus& status, double seconds) const;
    [[nodiscard]] std::string bar_of(const TrainingStatus& status) const;
    void clear_line();
    std::FILE* to_;
    ProgressBarOptions options_;
    bool bar_, colours_, open_ = false;
    std::int64_t first_step_ = -1, last_step_ = -1;
    double first_time_ = 0, last_time_ = 0;
};

}  // namespace mezzo::training

#pragma GCC visibility pop
