// Sharded optimizers compared with optimizers that are not, bit for bit.
#include "mezzo/optim_in_ops.h"
#include "tests/distributed/sharded_training.h"

using namespace mezzo;
using namespace mezzo::test;
using distributed::DataParallel;
using distributed::Group;
using distributed::shard;

namespace {

void check_same(const ShardedWay& way, int ranks) {
    CAPTURE(way.name, ranks);
    const Snapshot plain = train_sharded(way, ranks, false)[0];
    CHECK(plain.back().second[0] == (way.scaled ? 1 : 0));
    for (const Snapshot& rank : train_sharded(way, ranks, true)) CHECK(first_difference(rank, plain) == "");
}

}  // namespace

TEST_CASE("sharding: the bits of the optimizer that is not sharded", "[distributed]") {
    for (const int ranks : {2, 3, 4}) {
        check_same({.name = "SGD", .make = momentum}, ranks);
        check_same({.name = "Adam", .make = adam}, ranks);
        check_same({.name = "AdamW, clipped", .make = adamw, .clip = true}, ranks);
        check_same({.name = "groups", .make = grouped()}, ranks);
    }
}

TEST_CASE("sharding: mixed precision, with an overflow in one element", "[distributed]") {
    for (const int ranks : {2, 3, 4})
        for (const ShardedWay& way : mixed_precision_ways()) check_same(way, ranks);
}

TEST_CASE("sharding: every optimizer", "[distributed]") {
    using namespace optim;
    check_same({.name = "amsgrad", .make = maker<Adam>(AdamOptions{.lr = 0.01, .amsgrad = true})}, 3);
    check_same({.name = "RMSprop", .make = maker<RMSprop>(RMSpropOptions{.momentum = 0.5, .centered = true})},
               3);
    check_same({.name = "Adagrad", .make = maker<Adagrad>(AdagradOptions{.initial_accumulator_value = 0.1})},
               3);
    check_same({.name = "NAdam", .make = maker<NAdam>(NAdamOptions{})}, 3);
    check_same({.name = "Lion", .make = maker<Lion>(LionOptions{.lr = 0.01, .weight_decay = 0.1})}, 3);
}

TEST_CASE("sharding: on every device", "[distributed]") {
    const ShardedWay way{.name = "AdamW", .make = adamw};
    for (const Device device : devices()) {
        CAPTURE(int(device.type()));
        const auto on_this = [device](const Group&) { return device; };
        const Snapshot plain = train_sharded(way, 3, false, on_this)[0];
        for (const Snapshot& rank : train_sharded(way, 3, true, on_this))
            CHECK(first_difference(rank, plain) == "");
    }
}

TEST_CASE("sharding: accumulation, frozen and unreached parameters, and gradients that lie elsewhere",
          "[distributed]") {
    const auto train = [](bool sharded) {
        std::vector<Snapshot> results(3);
        run_ranks(3, [&](const Group& group) {
            nn::Sequential net = make_net(5), unused = make_net(6);
            nn::Sequential both{net, unused};
            net.parameters()[1].set_requires_grad(false);
            optim::AdamW optimizer(both.named_parameters(), {.lr = 0.01});
            DataParallel parallel(both, group);
            const auto loss = [&](int part) { return mse_loss(net(rows(part)), rows(part + 1000)); };
            for (int step = 0; step < 4; ++step) {
                const int part = 10 * step + group.rank();
                if (step == 2 && sharded) shard(optimizer, parallel);  // what it has already is divided
                for (int i = 0; i < 2; ++i) {
                    const DataParallel::Local here(parallel);
                    loss(part + 3 * i).backward();
                }
                if (step == 3) {
                    for (const Tensor& p : net.parameters())
                        if (p.grad().defined()) p.set_grad(p.grad() * 2.0);
                    parallel.reduce();
                }
                optimizer.step();
                optimizer.zero_grad();
            }
            Snapshot& state = results[std::size_t(group.rank())] = weights_of(both);
            append(state, "optimizer.", optimizer.state_dict());
        });
        return results;
    };
    const Snapshot plain = train(false)[0];
    for (const Snapshot& rank : train(true)) CHECK(first_difference(rank, plain) == "");
}

TEST_CASE("sharding: a state that two ranks have saved goes on with any number of ranks", "[distributed]") {
    for (const ShardedWay& way :
         {ShardedWay{.name = "O1", .make = adamw, .autocast = true, .scaled = true},
          ShardedWay{.name = "O2", .make = momentum, .dtype = float16, .scaled = true, .masters = true},
          ShardedWay{.name = "split masters, moments in 8 bits",
          .make = narrow(optim::StatePrecision::eight_bit),
          .dtype = bfloat16,
          .scaled = true,
          .masters = true,
          .storage = optim::MasterWeights::split}}) {
        CAPTURE(way.name);
        StateDict weights, optimizer, scaler;
        run_ranks(2, [&](const Group& group) {
            ShardedTraining training(way, group.rank());
            DataParallel parallel(training.net, group);
            shard(*training.optimizer, parallel);
            for (int step = 0; step < sharded_steps; ++step) training.step(step, group);
            const StateDict state = training.optimizer->state_dict();
            if (!group.leader()) return;
            weights = training.net.state_dict();
            optimizer = state;
            scaler = training.scaler.state_dict();
        });
        for (const int ranks : {1, 3, 4}) {
            CAPTURE(ranks);
            std::vector<Snapshot> restored(static_cast<std::size_t>(ranks));
            const auto resume = [&](bool sharded) {
                std::vector<Snapshot> trained(static_cast<std::size_t>(ranks));
                run_ranks(ranks, [&](const Group& group) {
                    const auto rank = std::size_t(group.rank());
                    ShardedTraining training(way, group.rank());
                    DataParallel parallel(training.net, group);
                    if (sharded) shard(*training.optimizer, parallel);
                    training.net.load_state_dict(weights);
                    training.optimizer->load_state_dict(optimizer);
                    training.scaler.load_state_dict(scaler);
                    append(restored[rank] = {}, "", training.optimizer->state_dict());
                    for (int step = 4; step < sharded_steps; ++step) training.step(step, group);
                    trained[rank] = training.state();
                });
                return trained;
            };
            const Snapshot plain = resume(false)[0];
            const std::vector<Snapshot> sharded = resume(true);
            Snapshot saved;
            append(saved, "", optimizer);
            for (int rank = 0; rank < ranks; ++rank) {
                CHECK(first_difference(restored[std::size_t(rank)], saved) == "");
                CHECK(first_difference(sharded[std::size_t(rank)], plain) == "");
            }
        }
    }
}

TEST_CASE("sharding: a rank keeps its share of the state and no more", "[distributed]") {
    struct Case {
        const char* name;
        ShardedWay way;
        double whole, shared;  // bytes of an element: on every rank, and divided by the number of ranks
    };
    for (const Case& c : {Case{"float32", {.name = "", .make = adamw}, 8, 8},
                          Case{"O1", {.name = "", .make = adamw, .autocast = true}, 10, 8},
                          Case{"O2", {.name = "", .make = adamw, .dtype = float16, .masters = true}, 4, 12},
                          Case{"O2, split masters",
                               {.name = "",
                               .make = adamw,
                               .dtype = bfloat16,
                               .masters = true,
                               .storage = optim::MasterWeights::split},
                               4,
                               10}}) {
        for (const int ranks : {2, 4}) {
            CAPTURE(c.name, ranks);
            const std::size_t before = memory_stats(cpu_device).allocated;
            std::size_t during = 0;
            std::int64_t elements = 0;
            run_ranks(ranks, [&](const Group& group) {
                nn::Sequential net = seeded(1, [] {
                    return nn::Sequential{nn::Linear(256, 512), nn::ReLU(), nn::Linear(512, 256)};
                });
                net.to(c.way.dtype);
                const auto optimizer = c.way.make(net.named_parameters());
                DataParallel parallel(net, group);
                shard(*optimizer, parallel);
                if (c.way.masters) optimizer->use_master_weights(c.way.storage);
                for (int step = 0; step < 2; ++step) {
                    const amp::Autocast scope({.dtype = float16, .enabled = c.way.autocast});
                    mean(net(rows(1, 2, 256).to(c.way.dtype)).to(float32)).backward();
                    optimizer->step();
                    optimizer->zero_grad();
                }
                group.barrier();
                if (group.leader()) {
                    during = memory_stats(cpu_device).allocated;
                    for (const Tensor& p : net.parameters()) elements += p.numel();
                }
                group.barrier();
            });
            const double predicted = double(elements) * (c.whole + c.shared / ranks),
                         counted = double(during - before) / ranks;
            CAPTURE(predicted, counted);
            CHECK(counted < 1.1 * predicted);
            CHECK(counted > 0.9 * predicted);
        }
    }
}

TEST_CASE("sharding: what cannot be sharded is refused on all ranks", "[distributed]") {
    run_ranks(3, [](const Group& group) {
        const nn::Sequential net = make_net(1), other = make_net(2);
        DataParallel parallel(net, group), elsewhere(other, group);
        optim::AdamW optimizer(net.named_parameters());
        // The optimizer of rank 1 has a parameter of another model.
        StateDict params = net.named_parameters();
        if (group.rank() == 1) params[2] = other.named_parameters()[2];
        optim::AdamW wrong(params);
        RANK_CHECK_THROWS(shard(wrong, parallel),
                          group.rank() == 1 ? "(parameter 2) of this AdamW belongs to another DataParallel"
                                            : "rank 1 could not shard its optimizer");
        RANK_CHECK(wrong.impl().sharing == nullptr);
        optim::AdamW alone(make_net(3).named_parameters());
        RANK_CHECK_THROWS(shard(alone, parallel), "belongs to no DataParallel");
        optim::LAMB lamb(net.parameters());
        RANK_CHECK_THROWS(shard(lamb, parallel), "LAMB is an optimizer written in ops");
        optim::SGD fewer(group.rank() == 2 ? Tensors{net.parameters()[0]} : net.parameters());
        RANK_CHECK_THROWS(shard(fewer, parallel), "shard() of 1 parameters");
        Tensors turned = net.parameters();
        if (group.rank() == 2) std::reverse(turned.begin(), turned.end());
        optim::SGD reversed(turned);
        RANK_CHECK_THROWS(shard(reversed, parallel), "shard() of 6 parameters as its call 8, but others");
        shard(optimizer, parallel);
        RANK_CHECK_THROWS(shard(optimizer, parallel), "sharded already");
        // The group goes on after all these errors.
        mse_loss(net(rows(group.rank())), rows(7)).backward();
        optimizer.step();
        RANK_CHECK(optimizer.applied_steps() == 1);
    });
}

TEST_CASE("sharding: a step of which ranks differ changes nothing", "[distributed]") {
    run_ranks(2, [](const Group& group) {
        const nn::Sequential net = make_net(1);
        auto parallel = std::make_unique<DataParallel>(net, group);
        optim::AdamW optimizer(net.named_parameters());
        shard(optimizer, *parallel);
        mse_loss(net(rows(group.rank())), rows(7)).backward();
        const Snapshot before = weights_of(net);
        const Tensor last = net.parameters().back(), gradient = last.grad();
        if (group.rank() == 1) last.set_grad({});
        RANK_CHECK_THROWS(optimizer.step(), "sharded optimizer's step of 5 parameters");
        if (group.rank() == 1) last.set_grad(gradient);
        RANK_CHECK(first_difference(weights_of(net), before).empty());
        optimizer.step();
        RANK_CHECK(!first_difference(weights_of(net), before).empty());
        RANK_CHECK(optimizer.applied_steps() == 1);
        parallel.reset();
        RANK_CHECK_THROWS(optimizer.step(), "nobody averages the gradient of 0.weight (parameter 0)");
        static_cast<void>(optimizer.state_dict());
    });
}

TEST_CASE("sharding: masters are parts, which nobody gets to see", "[distributed]") {
    run_ranks(2, [](const Group& group) {
        nn::Sequential net = make_net(1);
        net.to(bfloat16);
        DataParallel parallel(net, group);
        optim::AdamW optimizer(net.parameters());
        shard(optimizer, parallel);
        RANK_CHECK(optimizer.master_parameters().size() == net.parameters().size());
        optimizer.use_master_weights();
        RANK_CHECK_THROWS(optimizer.master_parameters(), "a part of each master");
        // A rank's own write to a parameter counts for its shard of the master.
        const Tensor weight = net.parameters()[0];
        {
            const NoGrad plain;
            weight.copy_(full(weight.shape(), 0.5));
        }
        mse_loss(net(rows(1).to(bfloat16)).to(float32), rows(7)).backward();
        optimizer.step();
        const std::vector<double> values = doubles(weight.detach());
        for (const double v : values) RANK_CHECK(v > 0.49 && v < 0.51);
        const Tensor master = optimizer.state_dict()[0].second;
        RANK_CHECK(master.defined());
    });
}

TEST_CASE("sharding: masters that are split are split on all ranks", "[distributed]") {
    run_ranks(2, [](const Group& group) {
        nn::Sequential net = make_net(1);
        net.to(bfloat16);
        DataParallel parallel(net, group);
        optim::SGD optimizer(net.named_parameters(), {.lr = 0});
        optimizer.use_master_weights();
        shard(optimizer, parallel);
        {
            const NoGrad plain;
            for (const Tensor& p : net.parameters()) p.fill_(1);
        }
        StateDict state = optimizer.state_dict();
        for (auto& [name, value] : state)  // a tie, which splitting rounds away from zero
            if (name.ends_with(".master")) value = full(value.shape(), 1 + 0x1p-8);
        optimizer.load_state_dict(state);
        optimizer.use_master_weights(optim::MasterWeights::split);
        const auto all_are = [&](const Tensors& tensors, double expected) {
            for (const Tensor& x : tensors)
                for (const double v : doubles(x.detach())) RANK_CHECK(v == expected);
        };
        const auto masters = [&] {
            Tensors result;
            for (const auto& [name, value] : optimizer.state_dict())
                if (name.ends_with(".master")) result.push_back(value);
            RANK_CHECK(result.size() == net.parameters().size());
            return result;
        };
        all_are(net.parameters(), 1);
        all_are(masters(), 1 + 0x1p-8);
        mse_loss(net(rows(1).to(bfloat16)).to(float32), rows(7)).backward();
        optimizer.step();
        all_are(net.parameters(), 1 + 0x1p-7);
        all_are(masters(), 1 + 0x1p-8);
    });
}

TEST_CASE("sharding: step_in_backward() refuses gradients that ranks exchange", "[distributed]") {
    run_ranks(2, [](const Group& group) {
        const nn::Sequential encoder = make_net(1), head = make_net(2);
        DataParallel parallel(encoder, group);
        optim::AdamW own(encoder.parameters()), others(head.parameters()), divided(encoder.parameters());
        const auto loss = [&](const Tensor& y) { return mse_loss(y, rows(7)); };
        RANK_CHECK_THROWS(own.step_in_backward(loss(encoder(rows(1)))),
                          "parameter 0 is reduced between processes");
        RANK_CHECK_THROWS(others.step_in_backward(loss(head(encoder(rows(1))))),
                          "AdamW.step_in_backward: the graph reaches parameters of a DataParallel");
        const Tensor y = autograd::checkpoint([&](const Tensors& in) { return Tensors{encoder(in[0])}; },
                                              {head(rows(1))})[0];
        RANK_CHECK_THROWS(others.step_in_backward(loss(y)), "the graph reaches parameters of a DataParallel");
        others.zero_grad();
        others.step_in_backward(loss(head(encoder(rows(1)).detach())));
        RANK_CHECK(others.applied_steps() == 1);
        shard(divided, parallel);
        RANK_CHECK_THROWS(divided.step_in_backward(loss(encoder(rows(1)))), "a sharded optimizer exchanges");
    });
}

TEST_CASE("sharding: a state that one rank cannot load leaves all as they were", "[distributed]") {
    run_ranks(3, [](const Group& group) {
        const nn::Sequential net = make_net(1);
        DataParallel parallel(net, group);
        optim::AdamW optimizer(net.named_parameters(), {.lr = 0.01});
        shard(optimizer, parallel);
        mse_loss(net(rows(group.rank())), rows(7)).backward();
        optimizer.step();
        const StateDict good = optimizer.state_dict();
        Snapshot before;
        append(before, "", good);
        const auto unchanged = [&] {
            Snapshot now;
            append(now, "", optimizer.state_dict());
            return first_difference(now, before).empty();
        };
        optimizer.step();  // so that loading would change something
        append(before = {}, "", optimizer.state_dict());
        StateDict damaged = good;
        if (group.rank() == 2) damaged.back().second = zeros({3});
        RANK_CHECK_THROWS(optimizer.load_state_dict(damaged),
                          group.rank() == 2 ? "has shape [3]" : "rank 2 could not load its state");
        RANK_CHECK(unchanged());
        StateDict other = good;
        for (auto& [name, value] : other)
            if (name == "groups.0.lr" && group.rank() == 1) value = scalar(0.5, {.dtype = float64});
        RANK_CHECK_THROWS(optimizer.load_state_dict(other), "rank 1 was given another state than rank 0");
        RANK_CHECK(unchanged());
        RANK_CHECK(optimizer.lr() == 0.01);
        optimizer.load_state_dict(good);
        RANK_CHECK(!unchanged());
    });
}

TEST_CASE("sharding: a group of one rank changes nothing", "[distributed]") {
    const Group alone = distributed::init();
    REQUIRE(alone.size() == 1);
    const nn::Sequential net = make_net(1);
    DataParallel parallel(net, alone);
    optim::AdamW optimizer(net.named_parameters());
    shard(optimizer, parallel);
    shard(optimizer, parallel);
    CHECK(optimizer.impl().sharing == nullptr);
    optim::LAMB lamb(net.parameters());
    CHECK_THROWS_WITH(shard(lamb, parallel), Catch::Contains("written in ops"));
}
