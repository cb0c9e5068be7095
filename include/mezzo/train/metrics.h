// Writers for metrics of a training: TensorBoard event files, CSV and JSON lines.
//
//   io::CsvWriter csv("run.csv");
//   csv.log(100, {{"loss", loss.item<double>()}, {"lr", optimizer.lr()}});  // of step 100
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mezzo/tensor.h"

#pragma GCC visibility push(default)

namespace mezzo::io {

// Names and values of one step, such as {{"loss", 0.5}, {"scale", 65536}}.
using Metrics = std::vector<std::pair<std::string, double>>;

// Interface of metric writers. Threads may share a writer. All functions throw Error(io) if the file cannot
// be written; the data stays buffered then, and the next flush() that succeeds writes it.
class MetricWriter {
public:
    virtual ~MetricWriter() = default;
    virtual void log(std::int64_t step, const Metrics& metrics) = 0;
    // Writes all logged data to the file. The destructor does so, too, but cannot report errors.
    virtual void flush() = 0;
};

// Writes a CSV file with one column per metric, after "step" and "time" (seconds since 1970); a metric that a
// step lacks leaves its cell empty. A new metric adds a column, for which the file is rewritten. An existing
// file is continued; an unfinished last line, of a killed program, is dropped. Inf and NaN are "inf", "-inf"
// and "nan".
class CsvWriter final : public MetricWriter {
public:
    // Error(io) if the file cannot be opened, or exists and does not begin with these two columns.
    explicit CsvWriter(const std::string& path);
    ~CsvWriter() override;
    CsvWriter(const CsvWriter&) = delete;
    CsvWriter& operator=(const CsvWriter&) = delete;
    // Error(value) for a name that is empty or there twice, or is step or time.
    void log(std::int64_t step, const Metrics& metrics) override;
    void flush() override;

private:
    struct [[gnu::visibility("hidden")]] Impl;
    Impl* impl_;
};

// Writes one JSON object per line: {"step": 7, "time": 1.7e9, "loss": 0.5}. An existing file is continued as
// by CsvWriter. JSON has no inf and NaN: they are the strings "Infinity", "-Infinity" and "NaN".
class JsonLinesWriter final : public MetricWriter {
public:
    explicit JsonLinesWriter(const std::string& path);  // Error(io) if the file cannot be opened
    ~JsonLinesWriter() override;
    JsonLinesWriter(const JsonLinesWriter&) = delete;
    JsonLinesWriter& operator=(const JsonLinesWriter&) = delete;
    void log(std::int64_t step,
             const Metrics& metrics) override;  // Error(value) for a name that is step or time
    void flush() override;

private:
    struct [[gnu::visibility("hidden")]] Impl;
    Impl* impl_;
};

// Writes a TensorBoard event file, with the names of torch.utils.tensorboard.SummaryWriter: run
// `tensorboard --logdir FOLDER`. wall_time is in seconds since 1970; now if it is not given.
class SummaryWriter final : public MetricWriter {
public:
    // Creates the folder if it does not exist, and a new file in it:
    // events.out.tfevents.SECONDS.HOST.PID.NUMBER.
    explicit SummaryWriter(const std::string& folder);
    ~SummaryWriter() override;
    SummaryWriter(const SummaryWriter&) = delete;
    SummaryWriter& operator=(const SummaryWriter&) = delete;

    using WallTime = std::optional<double>;
    void add_scalar(const std::string& tag, double value, std::int64_t step, WallTime wall_time = {});
    // The distribution of the elements of a tensor of any dtype. Inf and NaN are counted by a scalar
    // tag/nonfinite. Waits for the device.
    void add_histogram(const std::string& tag, const Tensor& values, std::int64_t step,
                       WallTime wall_time = {});
    // Markdown.
    void add_text(const std::string& tag, const std::string& text, std::int64_t step,
                  WallTime wall_time = {});
    // [height, width, channels] with 1, 3 or 4 channels: uint8, or floating from 0 to 1. Error(shape) and
    // Error(dtype) otherwise. Waits for the device.
    void add_image(const std::string& tag, const Tensor& image, std::int64_t step, WallTime wall_time = {});
    // Writes a scalar for each metric.
    void log(std::int64_t step, const Metrics& metrics) override;
    void flush() override;
    [[nodiscard]] const std::string& path() const;

private:
    struct [[gnu::visibility("hidden")]] Impl;
    Impl* impl_;
};

}  // namespace mezzo::io

#pragma GCC visibility pop
