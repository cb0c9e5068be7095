// Data-parallel training compared between ranks, and with one process that adds the ranks' gradients.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "distributed/mean.h"
#include "mezzo/quantize.h"
#include "tests/distributed/thread_group.h"
#include "tests/distributed/training.h"

using namespace mezzo;
using namespace mezzo::test;
using distributed::Collectives;
using distributed::DataParallel;
using distributed::DataParallelOptions;
using distributed::Group;

namespace {

constexpr int steps = 20;
constexpr int overflow_step = 3;

// State of a rank after its steps.
struct Trained {
    Snapshot state;
    std::int64_t applied = 0, skipped = 0;
    double scale = 0;
};

// Makes the losses of one rank's part of the batch.
struct Mlp {
    nn::Sequential net;
    explicit Mlp(std::uint64_t seed) : net(make_mlp(seed)) {}
    Tensor loss(int part) const { return mse_loss(net(rows(part)).to(float32), rows(part + 1000)); }
};
struct Bert {
    nn::BertForSequenceClassification net;
    explicit Bert(std::uint64_t seed) : net(make_bert(seed)) {}
    Tensor loss(int part) const {
        return cross_entropy(net(token_ids(part)).to(float32),
                             Tensor::from(std::vector<std::int64_t>{0, 1, 1, 0}, {4}));
    }
};

// Plants an overflow: on rank 1 alone in one step.
Tensor planted(const Tensor& loss, int step, int rank) {
    return step == overflow_step && rank == 1 ? loss * std::numeric_limits<double>::infinity() : loss;
}

struct Loop {
    optim::AdamW optimizer;
    amp::GradScaler scaler{{.init_scale = 1024, .growth_interval = 6}};
    explicit Loop(const nn::Module& net) : optimizer(net.named_parameters(), {.lr = 0.01}) {}

    void step(const nn::Module& net, bool clip) {
        if (clip) {
            scaler.unscale_(optimizer);
            nn::clip_grad_norm_(net.parameters(), 0.5);
        }
        scaler.step(optimizer);
        scaler.update();
        optimizer.zero_grad();
    }
    Trained result(const nn::Module& net) const {
        Trained t;
        append(t.state, "", net.named_parameters());
        append(t.state, "optimizer.", optimizer.state_dict());
        append(t.state, "scaler.", scaler.state_dict());
        t.applied = optimizer.applied_steps();
        t.skipped = optimizer.skipped_steps();
        t.scale = scaler.get_scale();
        return t;
    }
};

template <class Model>
Trained train(const Group& group, const DataParallelOptions& options, bool clip = false) {
    const Model model(std::uint64_t(5 + group.rank()));  // rank 0's values are the start of all
    Loop loop(model.net);
    DataParallel parallel(model.net, group, options);
    for (int step = 0; step < steps; ++step) {
        Tensor loss;
        {
            const amp::Autocast scope({.dtype = float16});
            loss = model.loss(step * group.size() + group.rank());
        }
        loop.scaler.scale(planted(loss, step, group.rank())).backward();
        loop.step(model.net, clip);
    }
    return loop.result(model.net);
}

// One process that computes the ranks' gradients one after the other, adds them and divides by their number.
template <class Model> Trained train_alone(int ranks, bool clip = false) {
    const Model model(5);
    Loop loop(model.net);
    const Tensors parameters = model.net.parameters();
    for (int step = 0; step < steps; ++step) {
        Tensors sums;
        for (int rank = 0; rank < ranks; ++rank) {
            Tensor loss;
            {
                const amp::Autocast scope({.dtype = float16});
                loss = model.loss(step * ranks + rank);
            }
            const Tensors gradients = autograd::grad({loop.scaler.scale(planted(loss, step, rank))},
                                                     parameters, {.allow_unused = true});
            for (std::size_t i = 0; i < parameters.size(); ++i) {
                if (rank == 0)
                    sums.push_back(gradients[i].clone());
                else
                    sums[i].add_(gradients[i]);
            }
        }
        for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].set_grad(sums[i].mul_(1.0 / ranks));
        loop.step(model.net, clip);
    }
    return loop.result(model.net);
}

template <class Model>
std::vector<Trained> train_on(int ranks, const DataParallelOptions& options = {}, bool clip = false) {
    std::vector<Trained> results(static_cast<std::size_t>(ranks));
    run_ranks(ranks, [&](const Group& group) {
        results[std::size_t(group.rank())] = train<Model>(group, options, clip);
    });
    return results;
}

template <class Model> void check_equal_ranks(int ranks, const DataParallelOptions& options = {}) {
    const std::vector<Trained> results = train_on<Model>(ranks, options);
    for (const Trained& rank : results) {
        CHECK(first_difference(rank.state, results[0].state) == "");
        CHECK(rank.applied == steps - 1);
        CHECK(rank.skipped == 1);
        CHECK(rank.scale == results[0].scale);
    }
    CHECK(results[0].scale == 2048);  // 1024, halved by the overflow, doubled twice
}

const DataParallelOptions many_buckets{.first_bucket_bytes = 1, .bucket_bytes = 3000};

// Means over the ranks of values(rank), computed in float64.
template <class Values> std::vector<double> means(int ranks, std::int64_t count, const Values& values) {
    std::vector<double> result(static_cast<std::size_t>(count));
    for (int rank = 0; rank < ranks; ++rank) {
        const std::vector<double> own = doubles(values(rank));
        for (std::size_t i = 0; i < own.size(); ++i) result[i] += own[i] / ranks;
    }
    return result;
}

}  // namespace

TEST_CASE("data parallel: ranks stay equal bit for bit, over an overflow on one of them", "[distributed]") {
    for (const int ranks : {2, 3, 4}) {
        CAPTURE(ranks);
        check_equal_ranks<Mlp>(ranks);
        check_equal_ranks<Mlp>(ranks, many_buckets);
    }
    for (const int ranks : {2, 3, 4})
        check_equal_ranks<Bert>(ranks, {.first_bucket_bytes = 2000, .bucket_bytes = 5000});
}

TEST_CASE("data parallel: two ranks have the bits of one process with two micro-batches", "[distributed]") {
    for (const bool clip : {false, true}) {
        CAPTURE(clip);
        CHECK(first_difference(train_on<Mlp>(2, many_buckets, clip)[1].state,
                               train_alone<Mlp>(2, clip).state) == "");
        CHECK(first_difference(train_on<Bert>(2, {}, clip)[1].state, train_alone<Bert>(2, clip).state) == "");
    }
}

TEST_CASE("data parallel: ordered sums have the bits of any number of micro-batches", "[distributed]") {
    for (const int ranks : {3, 4}) {
        CAPTURE(ranks);
        const Trained alone = train_alone<Mlp>(ranks);
        CHECK(first_difference(train_on<Mlp>(ranks, {.ordered = true})[1].state, alone.state) == "");
        const std::vector<Trained> ring = train_on<Mlp>(ranks);
        CHECK(largest_difference(ring[0].state, alone.state) <
              1e-3);  // AdamW divides by small second moments
    }
}

TEST_CASE("mean: every dtype and wire against float64", "[distributed]") {
    constexpr std::int64_t count = 12 * 64;
    for (const int ranks : {2, 3, 4})
        for (const Dtype dtype : {float32, float64, float16, bfloat16})
            for (const Dtype wire : {float32, float16, bfloat16})
                for (const bool ordered : {false, true}) {
                    CAPTURE(ranks, dtype_info(dtype).name, dtype_info(wire).name, ordered);
                    const auto values = [&](int rank) {
                        return tensor_of(random_values(count, std::uint64_t(rank), Domain::any), {count},
                                         dtype);
                    };
                    const Dtype worst = dtype == float32 ? wire : dtype;
                    const double epsilon = std::max(dtype_info(worst).epsilon, 1e-7);
                    const std::vector<double> expected = means(ranks, count, values);
                    run_ranks(ranks, [&](const Group& group) {
                        const Tensor x = values(group.rank());
                        group.impl().run([&](Collectives& engine) {
                            mean_(engine, x, {.ranks = ranks, .wire = wire, .ordered = ordered});
                        });
                        RANK_CHECK(difference(doubles(x), expected, {epsilon, epsilon * 2}) == "");
                    });
                }
}

// If the factor 1 / 3 were rounded to the wire's dtype, all means would be off by the same 0.02 % (float16)
// or 0.2 % (bfloat16).
TEST_CASE("mean: a 16-bit wire of three ranks is unbiased over a million values", "[distributed]") {
    constexpr std::int64_t count = 1000000;
    for (const Dtype wire : {float16, bfloat16}) {
        CAPTURE(dtype_info(wire).name);
        const auto values = [&](int rank) {
            manual_seed(std::uint64_t(rank + 1));
            return rand({count}) + 0.5;
        };
        const Tensor exact = (values(0).to(float64) + values(1).to(float64) + values(2).to(float64)) / 3.0;
        const Tensor own[] = {values(0), values(1), values(2)};
        run_ranks(3, [&](const Group& group) {
            const Tensor& x = own[group.rank()];
            group.impl().run([&](Collectives& engine) { mean_(engine, x, {.ranks = 3, .wire = wire}); });
        });
        const double error = mean((own[0].to(float64) - exact) / exact).item<double>();
        CHECK(std::abs(error) < 1e-5);
    }
}

TEST_CASE("data parallel: overlap, buckets and gradients in them do not change a bit", "[distributed]") {
    const Trained expected = train_on<Mlp>(2)[0];
    for (const bool overlap : {false, true})
        for (const bool in_buckets : {false, true})
            for (const std::int64_t bytes : {1, 4000, 1 << 20}) {
                CAPTURE(overlap, in_buckets, bytes);
                const std::vector<Trained> results = train_on<Mlp>(2, {.first_bucket_bytes = bytes,
                                                                       .bucket_bytes = bytes,
                                                                       .overlap = overlap,
                                                                       .gradients_in_buckets = in_buckets});
                CHECK(first_difference(results[0].state, expected.state) == "");
                CHECK(first_difference(results[1].state, expected.state) == "");
            }
}

TEST_CASE("data parallel: on every device", "[distributed]") {
    std::vector<Snapshot> first;  // of rank 0, by device
    for (const Device device : devices()) {
        CAPTURE(int(device.type()));
        std::vector<Snapshot> weights(2);
        run_ranks(2, [&](const Group& group) {
            nn::Sequential net = make_mlp(5);
            net.to(device);
            DataParallel parallel(net, group, many_buckets);
            optim::SGD optimizer(net.parameters(), {.lr = 0.1});
            for (int step = 0; step < 3; ++step) {
                const int part = 2 * step + group.rank();
                mse_loss(net(rows(part).to(device)), rows(part + 1000).to(device)).backward();
                optimizer.step();
                optimizer.zero_grad();
            }
            weights[std::size_t(group.rank())] = weights_of(net);
        });
        CHECK(first_difference(weights[0], weights[1]) == "");
        first.push_back(weights[0]);
    }
    for (const Snapshot& weights : first) CHECK(largest_difference(first[0], weights) < 1e-5);
}

TEST_CASE("data parallel: a group of one attaches nothing and has the bits of no group", "[distributed]") {
    const Group alone = distributed::init();
    REQUIRE(alone.size() == 1);
    const Trained with = train<Mlp>(alone, {});
    CHECK(first_difference(with.state, train_alone<Mlp>(1).state) == "");
    const nn::Sequential net = make_mlp(1);
    DataParallel parallel(net, alone);
    const DataParallel::Local here(parallel);
    parallel.reduce();
    parallel.broadcast_buffers();
    CHECK(parallel.buckets().empty());
    for (const Tensor& p : net.parameters()) CHECK_FALSE(p->grads().gradient.find<GradientHook>().hook);
}

TEST_CASE("data parallel: 16-bit gradients are added in float32 and rounded once", "[distributed]") {
    for (const Dtype dtype : {float16, bfloat16}) {
        CAPTURE(dtype_info(dtype).name);
        std::vector<Snapshot> reduced(3), own(3);
        run_ranks(3, [&](const Group& group) {
            nn::Sequential net = make_mlp(5);
            net.to(dtype);
            DataParallel parallel(net, group);
            const auto loss = [&] {
                return mse_loss(net(rows(group.rank()).to(dtype)).to(float32), rows(7));
            };
            Snapshot& mine = own[std::size_t(group.rank())];
            const StateDict named = net.named_parameters();
            const Tensors gradients = autograd::grad({loss()}, net.parameters());
            for (std::size_t i = 0; i < gradients.size(); ++i)
                mine.emplace_back(named[i].first, doubles(gradients[i]));
            loss().backward();
            for (const Tensor& p : net.parameters()) RANK_CHECK(p.grad().dtype() == dtype);
            reduced[std::size_t(group.rank())] = gradients_of(net);
        });
        for (std::size_t i = 0; i < own[0].size(); ++i)
            for (std::size_t k = 0; k < own[0][i].second.size(); ++k) {
                const float sum =
                    float(own[0][i].second[k]) + float(own[1][i].second[k]) + float(own[2][i].second[k]);
                const float mean = sum * float(1.0 / 3);
                own[0][i].second[k] =
                    dtype == float16 ? double(float(float16_t(mean))) : double(float(bfloat16_t(mean)));
            }
        for (const Snapshot& rank : reduced) CHECK(first_difference(rank, own[0]) == "");
    }
}

TEST_CASE("data parallel: a 16-bit wire is off by two roundings, and unbiased", "[distributed]") {
    for (const Dtype wire : {float16, bfloat16}) {
        CAPTURE(dtype_info(wire).name);
        const double epsilon = dtype_info(wire).epsilon;
        std::vector<Snapshot> exact(3), rounded(3);
        run_ranks(3, [&](const Group& group) {
            for (const Dtype used : {float32, wire}) {
                const nn::Sequential net = make_mlp(5);
                DataParallel parallel(net, group, {.wire = used});
                mse_loss(net(rows(group.rank())), rows(7)).backward();
                (used == float32 ? exact : rounded)[std::size_t(group.rank())] = gradients_of(net);
            }
        });
        CHECK(first_difference(rounded[0], rounded[2]) == "");
        CHECK(first_difference(rounded[0], exact[0]) != "");
        CHECK(largest_difference(exact[0], rounded[0]) < 2 * epsilon);
        double sum = 0, wanted = 0;
        for (std::size_t i = 0; i < exact[0].size(); ++i)
            for (std::size_t k = 0; k < exact[0][i].second.size(); ++k) {
                sum += rounded[0][i].second[k] * exact[0][i].second[k];
                wanted += exact[0][i].second[k] * exact[0][i].second[k];
            }
        CHECK(std::abs(sum / wanted - 1) <
              0.05 * epsilon);  // a 1/3 rounded to bfloat16 is off by 0.5 epsilon / 2
    }
}

TEST_CASE("data parallel: 8-bit weights are those of rank 0", "[distributed][quantize]") {
    std::vector<std::vector<double>> numbers(2);
    run_ranks(2, [&](const Group& group) {
        nn::Sequential net(make_mlp(std::uint64_t(5 + group.rank())), nn::LayerNorm(5));
        {
            const NoGrad plain;
            for (const Tensor& p : net.parameters()) p.mul_(1.0 + group.rank());
        }
        nn::quantize_weights(net);
        const DataParallel parallel(net, group);
        for (const Tensor& p : net.parameters())
            if (weight_scale(p).defined())
                for (const double x : doubles(dequantize_weight(p)))
                    numbers[std::size_t(group.rank())].push_back(x);
    });
    CHECK_FALSE(numbers[0].empty());
    CHECK((numbers[0] == numbers[1]));
}

TEST_CASE("data parallel: scales of 8-bit weights must agree", "[distributed][quantize]") {
    run_ranks(2, [&](const Group& group) {
        nn::Sequential net(nn::Linear(64, 4), nn::LayerNorm(4));
        nn::quantize_weights(net, {.group = group.rank() == 0 ? 32 : 64});
        RANK_CHECK_THROWS(DataParallel(net, group), "scale of 0.weight");
    });
}
