// Training with optimizers that are sharded or not, which must all give the same bits.
#pragma once

#include <catch2/catch.hpp>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "mezzo/custom_optimizer.h"
#include "optim/optimizer.h"
#include "tests/distributed/thread_group.h"
#include "tests/distributed/training.h"

namespace mezzo::test {

inline constexpr int sharded_steps = 8, sharded_overflow_step = 3;

// Two layers that the loss reaches, and one that it does not reach.
inline nn::Sequential make_net(std::uint64_t seed) {
    return seeded(seed, [] {
        return nn::Sequential{nn::Linear(net_width, 40), nn::LayerNorm(40), nn::ReLU(),
                              nn::Linear(40, net_width)};
    });
}

using MakeOptimizer = std::function<std::unique_ptr<optim::Optimizer>(const StateDict&)>;

template <class Optimizer, class Options> MakeOptimizer maker(const Options& options) {
    return [options](const StateDict& params) { return std::make_unique<Optimizer>(params, options); };
}

// Weights with one set of options, biases with another in which some state is not used.
inline MakeOptimizer grouped() {
    return [](const StateDict& params) -> std::unique_ptr<optim::Optimizer> {
        std::vector<optim::SGDGroup> groups{{.options = {.lr = 0.05, .momentum = 0.9, .weight_decay = 0.01}},
                                            {.options = {.lr = 0.1}}};
        for (const auto& named : params)
            groups[named.first.ends_with("bias") ? 1 : 0].named_params.push_back(named);
        return std::make_unique<optim::SGD>(groups);
    };
}

struct ShardedWay {
    const char* name;
    MakeOptimizer make;
    Dtype dtype = float32;  // of the parameters
    bool autocast = false;  // in float16
    bool clip = false;
    bool scaled = false;   // with a GradScaler, and an overflow
    bool masters = false;  // of 16-bit parameters
    optim::MasterWeights storage = optim::MasterWeights::whole;
};

// Model, data and optimizer of one rank.
struct ShardedTraining {
    nn::Sequential net;
    std::unique_ptr<optim::Optimizer> optimizer;
    amp::GradScaler scaler;
    const ShardedWay& way;
    const Device device;

    ShardedTraining(const ShardedWay& w, int rank, Device on = cpu_device, bool masters = true)
        : net(make_net(std::uint64_t(5 + rank))),
          scaler({.init_scale = 256, .growth_interval = 3, .enabled = w.scaled}),
          way(w),
          device(on) {
        net.to(w.dtype);
        net.to(device);
        optimizer = w.make(net.named_parameters());
        if (w.masters && masters) optimizer->use_master_weights(w.storage);
    }
    Tensor loss(int part) const {
        const amp::Autocast scope({.device = device.type(), .dtype = float16, .enabled = way.autocast});
        const Tensor x = rows(part).to(device), wanted = rows(part + 1000).to(device);
        return mse_loss(net(x.to(way.dtype)).to(float32), wanted);
    }
    // Only the last element of the last parameter gets an infinite gradient, on rank 1.
    Tensor planted(const Tensor& loss, int step, const distributed::Group& group) const {
        constexpr double infinity = std::numeric_limits<double>::infinity();
        const bool here = way.scaled && step == sharded_overflow_step && group.rank() == 1;
        if (!here) return loss;
        const Tensor last = net.parameters().back().reshape({-1});
        return loss + sum(last.slice(0, last.numel() - 1, last.numel()).to(float32) * infinity);
    }
    void step(int step, const distributed::Group& group) {
        scaler.scale(planted(loss(step * group.size() + group.rank()), step, group)).backward();
        if (way.clip) {
            scaler.unscale_(*optimizer);
            nn::clip_grad_norm_(net.parameters(), 0.3);
        }
        scaler.step(*optimizer);
        scaler.update();
        optimizer->zero_grad();
    }
    Snapshot state() const {
        Snapshot result = weights_of(net);
        append(result, "optimizer.", optimizer->state_dict());
        append(result, "scaler.", scaler.state_dict());
        result.emplace_back("skipped", std::vector<double>{double(optimizer->skipped_steps())});
        return result;
    }
};

// Chooses the device of a rank's training.
using DeviceOf = std::function<Device(const distributed::Group&)>;
inline Device in_host_memory(const distributed::Group&) { return cpu_device; }

// With 3 ranks the masters are made after the optimizer has been sharded.
inline std::vector<Snapshot> train_sharded(const ShardedWay& way, int ranks, bool sharded,
                                           const DeviceOf& device_of = in_host_memory) {
    std::vector<Snapshot> results(static_cast<std::size_t>(ranks));
    run_ranks(ranks, [&](const distributed::Group& group) {
        const bool masters_before = ranks != 3;
        ShardedTraining training(way, group.rank(), device_of(group), masters_before);
        distributed::DataParallel parallel(training.net, group,
                                           {.first_bucket_bytes = 1, .bucket_bytes = 3000});
        if (sharded) shard(*training.optimizer, parallel);
        if (way.masters && !masters_before) training.optimizer->use_master_weights(way.storage);
        for (int step = 0; step < sharded_steps; ++step) training.step(step, group);
        results[std::size_t(group.rank())] = training.state();
    });
    return results;
}

inline const MakeOptimizer momentum = maker<optim::SGD>(optim::SGDOptions{.lr = 0.05, .momentum = 0.9});
inline const MakeOptimizer adam = maker<optim::Adam>(optim::AdamOptions{.lr = 0.01, .weight_decay = 0.01});
inline const MakeOptimizer adamw = maker<optim::AdamW>(optim::AdamWOptions{.lr = 0.01});
inline MakeOptimizer narrow(optim::StatePrecision states) {
    return maker<optim::AdamW>(optim::AdamWOptions{.lr = 0.01, .states = states, .narrow_all = true});
}

inline std::vector<ShardedWay> mixed_precision_ways() {
    return {
        {.name = "O1", .make = adamw, .autocast = true, .scaled = true},
        {.name = "O1, clipped", .make = adam, .autocast = true, .clip = true, .scaled = true},
        {.name = "O2", .make = adamw, .dtype = float16, .scaled = true, .masters = true},
        {.name = "O2, clipped",
         .make = momentum,
         .dtype = float16,
         .clip = true,
         .scaled = true,
         .masters = true},
        {.name = "O2, bfloat16, groups", .make = grouped(), .dtype = bfloat16, .masters = true},
        {.name = "O2, split masters",
         .make = adamw,
         .dtype = bfloat16,
         .scaled = true,
         .masters = true,
         .storage = optim::MasterWeights::split},
        {.name = "O1, moments in bfloat16",
         .make = narrow(optim::StatePrecision::bf16),
         .autocast = true,
         .scaled = true},
        {.name = "split masters, moments in blocks",
         .make = narrow(optim::StatePrecision::both_eight_bit),
         .dtype = bfloat16,
         .masters = true,
         .storage = optim::MasterWeights::split},
        {.name = "bfloat16 without masters", .make = adamw, .dtype = bfloat16},
        {.name = "float64", .make = adamw, .dtype = float64},
    };
}

}  // namespace mezzo::test
