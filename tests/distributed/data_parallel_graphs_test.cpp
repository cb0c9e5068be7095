// Data-parallel training over graphs of all kinds: accumulation, several losses, unused, shared and frozen parameters, checkpointed segments.
#include <catch2/catch.hpp>

#include "core/tensor_impl.h"
#include "tests/distributed/thread_group.h"
#include "tests/distributed/training.h"

using namespace mezzo;
using namespace mezzo::test;
using distributed::DataParallel;
using distributed::DataParallelOptions;
using distributed::Group;

namespace {

const DataParallelOptions smallest{.first_bucket_bytes = 1, .bucket_bytes = 1};

// The mean over the ranks of what loss(net, rank) leaves in the gradients of a net.
template <class Loss> Snapshot mean_alone(int ranks, const Loss& loss) {
    Snapshot mean;
    for (int rank = 0; rank < ranks; ++rank) {
        const nn::Sequential net = make_mlp(5);
        loss(net, rank);
        const Snapshot own = gradients_of(net);
        if (rank == 0) mean = own;
        for (std::size_t i = 0; i < own.size(); ++i)
            for (std::size_t k = 0; k < own[i].second.size(); ++k)
                mean[i].second[k] =
                    rank == 0 ? own[i].second[k] / ranks : mean[i].second[k] + own[i].second[k] / ranks;
    }
    return mean;
}

Tensor mlp_loss(const nn::Sequential& net, int part) { return mse_loss(net(rows(part)), rows(part + 100)); }

// Runs body(net, parallel, rank), after which all ranks must have the gradients `expected`.
template <class Body>
void check_gradients(const Snapshot& expected, const DataParallelOptions& options, const Body& body) {
    std::vector<Snapshot> results(2);
    run_ranks(2, [&](const Group& group) {
        const nn::Sequential net = make_mlp(5);
        DataParallel parallel(net, group, options);
        body(net, parallel, group.rank());
        results[std::size_t(group.rank())] = gradients_of(net);
    });
    CHECK(largest_difference(expected, results[0]) < 1e-6);
    CHECK(first_difference(results[0], results[1]) == "");
}

// Two heads on one body. Which of them a rank uses is its own choice.
struct Heads : nn::Module {
    nn::Linear body{net_width, 16}, first{16, 4}, second{16, 4}, idle{16, 4};
    MEZZO_MODULE(Heads, body, first, second, idle)
};
Heads make_heads() {
    return seeded(3, [] { return Heads(); });
}

}  // namespace

TEST_CASE("data parallel graphs: accumulation reduces once, before the update", "[distributed]") {
    const Snapshot expected = mean_alone(2, [](const nn::Sequential& net, int rank) {
        for (int i = 0; i < 3; ++i) mlp_loss(net, rank + 2 * i).backward();
    });
    for (const bool homes : {false, true})
        for (const bool update : {false, true}) {
            CAPTURE(homes, update);
            const DataParallelOptions options{.bucket_bytes = 4000, .gradients_in_buckets = homes};
            check_gradients(
                expected, options, [&](const nn::Sequential& net, DataParallel& parallel, int rank) {
                    for (int round = 0; round < 2; ++round) {  // the second finds the layout made
                        net.parameters()[0]->grads();
                        for (const Tensor& p : net.parameters()) p.set_grad({});
                        for (int i = 0; i < (update ? 3 : 2); ++i) {
                            const DataParallel::Local here(parallel);
                            mlp_loss(net, rank + 2 * i).backward();
                        }
                        if (!update) {
                            mlp_loss(net, rank + 4).backward();  // reduces the sum of all three
                            continue;
                        }
                        // A look is local; what an update reads is reduced.
                        const nn::Sequential own = make_mlp(5);
                        for (int i = 0; i < 3; ++i) mlp_loss(own, rank + 2 * i).backward();
                        RANK_CHECK(largest_difference(gradients_of(own), gradients_of(net)) < 1e-6);
                        nn::clip_grad_norm_(net.parameters(), 1e9);
                    }
                });
        }
}

TEST_CASE("data parallel graphs: step and unscale_ reduce what is left", "[distributed]") {
    std::vector<Snapshot> weights(4);
    for (const bool scaled : {false, true})
        run_ranks(2, [&](const Group& group) {
            const nn::Sequential net = make_mlp(5);
            DataParallel parallel(net, group);
            optim::SGD optimizer(net.parameters(), {.lr = 0.5});
            amp::GradScaler scaler({.init_scale = 8, .enabled = scaled});
            for (int step = 0; step < 3; ++step) {
                {
                    const DataParallel::Local here(parallel);
                    scaler.scale(mlp_loss(net, group.rank() + 2 * step)).backward();
                }
                if (step == 1) scaler.unscale_(optimizer);
                scaler.step(optimizer);
                scaler.update();
                optimizer.zero_grad(step % 2 == 0);
            }
            weights[std::size_t(2 * scaled + group.rank())] = weights_of(net);
        });
    CHECK(first_difference(weights[0], weights[1]) == "");
    CHECK(first_difference(weights[2], weights[3]) == "");
    CHECK(largest_difference(weights[0], weights[2]) < 1e-6);
    const nn::Sequential net = make_mlp(5);
    optim::SGD optimizer(net.parameters(), {.lr = 0.5});
    for (int step = 0; step < 3; ++step) {
        for (int rank = 0; rank < 2; ++rank) (mlp_loss(net, rank + 2 * step) * 0.5).backward();
        optimizer.step();
        optimizer.zero_grad();
    }
    CHECK(largest_difference(weights_of(net), weights[0]) < 1e-6);
}

TEST_CASE("data parallel graphs: two losses, one after the other or in one backward", "[distributed]") {
    const Snapshot expected = mean_alone(2, [](const nn::Sequential& net, int rank) {
        mlp_loss(net, rank).backward();
        mlp_loss(net, rank + 2).backward();
    });
    check_gradients(expected, smallest, [](const nn::Sequential& net, DataParallel&, int rank) {
        mlp_loss(net, rank).backward();
        mlp_loss(net, rank + 2).backward();
    });
    check_gradients(expected, smallest, [](const nn::Sequential& net, DataParallel&, int rank) {
        autograd::backward({mlp_loss(net, rank), mlp_loss(net, rank + 2)});
    });
}

TEST_CASE("data parallel graphs: gradients that were set by hand are reduced on demand", "[distributed]") {
    const Snapshot expected =
        mean_alone(2, [](const nn::Sequential& net, int rank) { mlp_loss(net, rank).backward(); });
    check_gradients(expected, {}, [](const nn::Sequential& net, DataParallel& parallel, int rank) {
        const Tensors gradients = autograd::grad({mlp_loss(net, rank)}, net.parameters());
        for (std::size_t i = 0; i < gradients.size(); ++i) net.parameters()[i].set_grad(gradients[i]);
        parallel.reduce();
    });
}

TEST_CASE("data parallel graphs: parameters that some ranks or all leave unused", "[distributed]") {
    for (const bool homes : {false, true})
        for (const std::int64_t bytes : {1, 1 << 20}) {
            CAPTURE(homes, bytes);
            std::vector<Snapshot> gradients(2), weights(2), second(2);
            run_ranks(2, [&](const Group& group) {
                const std::size_t rank = std::size_t(group.rank());
                Heads net = make_heads();
                DataParallel parallel(
                    net, group,
                    {.first_bucket_bytes = bytes, .bucket_bytes = bytes, .gradients_in_buckets = homes});
                optim::AdamW optimizer(net.named_parameters(), {.lr = 0.1, .weight_decay = 0.5});
                for (int step = 0; step < 3; ++step) {
                    optimizer.zero_grad();
                    const Tensor h = net.body(rows(group.rank()));
                    (group.rank() == 0 ? sum(net.first(h)) : sum(net.first(h)) + sum(net.second(h)))
                        .backward();
                    if (step == 0) {
                        second[rank].emplace_back("own",
                                                  doubles(autograd::grad({sum(net.second(net.body(rows(1))))},
                                                                         {net.second.weight})[0]));
                        second[rank].emplace_back("reduced", doubles(net.second.weight.grad()));
                    }
                    RANK_CHECK(!net.idle.weight.grad().defined());
                    optimizer.step();
                }
                gradients[rank] = gradients_of(net);
                weights[rank] = weights_of(net);
                // AdamW has not decayed what has no gradient.
                const Heads fresh = make_heads();
                RANK_CHECK(doubles(fresh.idle.weight) == doubles(net.idle.weight));
            });
            CHECK(first_difference(gradients[0], gradients[1]) == "");
            CHECK(first_difference(weights[0], weights[1]) == "");
            for (const Snapshot& rank : second)
                for (std::size_t k = 0; k < rank[0].second.size(); ++k)
                    CHECK(rank[1].second[k] == Approx(rank[0].second[k] / 2).epsilon(1e-6));
        }
}

TEST_CASE("data parallel graphs: unused parameters are refused on demand, on all ranks", "[distributed]") {
    for (const bool local : {false, true}) {  // reduced by backward, or by clipping
        const auto errors = errors_of_ranks(2, [&](const Group& group) {
            Heads net = make_heads();
            DataParallel parallel(net, group, {.unused = distributed::Unused::fail});
            for (const bool whole : {true, false}) {
                net.zero_grad();
                std::optional<DataParallel::Local> here;
                if (local) here.emplace(parallel);
                const auto h = [&] { return net.body(rows(group.rank())); };
                if (local) sum(net.first(h())).backward();  // one pass of several may leave parameters out
                const Tensor first = sum(net.first(h()));
                (whole || group.rank() == 1 ? first + sum(net.second(h())) + sum(net.idle(h())) : first)
                    .backward();
                here.reset();
                nn::clip_grad_norm_(net.parameters(), 1);
            }
        });
        CHECK_THAT(text_of(errors[0]), Catch::Contains("does not depend on parameter second.weight"));
        CHECK_THAT(text_of(errors[1]), Catch::Contains("given up"));
    }
}

TEST_CASE("data parallel graphs: shared parameters and parameters with hooks", "[distributed]") {
    const auto twice = [](const nn::Sequential& net, int rank) {
        return mse_loss(net(net(rows(rank))), rows(rank + 100));  // each weight gets two parts
    };
    const Snapshot expected =
        mean_alone(2, [&](const nn::Sequential& net, int rank) { twice(net, rank).backward(); });
    check_gradients(expected, smallest,
                    [&](const nn::Sequential& net, DataParallel&, int rank) { twice(net, rank).backward(); });
    const auto hooked = [&](const nn::Sequential& net, int rank) {
        autograd::add_hook(net.parameters()[4], [](const Tensor& g) { return g * 3.0; });
        twice(net, rank).backward();
    };
    check_gradients(mean_alone(2, hooked), smallest,
                    [&](const nn::Sequential& net, DataParallel&, int rank) { hooked(net, rank); });
}

TEST_CASE("data parallel graphs: frozen parameters travel in no bucket, until they are trained",
          "[distributed]") {
    const auto frozen = [](const nn::Sequential& net, int rank) {
        const Tensors p = net.parameters();
        p[0].set_requires_grad(false);
        mlp_loss(net, rank).backward();
        p[0].set_requires_grad();
        mlp_loss(net, rank + 2).backward();
    };
    check_gradients(mean_alone(2, frozen), {},
                    [&](const nn::Sequential& net, DataParallel& parallel, int rank) {
                        const Tensors p = net.parameters();
                        p[0].set_requires_grad(false);
                        mlp_loss(net, rank).backward();
                        RANK_CHECK(parallel.buckets().size() == 1);
                        RANK_CHECK(parallel.buckets()[0].size() == p.size() - 1);
                        p[0].set_requires_grad();
                        mlp_loss(net, rank + 2).backward();
                        RANK_CHECK(parallel.buckets()[0].size() == p.size());
                    });
}

TEST_CASE("data parallel graphs: checkpointed segments", "[distributed]") {
    const auto deep = [](const nn::Sequential& net, int rank, bool checkpointed) {
        const auto segment = [&net](const Tensors& x) { return Tensors{net(x[0])}; };
        Tensor x = rows(rank);
        for (int i = 0; i < 2; ++i)
            x = checkpointed ? autograd::checkpoint(segment, {x})[0] : segment({x})[0];
        return mse_loss(x, rows(rank + 100));
    };
    const Snapshot expected = mean_alone(2, [&](const nn::Sequential& net, int rank) {
        for (int i = 0; i < 3; ++i) deep(net, rank + 2 * i, false).backward();
    });
    for (const bool overlap : {false, true}) {
        DataParallelOptions options = smallest;
        options.overlap = overlap;
        check_gradients(expected, options, [&](const nn::Sequential& net, DataParallel&, int rank) {
            for (int i = 0; i < 3; ++i) deep(net, rank + 2 * i, true).backward();
        });
    }
}

TEST_CASE("data parallel graphs: a delivery after the bucket has left has a name", "[distributed]") {
    const auto train = [](const Group& group, bool overlap) {
        Heads net = make_heads();
        DataParallel parallel(net, group, {.first_bucket_bytes = 1, .bucket_bytes = 1, .overlap = overlap});
        for (int step = 0; step < 2; ++step) {
            bool use[2] = {step == 0, step != 0};
            Tensor x = net.body(rows(group.rank()));
            for (int i = 1; i >= 0; --i) {  // backward runs segment 0 first
                const auto segment = [&net, used = use[i]](const Tensors& in) {
                    return Tensors{used ? in[0] + sum(net.first(in[0])) : in[0] * 2.0};
                };
                x = autograd::checkpoint(segment, {x})[0];
            }
            sum(x).backward();
        }
        nn::clip_grad_norm_(net.parameters(), 1);
    };
    for (const std::string& text :
         {text_of(errors_of_ranks(2, [&](const Group& group) { train(group, true); })[0])}) {
        CHECK_THAT(text, Catch::Contains("first.") && Catch::Contains("after its bucket has left") &&
                             Catch::Contains("overlap = false"));
    }
    run_ranks(2, [&](const Group& group) { train(group, false); });
}

TEST_CASE("data parallel graphs: an empty batch counts with weight 0", "[distributed]") {
    const auto loss = [](const nn::Sequential& net, std::int64_t count) {
        const Tensor error = net(rows(3, count)) - rows(4, count);
        return sum(error * error) * (1.0 / double(std::max<std::int64_t>(1, count) * net_width));
    };
    const nn::Sequential whole = make_mlp(5);
    loss(whole, 8).backward();
    check_gradients(gradients_of(whole), {},
                    [&](const nn::Sequential& net, DataParallel& parallel, int rank) {
                        const std::int64_t count = rank == 0 ? 8 : 0;
                        // The weight is on the group's device, the model here on the CPU.
                        (loss(net, count) * parallel.group().weight(count).to(cpu_device)).backward();
                    });
}
