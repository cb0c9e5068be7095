// Logs a training as CSV: a row per report and per epoch, for tools/chart.py.
#pragma once

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>

namespace resnet {

struct LogRow {
    const char* kind = "step";  // or "epoch"
    std::int64_t epoch = 0;     // from 1
    std::int64_t step = 0;
    double seconds = 0;                   // of training so far
    double loss = 0, train_accuracy = 0;  // means since the last row of this kind
    std::optional<double> test_accuracy = {};
    double lr = 0;
    std::optional<double> scale = {};  // of the loss; none: it is not scaled
    std::int64_t skipped = 0;
    double images_per_second = 0;
    std::uint64_t peak_bytes = 0;
};

class Log {
public:
    // Replaces the file, except the rows up to step `keep`; `keep_epoch` says whether the row of an epoch
    // that ended with this step stays. With an empty path nothing is written. Throws std::runtime_error.
    Log(const std::string& path, std::int64_t keep, bool keep_epoch);
    void add(const LogRow& row);

private:
    void write(const std::string& line);
    std::string path_;
    std::ofstream file_;
};

// Returns the largest resident memory of the process on the CPU, otherwise the most that mezzo has allocated.
std::uint64_t peak_bytes(bool cpu, std::uint64_t allocated);

}  // namespace resnet
