// A small training in which every part of a checkpoint matters for the next step.
#pragma once

#include <cstring>
#include <vector>

#include "mezzo/data/loader.h"
#include "mezzo/data/transforms.h"
#include "mezzo/mezzo.h"
#include "mezzo/train/checkpoint.h"

namespace mezzo::test {

struct TrainingRun {
    explicit TrainingRun(std::uint64_t seed, Device device = cpu_device) : device_(device) {
        manual_seed(seed);
        net = nn::Sequential{nn::Linear(8, 12), nn::ReLU(), nn::Dropout(0.3), nn::Linear(12, 3)};
        net.to(device);
        optimizer.emplace(net.parameters(), optim::AdamWOptions{.lr = 0.01});
        average.emplace(net, optim::AveragedModelOptions{.average = optim::ema_average(0.9)});
        plateau.emplace(*optimizer, optim::ReduceLROnPlateauOptions{.factor = 0.9, .patience = 1});
        loader.emplace(
            data(), data::DataLoaderOptions{.batch_size = 8, .shuffle = true, .seed = 3, .device = device});
    }

    static data::Dataset data() {
        std::vector<float> x;
        std::vector<std::int64_t> y;
        for (std::int64_t i = 0; i < 52; ++i) {
            for (std::int64_t j = 0; j < 8; ++j) x.push_back(float((i * 7 + j * 3) % 11) / 11.0f - 0.5f);
            y.push_back(i % 3);
        }
        return {Tensor::from(x, {52, 8}), Tensor::from(y, {52})};
    }

    // Runs one step. Every ninth step overflows, so that the scale falls and the step is skipped.
    void step(const data::Batch& batch) {
        Tensor loss;
        {
            const amp::Autocast scope({.device = device_.type(), .dtype = float16});
            loss = cross_entropy(net(batch.x), batch.y);
        }
        scaler.scale(step_done % 9 == 8 ? loss * 1e30 : loss).backward();
        scaler.step(*optimizer);
        scaler.update();
        optimizer->zero_grad();
        average->update_parameters(net);
        if (++step_done % 5 == 0) plateau->step(loss.item<double>());
    }
    // Trains until `steps` steps are done; calls after(step) after each of them.
    template <class After> void train(std::int64_t steps, const After& after) {
        while (step_done < steps)
            for (const data::Batch batch : *loader) {
                step(batch);
                after(step_done);
                if (step_done < steps) continue;
                loader->set_position(loader->position());  // the next loop is to go on with this epoch
                return;
            }
    }
    void train(std::int64_t steps) {
        train(steps, [](std::int64_t) {});
    }

    training::CheckpointParts parts() {
        return {.model = net,
                .optimizer = *optimizer,
                .scaler = scaler,
                .schedule = *plateau,
                .average = *average,
                .loader = *loader};
    }
    // The state that the next step depends on, as numbers.
    std::vector<double> state() const {
        std::vector<double> result{double(step_done), double(random_state().seed),
                                   double(random_state().offset), double(loader->position().epoch),
                                   double(loader->position().samples)};
        for (const StateDict& part : {net.state_dict(), optimizer->state_dict(), scaler.state_dict(),
                                      plateau->state_dict(), average->state_dict()})
            for (const auto& [name, value] : part)
                for (const double v : value.to_vector<double>()) result.push_back(v);
        return result;
    }

    nn::Sequential net;
    std::optional<optim::AdamW> optimizer;
    amp::GradScaler scaler{{.init_scale = 256, .growth_interval = 4}};
    std::optional<optim::AveragedModel> average;
    std::optional<optim::ReduceLROnPlateau> plateau;
    std::optional<data::DataLoader> loader;
    std::int64_t step_done = 0;

private:
    Device device_;
};

// Compares bit by bit, so that NaN equals itself.
inline bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

}  // namespace mezzo::test
