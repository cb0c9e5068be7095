#include "tests/distributed/graph_cases.h"

#include <catch2/catch.hpp>
#include <functional>
#include <list>
#include <optional>
#include <utility>

#include "core/tensor_impl.h"
#include "tests/distributed/thread_group.h"
#include "tests/distributed/training.h"

namespace mezzo::test {

using distributed::DataParallel;
using distributed::DataParallelOptions;
using distributed::Group;

namespace {

const DataParallelOptions smallest{.first_bucket_bytes = 1, .bucket_bytes = 1};

// Numbers of ranks. On devices each case runs once for each Timing of their work.
std::vector<int> sizes(Where where) {
    return where == Where::devices ? std::vector<int>{2, 3} : std::vector<int>{2, 3, 4};
}
Device device_of(const Group& group, Where where) {
    return where == Where::devices ? group.device() : cpu_device;
}
// Device of the reference runs, which have no group.
Device device_alone(Where where) {
    return where == Where::devices ? Device(DeviceType::cuda, 0) : cpu_device;
}

nn::Sequential mlp_on(Device device) {
    nn::Sequential net = make_mlp(5);
    net.to(device);
    return net;
}

// Rows on the device of the net.
Tensor rows_for(const nn::Module& net, int seed, std::int64_t count = 8) {
    return rows(seed, count).to(net.parameters()[0].device());
}

// Checks that the gradients have travelled by the engine that the case is for.
void check_engine(const Group& group, Where where) {
    RANK_CHECK((group.engine().rfind("NCCL ", 0) == 0) == (where == Where::devices));
}

// Replaces the gradients of nets, one net for each rank, by their means: sums in float32 in the order of the
// ranks. A missing gradient counts as 0 if another rank has one.
template <class Net> void average(const std::vector<Net>& nets) {
    for (std::size_t i = 0; i < nets[0].parameters().size(); ++i) {
        Tensor sum;
        for (const Net& net : nets)
            if (const Tensor own = net.parameters()[i].grad(); own.defined())
                sum = sum.defined() ? sum.add_(own) : own.clone();
        if (!sum.defined()) continue;
        sum.mul_(1.0 / double(nets.size()));
        for (const Net& net : nets) net.parameters()[i].set_grad(sum.clone());
    }
}

using Pass = std::function<void(const nn::Sequential& net, int rank)>;

// Gradients of one process that runs the ranks' passes itself, one after the other, and averages after each.
Snapshot mean_alone(Where where, int ranks, const std::vector<Pass>& passes) {
    std::vector<nn::Sequential> nets;
    for (int rank = 0; rank < ranks; ++rank) nets.push_back(mlp_on(device_alone(where)));
    for (const Pass& pass : passes) {
        for (int rank = 0; rank < ranks; ++rank) pass(nets[std::size_t(rank)], rank);
        average(nets);
    }
    return gradients_of(nets[0]);
}

// Loss of one micro-batch of a rank.
Tensor mlp_loss(const nn::Sequential& net, int rank, int batch = 0) {
    const int part = rank + 10 * batch;
    return mse_loss(net(rows_for(net, part)), rows_for(net, part + 100));
}

// Requires the same bits of two ranks; with more ranks the sum may have another order.
void check_close(int ranks, const Snapshot& expected, const Snapshot& found) {
    if (ranks == 2)
        CHECK(first_difference(expected, found) == "");
    else
        CHECK(largest_difference(expected, found) < 1e-6);
}

// Runs body(net, parallel, rank) on several numbers of ranks. All ranks must end with the gradients of one
// process that runs `alone`.
template <class Body> void check_gradients(Where where, const std::vector<Pass>& alone,
                                           const DataParallelOptions& options, const Body& body) {
    for (const int ranks : sizes(where)) {
        CAPTURE(ranks);
        std::vector<Snapshot> results(static_cast<std::size_t>(ranks));
        run_ranks(ranks, [&](const Group& group) {
            const nn::Sequential net = mlp_on(device_of(group, where));
            DataParallel parallel(net, group, options);
            body(net, parallel, group.rank());
            results[std::size_t(group.rank())] = gradients_of(net);
            check_engine(group, where);
        });
        check_close(ranks, mean_alone(where, ranks, alone), results[0]);
        for (const Snapshot& rank : results) CHECK(first_difference(results[0], rank) == "");
    }
}

// Two heads on one body. Each rank chooses which heads it uses.
struct Heads : nn::Module {
    nn::Linear body{net_width, 16}, first{16, 4}, second{16, 4}, idle{16, 4};
    MEZZO_MODULE(Heads, body, first, second, idle)
};
Heads heads_on(Device device) {
    Heads net = seeded(3, [] { return Heads(); });
    net.to(device);
    return net;
}
// Rank 0 does not use the second head; no rank uses the idle one.
Tensor heads_loss(const Heads& net, int rank) {
    const Tensor h = net.body(rows_for(net, rank));
    return rank == 0 ? sum(net.first(h)) : sum(net.first(h)) + sum(net.second(h));
}
const optim::AdamWOptions heads_options{.lr = 0.1, .weight_decay = 0.5};
constexpr int heads_steps = 3;

// Gradients of the first step, and weights after the last one, of one process with the ranks' batches.
std::pair<Snapshot, Snapshot> train_heads_alone(Where where, int ranks) {
    std::vector<Heads> nets;
    std::list<optim::AdamW> optimizers;  // which cannot be moved
    for (int rank = 0; rank < ranks; ++rank) {
        nets.push_back(heads_on(device_alone(where)));
        optimizers.emplace_back(nets.back().named_parameters(), heads_options);
    }
    Snapshot first;
    for (int step = 0; step < heads_steps; ++step) {
        for (int rank = 0; rank < ranks; ++rank) heads_loss(nets[std::size_t(rank)], rank).backward();
        average(nets);
        if (step == 0) first = gradients_of(nets[0]);
        for (optim::AdamW& optimizer : optimizers) {
            optimizer.step();
            optimizer.zero_grad();
        }
    }
    return {first, weights_of(nets[0])};
}

void accumulation(Where where) {
    const Pass alone = [](const nn::Sequential& net, int rank) {
        for (int i = 0; i < 3; ++i) mlp_loss(net, rank, i).backward();
    };
    for (const bool in_buckets : {false, true})
        for (const bool update : {false, true}) {
            CAPTURE(in_buckets, update);
            const DataParallelOptions options{.bucket_bytes = 4000, .gradients_in_buckets = in_buckets};
            check_gradients(where, {alone}, options,
                            [&](const nn::Sequential& net, DataParallel& parallel, int rank) {
                                for (int round = 0; round < 2; ++round) {  // the second finds the layout made
                                    net.parameters()[0]->grads();
                                    for (const Tensor& p : net.parameters()) p.set_grad({});
                                    for (int i = 0; i < (update ? 3 : 2); ++i) {
                                        const DataParallel::Local here(parallel);
                                        mlp_loss(net, rank, i).backward();
                                    }
                                    if (!update) {
                                        mlp_loss(net, rank, 2).backward();  // reduces the sum of all three
                                        continue;
                                    }
                                    // Reading a gradient gives the local one; an update reads reduced
                                    // gradients.
                                    const nn::Sequential own = mlp_on(device_of(parallel.group(), where));
                                    alone(own, rank);
                                    RANK_CHECK(first_difference(gradients_of(own), gradients_of(net)) == "");
                                    nn::clip_grad_norm_(net.parameters(), 1e9);
                                }
                            });
        }
}

void left_over(Where where) {
    for (const int ranks : sizes(where)) {
        CAPTURE(ranks);
        std::vector<nn::Sequential> nets;
        for (int rank = 0; rank < ranks; ++rank) nets.push_back(mlp_on(device_alone(where)));
        for (int step = 0; step < 3; ++step) {
            for (int rank = 0; rank < ranks; ++rank) mlp_loss(nets[std::size_t(rank)], rank, step).backward();
            average(nets);
            for (const nn::Sequential& net : nets) {
                optim::SGD optimizer(net.parameters(), {.lr = 0.5});
                optimizer.step();
                optimizer.zero_grad();
            }
        }
        const Snapshot expected = weights_of(nets[0]);
        for (const bool scaled : {false, true}) {
            CAPTURE(scaled);
            std::vector<Snapshot> weights(static_cast<std::size_t>(ranks));
            run_ranks(ranks, [&](const Group& group) {
                const nn::Sequential net = mlp_on(device_of(group, where));
                DataParallel parallel(net, group);
                optim::SGD optimizer(net.parameters(), {.lr = 0.5});
                amp::GradScaler scaler({.init_scale = 8, .enabled = scaled});
                for (int step = 0; step < 3; ++step) {
                    {
                        const DataParallel::Local here(parallel);
                        scaler.scale(mlp_loss(net, group.rank(), step)).backward();
                    }
                    if (step == 1) scaler.unscale_(optimizer);
                    scaler.step(optimizer);
                    scaler.update();
                    optimizer.zero_grad(step % 2 == 0);
                }
                weights[std::size_t(group.rank())] = weights_of(net);
                check_engine(group, where);
            });
            check_close(ranks, expected, weights[0]);  // a scale of 8 changes no bit
            for (const Snapshot& rank : weights) CHECK(first_difference(weights[0], rank) == "");
        }
    }
}

void two_losses(Where where) {
    const auto backward_of = [](int batch) -> Pass {
        return [batch](const nn::Sequential& net, int rank) { mlp_loss(net, rank, batch).backward(); };
    };
    check_gradients(where, {backward_of(0), backward_of(1)}, smallest,
                    [](const nn::Sequential& net, DataParallel&, int rank) {
                        mlp_loss(net, rank).backward();
                        mlp_loss(net, rank, 1).backward();
                    });
    const Pass both = [](const nn::Sequential& net, int rank) {
        autograd::backward({mlp_loss(net, rank), mlp_loss(net, rank, 1)});
    };
    check_gradients(where, {both}, smallest,
                    [&](const nn::Sequential& net, DataParallel&, int rank) { both(net, rank); });
}

void set_by_hand(Where where) {
    const Pass alone = [](const nn::Sequential& net, int rank) { mlp_loss(net, rank).backward(); };
    check_gradients(where, {alone}, {}, [](const nn::Sequential& net, DataParallel& parallel, int rank) {
        const Tensors gradients = autograd::grad({mlp_loss(net, rank)}, net.parameters());
        for (std::size_t i = 0; i < gradients.size(); ++i) net.parameters()[i].set_grad(gradients[i]);
        parallel.reduce();
    });
}

void unused(Where where) {
    for (const int ranks : sizes(where)) {
        const auto [expected, trained] = train_heads_alone(where, ranks);
        for (const bool in_buckets : {false, true})
            for (const std::int64_t bytes : {1, 1 << 20}) {
                CAPTURE(ranks, in_buckets, bytes);
                std::vector<Snapshot> gradients(static_cast<std::size_t>(ranks)), weights = gradients;
                run_ranks(ranks, [&](const Group& group) {
                    const std::size_t rank = std::size_t(group.rank());
                    const Heads net = heads_on(device_of(group, where));
                    DataParallel parallel(net, group,
                                          {.first_bucket_bytes = bytes,
                                           .bucket_bytes = bytes,
                                           .gradients_in_buckets = in_buckets});
                    optim::AdamW optimizer(net.named_parameters(), heads_options);
                    for (int step = 0; step < heads_steps; ++step) {
                        optimizer.zero_grad();
                        heads_loss(net, group.rank()).backward();
                        if (step == 0) gradients[rank] = gradients_of(net);
                        RANK_CHECK(!net.idle.weight.grad().defined());
                        optimizer.step();
                    }
                    weights[rank] = weights_of(net);
                    check_engine(group, where);
                    // AdamW has not decayed a parameter that has no gradient.
                    RANK_CHECK(doubles(heads_on(cpu_device).idle.weight) == doubles(net.idle.weight));
                });
                check_close(ranks, expected, gradients[0]);
                if (ranks == 2) CHECK(first_difference(trained, weights[0]) == "");
                for (const Snapshot& rank : gradients) CHECK(first_difference(gradients[0], rank) == "");
                for (const Snapshot& rank : weights) CHECK(first_difference(weights[0], rank) == "");
            }
    }
}

void unused_refused(Where where) {
    for (const int ranks : sizes(where))
        for (const bool local : {false, true}) {  // reduced by backward, or by clipping
            CAPTURE(ranks, local);
            const auto errors = errors_of_ranks(ranks, [&](const Group& group) {
                Heads net = heads_on(device_of(group, where));
                DataParallel parallel(net, group, {.unused = distributed::Unused::fail});
                for (const bool whole : {true, false}) {
                    net.zero_grad();
                    std::optional<DataParallel::Local> here;
                    if (local) here.emplace(parallel);
                    const auto h = [&] { return net.body(rows_for(net, group.rank())); };
                    if (local)
                        sum(net.first(h())).backward();  // one pass of several may leave parameters out
                    const Tensor first = sum(net.first(h()));
                    (whole || group.rank() != 0 ? first + sum(net.second(h())) + sum(net.idle(h())) : first)
                        .backward();
                    here.reset();
                    nn::clip_grad_norm_(net.parameters(), 1);
                }
            });
            CHECK_THAT(text_of(errors[0]), Catch::Contains("does not depend on parameter second.weight"));
            for (int rank = 1; rank < ranks; ++rank)
                CHECK_THAT(text_of(errors[std::size_t(rank)]), Catch::Contains("given up"));
        }
}

void shared(Where where) {
    const auto twice = [](const nn::Sequential& net, int rank) {
        return mse_loss(net(net(rows_for(net, rank))),
                        rows_for(net, rank + 100));  // each weight gets two parts
    };
    const Pass shared = [&](const nn::Sequential& net, int rank) { twice(net, rank).backward(); };
    check_gradients(where, {shared}, smallest,
                    [&](const nn::Sequential& net, DataParallel&, int rank) { shared(net, rank); });
    const Pass hooked = [&](const nn::Sequential& net, int rank) {
        autograd::add_hook(net.parameters()[4], [](const Tensor& g) { return g * 3.0; });
        twice(net, rank).backward();
    };
    check_gradients(where, {hooked}, smallest,
                    [&](const nn::Sequential& net, DataParallel&, int rank) { hooked(net, rank); });
}

void frozen(Where where) {
    const auto pass = [](bool frozen) -> Pass {
        return [frozen](const nn::Sequential& net, int rank) {
            net.parameters()[0].set_requires_grad(!frozen);
            mlp_loss(net, rank, frozen ? 0 : 1).backward();
        };
    };
    check_gradients(where, {pass(true), pass(false)}, {},
                    [&](const nn::Sequential& net, DataParallel& parallel, int rank) {
                        const std::size_t all = net.parameters().size();
                        pass(true)(net, rank);
                        RANK_CHECK(parallel.buckets().size() == 1);
                        RANK_CHECK(parallel.buckets()[0].size() == all - 1);
                        pass(false)(net, rank);
                        RANK_CHECK(parallel.buckets()[0].size() == all);
                    });
}

void checkpointed(Where where) {
    const auto deep = [](const nn::Sequential& net, int rank, bool checkpointed) {
        const auto segment = [&net](const Tensors& x) { return Tensors{net(x[0])}; };
        Tensor x = rows_for(net, rank);
        for (int i = 0; i < 2; ++i)
            x = checkpointed ? autograd::checkpoint(segment, {x})[0] : segment({x})[0];
        return mse_loss(x, rows_for(net, rank + 100));
    };
    const auto passes = [&](bool checkpointed) {
        std::vector<Pass> all;
        for (int i = 0; i < 3; ++i)
            all.push_back([&deep, i, checkpointed](const nn::Sequential& net, int rank) {
                deep(net, rank + 10 * i, checkpointed).backward();
            });
        return all;
    };
    const std::vector<Pass> checkpointed = passes(true);
    CHECK(largest_difference(mean_alone(where, 2, passes(false)), mean_alone(where, 2, checkpointed)) < 1e-6);
    for (const bool overlap : {false, true}) {
        DataParallelOptions options = smallest;
        options.overlap = overlap;
        check_gradients(where, checkpointed, options,
                        [&](const nn::Sequential& net, DataParallel&, int rank) {
                            for (const Pass& pass : checkpointed) pass(net, rank);
                        });
    }
}

void late_delivery(Where where) {
    const auto train = [where](const Group& group, bool overlap) {
        Heads net = heads_on(device_of(group, where));
        DataParallel parallel(net, group, {.first_bucket_bytes = 1, .bucket_bytes = 1, .overlap = overlap});
        for (int step = 0; step < 2; ++step) {
            bool use[2] = {step == 0, step != 0};
            Tensor x = net.body(rows_for(net, group.rank()));
            for (int i = 1; i >= 0; --i) {  // backward runs segment 0 first
                const auto segment = [&net, used = use[i]](const Tensors& in) {
                    return Tensors{used ? in[0] + sum(net.first(in[0])) : in[0] * 2.0};
                };
                x = autograd::checkpoint(segment, {x})[0];
            }
            sum(x).backward();
        }
        nn::clip_grad_norm_(net.parameters(), 1);
        check_engine(group, where);
    };
    for (const std::string& text :
         {text_of(errors_of_ranks(2, [&](const Group& group) { train(group, true); })[0])}) {
        CHECK_THAT(text, Catch::Contains("first.") && Catch::Contains("after its bucket has left") &&
                             Catch::Contains("overlap = false"));
    }
    run_ranks(2, [&](const Group& group) { train(group, false); });
}

void empty_batch(Where where) {
    const auto loss = [](const nn::Sequential& net, std::int64_t count) {
        const Tensor error = net(rows_for(net, 3, count)) - rows_for(net, 4, count);
        return sum(error * error) * (1.0 / double(std::max<std::int64_t>(1, count) * net_width));
    };
    const Pass whole = [&](const nn::Sequential& net, int) { loss(net, 8).backward(); };
    check_gradients(where, {whole}, {}, [&](const nn::Sequential& net, DataParallel& parallel, int rank) {
        const std::int64_t count = rank == 0 ? 8 : 0;
        // The weight is on the group's device, also where the model is on the CPU.
        const Tensor weight = parallel.group().weight(count);
        (loss(net, count) * weight.to(device_of(parallel.group(), where))).backward();
    });
}

}  // namespace

const std::vector<GraphCase>& graph_cases() {
    static const std::vector<GraphCase> all{
        {"accumulation reduces once, before the update", accumulation},
        {"step and unscale_ reduce what is left", left_over},
        {"two losses, one after the other or in one backward", two_losses},
        {"gradients that were set by hand are reduced on demand", set_by_hand},
        {"parameters that some ranks or all leave unused", unused},
        {"unused parameters are refused on demand, on all ranks", unused_refused},
        {"shared parameters and parameters with hooks", shared},
        {"frozen parameters travel in no bucket, until they are trained", frozen},
        {"checkpointed segments", checkpointed},
        {"a delivery after the bucket has left has a name", late_delivery},
        {"an empty batch counts with weight 0", empty_batch},
    };
    return all;
}

}  // namespace mezzo::test
