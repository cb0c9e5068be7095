// Training on emulated devices, over the stand-in for NCCL or through host memory, and the state of each rank
// at its end.
#pragma once

#include <catch2/catch.hpp>
#include <limits>
#include <optional>

#include "cuda/runtime/runtime.h"
#include "mezzo/capture.h"
#include "tests/distributed/device_groups.h"
#include "tests/distributed/training.h"

namespace mezzo::test {

inline constexpr int overflow_step = 3;

struct Recipe {
    distributed::DataParallelOptions options = {.first_bucket_bytes = 2000, .bucket_bytes = 4000};
    Dtype parameters = float32;
    bool autocast = false;  // in float16
    std::optional<amp::Fp8> fp8 = {};
    bool captured = false;
    int restart_step = -1;  // in which rank 1 alone must record its step anew
    int steps = 20;
};

// A model, its shard of the data in host memory, and its loss.
struct Mlp {
    nn::Sequential net;
    explicit Mlp(std::uint64_t seed) : net(make_mlp(seed)) {}
    static Tensors part(int number) { return {rows(number), rows(number + 1000)}; }
    Tensor forward(const Tensors& in) const { return net(in[0].to(net.parameters()[0].dtype())); }
    static Tensor loss(const Tensor& y, const Tensors& in) { return mse_loss(y, in[1]); }
};
struct Bert {
    nn::BertForSequenceClassification net;
    explicit Bert(std::uint64_t seed) : net(make_bert(seed)) {}
    static Tensors part(int number) {
        return {token_ids(number), Tensor::from(std::vector<std::int64_t>{0, 1, 1, 0}, {4})};
    }
    Tensor forward(const Tensors& in) const { return net(in[0]); }
    static Tensor loss(const Tensor& y, const Tensors& in) { return cross_entropy(y, in[1]); }
};

// State of a rank after its steps.
struct Trained {
    Snapshot state;
    std::int64_t steps = 0, applied = 0, skipped = 0;
    double scale = 0;
    std::size_t buckets = 0;
    cuda::CaptureStatistics captures = {};
    std::string engine;
};

// A training step on the rank's device.
template <class Model> class Loop {
public:
    Loop(const distributed::Group& group, const Recipe& recipe)
        : group_(group),
          recipe_(recipe),
          model_(std::uint64_t(5 + group.rank())) {  // rank 0's values are the start of all
        net_.to(group.device());
        if (recipe.parameters != float32) net_.to(recipe.parameters);
        optimizer_.emplace(net_.named_parameters(), optim::AdamWOptions{.lr = 0.01});
        if (recipe.parameters == float16) optimizer_->use_master_weights();
        parallel_.emplace(net_, group, recipe.options);
        captured_.emplace([this](const Tensors& in) { return step(in); },
                          cuda::CaptureOptions{.warmup = 2, .device = group.device()});
    }
    Loop(const Loop&) = delete;
    Loop& operator=(const Loop&) = delete;

    // The last input is a factor of the loss.
    Tensors step(const Tensors& in) {
        Tensor y;
        {
            const amp::Autocast scope({.device = DeviceType::cuda,
                                       .dtype = float16,
                                       .enabled = recipe_.autocast,
                                       .fp8 = recipe_.fp8});
            y = model_.forward(in);
        }
        const Tensor loss = model_.loss(y.to(float32), in) * in.back();
        scaler_.scale(loss).backward();
        scaler_.step(*optimizer_);
        scaler_.update();
        optimizer_->zero_grad();
        return {loss};
    }

    void run(int number) {
        const Device device = group_.device();
        const bool overflow = number == overflow_step && group_.rank() == 1;
        Tensors inputs;
        for (const Tensor& x : model_.part(number * group_.size() + group_.rank()))
            inputs.push_back(x.to(device));
        inputs.push_back(
            scalar(overflow ? std::numeric_limits<double>::infinity() : 1.0, {.device = device}));
        if (number == recipe_.restart_step && group_.rank() == 1)
            optimizer_->load_state_dict(optimizer_->state_dict());
        if (recipe_.captured)
            (*captured_)(inputs);
        else
            step(inputs);
    }

    Trained result() const {
        Trained t;
        append(t.state, "", net_.named_parameters());
        append(t.state, "optimizer.", optimizer_->state_dict());
        append(t.state, "scaler.", scaler_.state_dict());
        append(t.state, "fp8.", amp::Fp8State(net_).state_dict());
        t.steps = recipe_.steps;
        t.applied = optimizer_->applied_steps();
        t.skipped = optimizer_->skipped_steps();
        t.scale = scaler_.get_scale();
        t.buckets = parallel_->buckets().size();
        t.captures = captured_->statistics();
        t.engine = group_.engine();
        return t;
    }

private:
    const distributed::Group group_;
    const Recipe recipe_;
    Model model_;
    nn::Module& net_ = model_.net;
    std::optional<optim::AdamW> optimizer_;
    amp::GradScaler scaler_{{.init_scale = 1024, .growth_interval = 6}};
    std::optional<distributed::DataParallel> parallel_;
    std::optional<cuda::CapturedStep> captured_;
};

template <class Model = Mlp>
std::vector<Trained> train(int ranks, const Recipe& recipe, const Timing& timing = timings[0]) {
    set_timing(timing);
    std::vector<Trained> results;
    results.resize(std::size_t(ranks));
    run_ranks(ranks, [&](const distributed::Group& group) {
        Loop<Model> loop(group, recipe);
        for (int number = 0; number < recipe.steps; ++number) loop.run(number);
        results[std::size_t(group.rank())] = loop.result();
    });
    return results;
}

// Runs the same training with gradients that travel through host memory.
template <class Model = Mlp> std::vector<Trained> train_through_host(int ranks, const Recipe& recipe) {
    setenv("MEZZO_NCCL", "off", 1);
    std::vector<Trained> results = train<Model>(ranks, recipe);
    emulation::use_nccl_stand_in(MEZZO_NCCL_STAND_IN);
    CHECK(results[0].engine == "threads");
    return results;
}

inline void check_ranks(const std::vector<Trained>& ranks) {
    for (const Trained& rank : ranks) {
        CHECK(first_difference(ranks[0].state, rank.state) == "");
        CHECK(rank.skipped == 1);
        CHECK(rank.applied == rank.steps - 1);
        CHECK(rank.scale == ranks[0].scale);
        CHECK(rank.engine == "NCCL 2.28.9");
    }
    CHECK(emulation::nccl_report().violations == "");
    CHECK(emulation::nccl_report().communicators == 0);
}

}  // namespace mezzo::test
