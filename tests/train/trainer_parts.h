// Model, optimizer, data and log for the tests of training::Trainer.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "mezzo/data/loader.h"
#include "mezzo/data/transforms.h"
#include "mezzo/mezzo.h"
#include "mezzo/train/metrics.h"
#include "tests/train/training_run.h"

namespace mezzo::test {

// A model with its optimizer and data, the same for each seed.
struct TrainerParts {
    explicit TrainerParts(std::uint64_t seed = 5, double lr = 0.05, Device device = cpu_device) {
        manual_seed(seed);
        net = nn::Sequential{nn::Linear(8, 12), nn::ReLU(), nn::Dropout(0.3), nn::Linear(12, 3)};
        net.to(device);
        optimizer.emplace(net.parameters(), optim::SGDOptions{.lr = lr, .momentum = 0.9});
        loader.emplace(
            test::TrainingRun::data(),
            data::DataLoaderOptions{.batch_size = 8, .shuffle = true, .seed = 3, .device = device});
    }
    auto loss() {
        return [this](const data::Batch& batch) { return cross_entropy(net(batch.x), batch.y); };
    }
    std::vector<double> weights() const {
        std::vector<double> result;
        for (const StateDict& part : {net.state_dict(), optimizer->state_dict()})
            for (const auto& [name, value] : part)
                for (const double v : value.to_vector<double>()) result.push_back(v);
        return result;
    }
    nn::Sequential net;
    std::optional<optim::SGD> optimizer;
    std::optional<data::DataLoader> loader;  // 7 batches, the last of 4 rows
};

// Keeps what a Trainer logs.
struct TrainerLog final : io::MetricWriter {
    void log(std::int64_t step, const io::Metrics& metrics) override {
        steps.push_back(step);
        rows.push_back(metrics);
    }
    void flush() override { ++flushes; }
    std::vector<std::int64_t> steps;
    std::vector<io::Metrics> rows;
    int flushes = 0;
};

}  // namespace mezzo::test
