// Components of the reduction of gradients, and its behaviour if ranks differ or fail.
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "core/memory/flat_view.h"
#include "distributed/bucket.h"
#include "distributed/gradient_readiness.h"
#include "mezzo/insight/insight.h"
#include "tests/distributed/thread_group.h"
#include "tests/distributed/training.h"

using namespace mezzo;
using namespace mezzo::test;
using namespace mezzo::distributed;
using Catch::Contains;

namespace {

using Places = std::vector<std::uint32_t>;

std::vector<Places> places_of(const std::vector<BucketLayout>& layouts) {
    std::vector<Places> result;
    for (const BucketLayout& layout : layouts) {
        Places& places = result.emplace_back();
        for (const BucketLayout::Entry& part : layout.parts) places.push_back(part.place);
    }
    return result;
}

struct Named : nn::Module {
    nn::Parameter weight{ones({2, 3})}, bias{ones({3})};
    MEZZO_MODULE(Named, weight, bias)
};
struct Renamed : nn::Module {
    nn::Parameter weight{ones({2, 3})}, offset{ones({3})};
    MEZZO_MODULE(Renamed, weight, offset)
};
struct Reshaped : nn::Module {
    nn::Parameter weight{ones({3, 2})}, bias{ones({3})};
    MEZZO_MODULE(Reshaped, weight, bias)
};
struct Longer : nn::Module {
    nn::Parameter weight{ones({2, 3})}, bias{ones({3})}, more{ones({1})};
    MEZZO_MODULE(Longer, weight, bias, more)
};

struct Halved : nn::Module {
    nn::Parameter weight{ones({2, 3})}, bias{ones({3}, {.dtype = float16})};
    MEZZO_MODULE(Halved, weight, bias)
};
struct Reordered : nn::Module {
    nn::Parameter bias{ones({3})}, weight{ones({2, 3})};
    MEZZO_MODULE(Reordered, bias, weight)
};
struct Frozen : Named {
    Frozen() { bias.set_requires_grad(false); }
};

// Texts of the errors of both ranks; rank 1 makes another model.
template <class Other> std::vector<std::string> texts_of(const DataParallelOptions& options = {}) {
    std::vector<std::string> texts;
    for (const std::exception_ptr& error : errors_of_ranks(2, [&](const Group& group) {
             Named named;
             Other other;
             const nn::Module& module = group.rank() == 0 ? static_cast<nn::Module&>(named) : other;
             const DataParallel parallel(module, group, group.rank() == 0 ? DataParallelOptions{} : options);
         }))
        texts.push_back(text_of(error));
    return texts;
}

}  // namespace

TEST_CASE("bucket layout: sizes, dtypes, neighbours and alignment", "[distributed]") {
    const std::vector<LeafKind> leaves{{100}, {100}, {100}, {100}, {64, bfloat16}, {3}, {0}};
    const auto order = [](const Places& places) {
        std::vector<OrderedLeaf> result;
        for (const std::uint32_t place : places) result.push_back({place});
        return result;
    };
    const BucketSizes sizes{.first_bytes = 512, .bytes = 1024, .ranks = 3};
    const auto layouts = lay_out(order({3, 2, 4, 1, 0, 5, 6}), leaves, sizes);
    CHECK(places_of(layouts) == std::vector<Places>{{3}, {4}, {2, 1}, {0, 5, 6}});
    for (const BucketLayout& layout : layouts) {
        CHECK(layout.elements % 3 == 0);
        CHECK(layout.elements >= layout.flags + std::int64_t(layout.parts.size()));
        for (const BucketLayout::Entry& part : layout.parts) {
            CHECK(part.offset * std::int64_t(size_of(layout.dtype)) % 256 == 0);
            CHECK(part.offset + leaves[part.place].numel <= layout.flags);
        }
    }
    CHECK(layouts[1].dtype == bfloat16);
    // Neighbours stay together and without a gap, whatever the limit.
    const auto joined =
        lay_out({{3}, {2, true}, {1, true}, {0}}, leaves, {.first_bytes = 1, .bytes = 1, .ranks = 2});
    REQUIRE(places_of(joined) == std::vector<Places>{{3, 2, 1}, {0}});
    CHECK(joined[0].parts[1].offset == 100);
    CHECK(joined[0].parts[2].offset == 200);
    CHECK(lay_out({}, leaves, sizes).empty());
}

TEST_CASE("arrivals: edges, segments, and segments as in the backward before", "[distributed]") {
    Arrivals arrivals(4);
    arrivals.begin({.order = {2, 0}});
    CHECK(arrivals.unreached() == Places{1, 3});
    CHECK(arrivals.finished(2) == Places{2});
    CHECK(arrivals.order() == Places{2, 0, 3, 1});
    arrivals.end();
    // Segments 0 and 1. In the first pass it is unknown which segment reaches which leaf.
    const BackwardPlan plan{.order = {2}, .opaque = 2};
    arrivals.begin(plan);
    CHECK(arrivals.unreached().empty());
    CHECK(arrivals.finished(2).empty());
    arrivals.opaque_begins(0);
    arrivals.delivered(3);
    CHECK(arrivals.opaque_finished(0).empty());
    arrivals.opaque_begins(1);
    arrivals.delivered(0);
    CHECK(arrivals.opaque_finished(1) == Places{0, 1, 2, 3});
    CHECK(arrivals.order() == Places{3, 0, 2, 1});
    CHECK(arrivals.was_reached(3));
    CHECK(!arrivals.was_reached(1));
    arrivals.end();
    // In the second pass leaf 3 is known to be ready after segment 0.
    arrivals.begin(plan);
    CHECK(arrivals.opaque_finished(0) == Places{3});
    CHECK(arrivals.finished(2) == Places{2});
    CHECK(arrivals.opaque_finished(1) == Places{0, 1});
    arrivals.end();
    // Another number of segments: nothing is known.
    arrivals.begin({.order = {2}, .opaque = 1});
    CHECK(arrivals.finished(2).empty());
    CHECK(arrivals.opaque_finished(0) == Places{0, 1, 2, 3});
}

TEST_CASE("bucket: gradients in their places, and elsewhere", "[distributed]") {
    const Tensors leaves{ones({2, 2}), ones({3}), ones({1})};
    Bucket bucket(lay_out({{0}, {1}, {2}}, {{4}, {3}, {1}}, {1 << 20, 1 << 20, 2})[0], leaves);
    const Tensor first = bucket.view(0).fill_(2);
    CHECK(bucket.is_view(0, first));
    CHECK(!bucket.is_view(0, ones({2, 2})));
    CHECK(!bucket.view(0).defined());  // the caller holds it
    const Tensor second = full({3}, 5);
    const std::uint64_t version = first.version();
    Tensor host = bucket.pack({first, second, {}});
    CHECK(raw(host) == raw(first));  // no copy
    host.mul_(0.5);
    bucket.take_back(host);
    CHECK(bucket.present() == std::vector<bool>{true, true, false});
    CHECK(doubles(bucket.unpack(0, first)) == std::vector<double>(4, 1));
    CHECK(first.version() > version);
    CHECK(doubles(bucket.unpack(1, second)) == std::vector<double>(3, 2.5));
    CHECK(bucket.is_view(2, bucket.unpack(2, {})));
    CHECK(doubles(bucket.unpack(2, {})) == std::vector<double>{0});
    // The caller still holds the first gradient: it must not change when another one travels.
    host = bucket.pack({full({2, 2}, 9), second, {}});
    CHECK(doubles(first) == std::vector<double>(4, 1));
    CHECK(doubles(host.slice(0, 0, 4)) == std::vector<double>(4, 9));
    CHECK(bucket.view(0).defined());
}

TEST_CASE("data parallel: ranks with other models get the first difference, all of them", "[distributed]") {
    for (const std::string& text : texts_of<Renamed>())
        CHECK(text ==
              "DataParallel: parameter bias float32 [3] on rank 0 and parameter offset float32 [3] on rank "
              "1; all ranks must make "
              "the same model, with the same options");
    for (const std::string& text : texts_of<Reshaped>())
        CHECK_THAT(text,
                   Contains("weight float32 [2, 3] on rank 0 and parameter weight float32 [3, 2] on rank 1"));
    for (const std::string& text : texts_of<Longer>())
        CHECK_THAT(text, Contains("more float32 [1] on rank 1"));
    for (const std::string& text : texts_of<Halved>())
        CHECK_THAT(text, Contains("bias float32 [3] on rank 0 and parameter bias float16 [3] on rank 1"));
    for (const std::string& text : texts_of<Reordered>())
        CHECK_THAT(text,
                   Contains("weight float32 [2, 3] on rank 0 and parameter bias float32 [3] on rank 1"));
    for (const std::string& text : texts_of<Frozen>())
        CHECK_THAT(text, Contains("[3] on rank 0 and parameter bias float32 [3] without gradient on rank 1"));
    for (const std::string& text : texts_of<Named>({.bucket_bytes = 99}))
        CHECK_THAT(text, Contains("bucket_bytes = 99"));
    for (const std::string& text : texts_of<Named>({.wire = bfloat16}))
        CHECK_THAT(text, Contains("wire = float32 on rank 0 and wire = bfloat16 on rank 1"));
    for (const std::string& text : texts_of<Named>({.ordered = true}))
        CHECK_THAT(text, Contains("ordered = false on rank 0 and ordered = true on rank 1"));
    for (const std::string& text : texts_of<Named>({.overlap = false}))
        CHECK_THAT(text, Contains("overlap = true on rank 0 and overlap = false on rank 1"));
    for (const std::string& text : texts_of<Named>({.gradients_in_buckets = false}))
        CHECK_THAT(text, Contains("and gradients_in_buckets = false on rank 1"));
    for (const std::string& text : texts_of<Named>({.unused = Unused::fail}))
        CHECK_THAT(text, Contains("unused = zero on rank 0 and unused = fail on rank 1"));
    for (const std::string& text : texts_of<Named>()) CHECK(text.empty());
}

TEST_CASE("data parallel: wrong options and uses", "[distributed]") {
    const Group alone = init();
    const Named net;
    CHECK_THROWS_WITH(DataParallel(net, alone, {.bucket_bytes = 0}), Contains("a bucket of 0 bytes"));
    CHECK_THROWS_WITH(DataParallel(net, alone, {.wire = float64}), Contains("wire is float64"));
    run_ranks(2, [](const Group& group) {
        const Named module;
        DataParallel parallel(module, group);
        RANK_CHECK_THROWS(DataParallel(module, group), "weight belongs to another DataParallel");
        const Tensor y = sum(module.weight * module.weight);
        RANK_CHECK_THROWS(y.backward({.create_graph = true}), "create_graph reaches parameter weight");
        // An error that backward throws before it begins does not break the group.
        RANK_CHECK_THROWS((module.weight * 2.0).backward(), "pass one");
        RANK_CHECK_THROWS(autograd::backward(Tensors{y, ones({})}), "does not require grad");
        // A gradient penalty takes the inner derivative by grad().
        const Tensor g = autograd::grad({y}, {module.weight}, {.create_graph = true})[0];
        sum(g * g * double(group.rank())).backward();
        RANK_CHECK(doubles(module.weight.grad()) == std::vector<double>(6, 4));  // 8 w, and 0
    });
}

TEST_CASE("data parallel: a small model has several buckets, unless the user says otherwise",
          "[distributed]") {
    for (const std::int64_t bytes : {DataParallelOptions().bucket_bytes, std::int64_t(26) << 20})
        run_ranks(2, [&](const Group& group) {
            nn::Sequential net;
            for (int i = 0; i < 16; ++i)
                net.push_back(nn::Linear(256, 256, {.bias = false}));  // 256 KiB each
            const DataParallel parallel(net, group, {.bucket_bytes = bytes});
            sum(net(ones({1, 256}))).backward();
            RANK_CHECK(parallel.buckets().size() == (bytes < std::int64_t(26) << 20 ? 4 : 2));
        });
}

TEST_CASE("data parallel: an order that differs between ranks becomes rank 0's", "[distributed]") {
    std::vector<std::vector<std::vector<std::string>>> buckets(2);
    run_ranks(2, [&](const Group& group) {
        const Named net;
        DataParallel parallel(net, group);
        RANK_CHECK(parallel.buckets().empty());
        const Tensor first = group.rank() == 0 ? sum(net.weight) : sum(net.bias);
        const Tensor second = group.rank() == 0 ? sum(net.bias) : sum(net.weight);
        (first + second * 3.0).backward();
        buckets[std::size_t(group.rank())] = parallel.buckets();
        RANK_CHECK(doubles(net.weight.grad()) == std::vector<double>(6, 2));
    });
    CHECK(buckets[0] == buckets[1]);
    CHECK(buckets[0] == std::vector<std::vector<std::string>>{{"bias", "weight"}});
}

TEST_CASE("data parallel: other parameters trained on one rank have a name", "[distributed]") {
    for (const std::exception_ptr& error : errors_of_ranks(2, [](const Group& group) {
             const Named net;
             DataParallel parallel(net, group);
             if (group.rank() == 1) net.bias.set_requires_grad(false);
             (sum(net.weight) + sum(net.bias)).backward();
         }))
        CHECK_THAT(text_of(error), Contains("bias, trained, on rank 0 and bias, frozen, on rank 1"));
}

TEST_CASE("data parallel: rank 0's values become everybody's, and its buffers on demand", "[distributed]") {
    run_ranks(3, [](const Group& group) {
        struct Counting : nn::Module {
            nn::Parameter weight;
            nn::Buffer count;
            MEZZO_MODULE(Counting, weight, count)
        } net;
        net.weight = nn::Parameter(full({5, 7}, group.rank()).t());
        net.count = nn::Buffer(full({2}, group.rank() + 10, {.dtype = int64}));
        DataParallel parallel(net, group);
        RANK_CHECK(doubles(net.weight.detach()) == std::vector<double>(35, 0));
        RANK_CHECK(doubles(net.count) == std::vector<double>(2, 10));
        net.count.fill_(group.rank() + 20);
        parallel.broadcast_buffers();
        RANK_CHECK(doubles(net.count) == std::vector<double>(2, 20));
    });
}

TEST_CASE("data parallel: a gradient that somebody keeps does not change later", "[distributed]") {
    run_ranks(2, [](const Group& group) {
        const nn::Sequential net = make_mlp(5);
        DataParallel parallel(net, group);
        const auto backward = [&](int seed) { mse_loss(net(rows(seed + group.rank())), rows(9)).backward(); };
        backward(0);
        const Tensor kept = net.parameters()[0].grad();
        const std::vector<double> values = doubles(kept);
        for (const Tensor& p : net.parameters()) p.set_grad({});
        backward(2);
        const std::vector<double> next = doubles(net.parameters()[0].grad());
        RANK_CHECK(doubles(kept) == values);
        RANK_CHECK(next != values);
        // A gradient that the parameter still has is accumulated in place, and is complete when backward
        // returns.
        const Tensor own = net.parameters()[0].grad();
        backward(2);
        const std::vector<double> seen = doubles(own);
        RANK_CHECK(difference(seen, doubles(net.parameters()[0].grad()), {0, 0}) == "");
        RANK_CHECK(seen[0] == Approx(2 * next[0]));
    });
}

TEST_CASE("data parallel: query, key and value stay neighbours in their bucket", "[distributed]") {
    run_ranks(2, [](const Group& group) {
        const nn::BertForSequenceClassification net = make_bert(5);
        DataParallel parallel(net, group, {.first_bucket_bytes = 1, .bucket_bytes = 1});
        for (int step = 0; step < 2; ++step) {
            for (const Tensor& p : net.parameters()) p.set_grad({});
            sum(net(token_ids(group.rank()))).backward();
        }
        const StateDict named = net.named_parameters();
        for (std::size_t i = 0; i < named.size(); ++i) {
            if (named[i].first != "bert.encoder.layer.0.attention.self.query.weight") continue;
            Tensors together;
            for (const char* part : {"query", "key", "value"})
                for (const auto& [name, p] : named)
                    if (name == std::string("bert.encoder.layer.0.attention.self.") + part + ".weight")
                        together.push_back(p.grad());
            RANK_CHECK(together.size() == 3);
            RANK_CHECK(as_one(together).defined());
        }
    });
}

TEST_CASE("data parallel: a rank that fails in backward breaks the group with its words", "[distributed]") {
    std::vector<std::string> refused(2);
    const auto errors = errors_of_ranks(2, [&](const Group& group) {
        // The failure is between two layers: the gradients of the second may have been exchanged, those of
        // the first never will be.
        const Failing between(group.rank() == 1);
        const nn::Sequential net = seeded(5, [&] {
            return nn::Sequential{nn::Linear(net_width, 40), between, nn::Linear(40, net_width)};
        });
        DataParallel parallel(net, group, {.first_bucket_bytes = 1, .bucket_bytes = 1});
        optim::SGD optimizer(net.parameters(), {.lr = 1});
        const Snapshot before = weights_of(net);
        try {
            mse_loss(net(rows(group.rank())), rows(9)).backward();
            optimizer.step();
        } catch (const std::exception&) {
            // The rank may catch the error, but its group is unusable.
            optimizer.zero_grad();
            try {
                optimizer.step();
            } catch (const Error& error) {
                if (error.kind() == ErrorKind::backend) refused[std::size_t(group.rank())] = error.what();
            }
            RANK_CHECK(first_difference(weights_of(net), before) == "");
            throw;
        }
    });
    CHECK(text_of(errors[1]) == "out of luck");
    CHECK_THAT(text_of(errors[0]), Contains("given up"));
    CHECK(refused[0] == text_of(errors[0]));
    CHECK_THAT(refused[1], Contains("out of luck"));
}

TEST_CASE("data parallel: no update while backward runs", "[distributed]") {
    run_ranks(2, [](const Group& group) {
        const Named net;
        DataParallel parallel(net, group);
        optim::SGD optimizer(net.parameters(), {.lr = 1});
        sum(net.weight).backward();
        const Tensor h = net.weight * 1.0;
        std::string text;
        autograd::add_hook(h, [&](const Tensor&) {
            try {
                optimizer.step();
            } catch (const Error& error) {
                text = error.what();
            }
            return Tensor();
        });
        sum(h).backward();
        RANK_CHECK(text.find("parameter weight is updated or clipped while backward is running") !=
                   std::string::npos);
    });
}

TEST_CASE("data parallel: what is under way is whole when it is destroyed", "[distributed]") {
    run_ranks(2, [](const Group& group) {
        const Named net;
        {
            DataParallel parallel(net, group);
            sum(net.weight * double(group.rank())).backward();
        }
        RANK_CHECK(doubles(net.weight.grad()) == std::vector<double>(6, 0.5));
        RANK_CHECK(!net.weight->grads().gradient.find<GradientHook>().hook);
        sum(net.weight).backward();  // and this is local again
        RANK_CHECK(doubles(net.weight.grad()) == std::vector<double>(6, 1.5));
    });
}

// If a rank calls something other than DataParallel's next collective, both ranks get an error that shows
// both calls.
TEST_CASE("data parallel: calls that do not match those of another rank are an error", "[distributed]") {
    const auto words = [](const auto& body) {
        const auto errors = errors_of_ranks(2, body);
        return text_of(errors[0]) + "\n" + text_of(errors[1]);
    };
    const std::string uneven = words([](const Group& group) {
        const Named net;
        DataParallel parallel(net, group);
        sum(net.weight).backward();
        static_cast<void>(net.weight.grad());
        if (group.rank() == 1) return static_cast<void>(group.mean(ones({2})));
        sum(net.weight).backward();
        static_cast<void>(net.weight.grad());
    });
    CHECK_THAT(uneven, Contains("rank 0 has DataParallel's reduction of bucket 0, ") &&
                           Contains("rank 1 has mean of 2 elements of float32"));
    CHECK_THAT(
        words([](const Group& group) {
            const Named net;
            if (group.rank() == 1) return group.barrier();
            DataParallel parallel(net, group);
        }),
        Contains("rank 0 has DataParallel's comparison of the models") && Contains("rank 1 has barrier"));
    CHECK_THAT(words([](const Group& group) {
                   const Named net;
                   DataParallel parallel(net, group);
                   if (group.rank() == 1) return group.barrier();
                   sum(net.weight).backward();
               }),
               Contains("rank 0 has DataParallel's layout of the buckets") && Contains("rank 1 has barrier"));
    CHECK_THAT(words([](const Group& group) {
                   const Named a, b;
                   DataParallel of_a(a, group), of_b(b, group);
                   for (const Named* net : {&a, &b}) sum(net->weight).backward();
                   (group.rank() == 0 ? of_a : of_b).reduce();
                   static_cast<void>((group.rank() == 0 ? a : b).weight.grad());
               }),
               Contains("of another DataParallel"));
}

TEST_CASE("data parallel: two in one backward keep their gradients apart", "[distributed]") {
    run_ranks(2, [](const Group& group) {
        const Named a, b;
        DataParallel of_a(a, group), of_b(b, group);
        for (int step = 0; step < 2; ++step) {
            for (const Named* net : {&a, &b})
                for (const Tensor& p : net->parameters()) p.set_grad({});
            Tensor la, lb;
            const auto make_a = [&] { la = sum(a.weight) + sum(a.bias); };
            const auto make_b = [&] { lb = sum(b.weight) + sum(b.bias); };
            if (group.rank() == 0) make_a();
            make_b();
            if (group.rank() != 0) make_a();
            (la + lb * 3.0).backward();
            RANK_CHECK(doubles(a.weight.grad()) == std::vector<double>(6, 1));
            RANK_CHECK(doubles(b.weight.grad()) == std::vector<double>(6, 3));
            RANK_CHECK(doubles(b.bias.grad()) == std::vector<double>(3, 3));
        }
    });
}

TEST_CASE("data parallel: a step that one rank runs again stays on it", "[distributed]") {
    const auto meeting = std::make_shared<Meeting>(2);
    run_ranks(meeting, [&](const Group& group) {
        const Named net;
        DataParallel parallel(net, group);
        const auto backward = [&](double factor) { sum(net.weight * factor).backward(); };
        backward(1 + 2 * group.rank());
        if (group.rank() == 0) {
            static_cast<void>(insight::replay(net, [&] { backward(100); }));
            RANK_CHECK(bool(net.weight->grads().gradient.find<GradientHook>().hook));
        }
        RANK_CHECK(doubles(net.weight.grad()) == std::vector<double>(6, 2));
        for (const Tensor& p : net.parameters()) p.set_grad({});
        backward(2 + 2 * group.rank());
        RANK_CHECK(doubles(net.weight.grad()) == std::vector<double>(6, 3));
        if (group.rank() == 0)
            RANK_CHECK_THROWS(insight::replay(net, [] { fail(ErrorKind::value, "in the step"); }),
                              "in the step");
        backward(2 + 2 * group.rank());
        RANK_CHECK(doubles(net.weight.grad()) == std::vector<double>(6, 6));
    });
    CHECK(meeting->reductions == 3);
}

// The child reports by its exit code, because Catch's assertions belong to the parent.
TEST_CASE("group: a forked process is no rank, and leaves its parent's group alone", "[distributed]") {
    const auto meeting = std::make_shared<Meeting>(2);
    std::vector<Group> groups = thread_groups(meeting);
    const pid_t child = fork();
    if (child == 0) {
        alarm(20);
        int refused = 0;
        try {
            groups[0].barrier();
        } catch (const Error& error) {
            refused = std::string(error.what()).find("was forked from rank 0") != std::string::npos;
        }
        groups.clear();
        _exit(refused ? 7 : 8);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 7));
    std::thread other([&] { groups[1].barrier(); });
    groups[0].barrier();
    other.join();
}
