// Uses of a gradient while it is being reduced. If the gradient lies outside its bucket, a use that does not
// wait gives wrong values; if it lies inside, the thread sanitizer reports the use.
#include <catch2/catch.hpp>

#include "core/gradient/gradient_hook.h"
#include "core/tensor_impl.h"
#include "tests/distributed/thread_group.h"
#include "tests/distributed/training.h"

using namespace mezzo;
using namespace mezzo::test;
using namespace mezzo::distributed;

namespace {

struct Pair : nn::Module {
    nn::Parameter first{ones({4})}, second{ones({3})};
    MEZZO_MODULE(Pair, first, second)
};

GradientSlot& slot_of(const Tensor& leaf) { return leaf->grads().gradient; }

// Runs body(pair, parallel, rank) on two ranks, with one bucket per parameter, with gradients inside their
// buckets and outside.
template <class Body> void on_two_ranks(const Body& body) {
    for (const bool in_buckets : {true, false}) {
        CAPTURE(in_buckets);
        run_ranks(2, [&](const Group& group) {
            const Pair net;
            DataParallel parallel(
                net, group, {.first_bucket_bytes = 1, .bucket_bytes = 1, .gradients_in_buckets = in_buckets});
            body(net, parallel, group.rank());
        });
    }
}

// Computes gradients `a` and `b` on rank 0, 3 a and 3 b on rank 1.
void backward(const Pair& net, int rank, double a, double b) {
    (sum(net.first) * (a * (1 + 2 * rank)) + sum(net.second) * (b * (1 + 2 * rank))).backward();
}

}  // namespace

TEST_CASE("reduced gradient: a look waits for it", "[distributed]") {
    on_two_ranks([](const Pair& net, DataParallel&, int rank) {
        for (int step = 1; step <= 20; ++step) {
            backward(net, rank, 1, 2);
            RANK_CHECK(doubles(net.first.grad()) == std::vector<double>(4, 2 * step));
            RANK_CHECK(doubles(net.second.grad()) == std::vector<double>(3, 4 * step));
        }
    });
}

TEST_CASE("reduced gradient: dropped, replaced or overwritten while it is under way", "[distributed]") {
    on_two_ranks([](const Pair& net, DataParallel& parallel, int rank) {
        backward(net, rank, 1, 2);
        net.first.set_grad({});
        sum(net.second).backward();  // waits for everything that is under way
        RANK_CHECK(!net.first.grad().defined());
        RANK_CHECK(doubles(net.second.grad()) == std::vector<double>(3, 5));
        backward(net, rank, 1, 2);
        net.first.set_grad(full({4}, 7));
        RANK_CHECK(doubles(net.first.grad()) == std::vector<double>(4, 7));
        parallel.reduce();
        RANK_CHECK(doubles(net.first.grad()) == std::vector<double>(4, 7));
        backward(net, rank, 1, 2);
        const_cast<Pair&>(net).zero_grad(false);
        RANK_CHECK(doubles(net.first.grad()) == std::vector<double>(4, 0));
        RANK_CHECK(doubles(net.second.grad()) == std::vector<double>(3, 0));
    });
}

TEST_CASE("reduced gradient: it is reduced before the factor that it waits for", "[distributed]") {
    on_two_ranks([](const Pair& net, DataParallel&, int rank) {
        optim::SGD optimizer(net.parameters(), {.lr = 1});
        amp::GradScaler scaler({.init_scale = 4});
        scaler.scale(sum(net.first) * double(1 + 2 * rank) + sum(net.second)).backward();
        scaler.unscale_(optimizer);
        // Only its slot and the bucket hold the gradient, so its factor is pending.
        RANK_CHECK(slot_of(net.first).pending());
        RANK_CHECK(slot_of(net.second).pending());
        // The first parameter's bucket leaves at once, because this loss does not reach it; adding to the
        // second applies the factor to both.
        sum(net.second * 2.0).backward();
        RANK_CHECK(doubles(net.first.grad()) == std::vector<double>(4, 2));
        RANK_CHECK(doubles(net.second.grad()) == std::vector<double>(3, 3));
    });
}

TEST_CASE("reduced gradient: it is made where it travels from", "[distributed]") {
    for (const bool in_buckets : {true, false})
        run_ranks(2, [&](const Group& group) {
            const nn::BertForSequenceClassification net = make_bert(5);
            DataParallel parallel(net, group, {.gradients_in_buckets = in_buckets});
            for (int step = 0; step < 2; ++step) {
                for (const Tensor& p : net.parameters()) p.set_grad({});
                const amp::Autocast scope({.dtype = bfloat16});
                sum(net(token_ids(group.rank())).to(float32)).backward();
                for (const Tensor& p : net.parameters()) {
                    const GradientSlot::Link link = slot_of(p).find<GradientHook>();
                    RANK_CHECK(link.hook->is_bucket_view(link.index, p.grad()) == in_buckets);
                }
            }
        });
}

TEST_CASE("reduced gradient: buckets leave while backward runs, each once", "[distributed]") {
    for (const bool overlap : {true, false}) {
        CAPTURE(overlap);
        const auto meeting = std::make_shared<Meeting>(2);
        run_ranks(meeting, [&](const Group& group) {
            const nn::Sequential net = make_mlp(5);
            DataParallel parallel(net, group,
                                  {.first_bucket_bytes = 1, .bucket_bytes = 1, .overlap = overlap});
            const Tensor x = rows(group.rank()).set_requires_grad();
            const Tensor h = x * 1.0;
            int left = -1;
            autograd::add_hook(h, [&](const Tensor&) {
                group.impl().run([](Collectives&) {});  // behind what has left
                left = meeting->reductions;
                return Tensor();
            });
            mse_loss(net(h), rows(9)).backward();
            group.barrier();
            const int buckets = int(parallel.buckets().size());
            RANK_CHECK(buckets == 8);
            RANK_CHECK(meeting->reductions >= buckets);
            if (overlap)
                RANK_CHECK(left >= buckets - 2);  // not those of the layer that the hook stands behind
            else
                RANK_CHECK(left <= 0);
        });
    }
}
