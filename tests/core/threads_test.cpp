// Uses of several threads that docs/reference/threads.md allows, under the thread sanitizer.
#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <thread>
#include <vector>

#include "mezzo/autocast.h"
#include "mezzo/autograd.h"
#include "mezzo/nn.h"
#include "mezzo/optim.h"
#include "tests/support/own_process.h"

using namespace mezzo;

namespace {

// Runs body(number) on `count` threads at once.
template <class F> void on_threads(int count, const F& body) {
    std::atomic<int> waiting{count};
    std::vector<std::thread> threads;
    for (int t = 0; t < count; ++t)
        threads.emplace_back([&, t] {
            --waiting;
            while (waiting > 0) std::this_thread::yield();  // all begin together
            body(t);
        });
    for (std::thread& thread : threads) thread.join();
}

nn::Sequential small_net() {
    manual_seed(5);
    return nn::Sequential(nn::Linear(16, 32), nn::ReLU(), nn::LayerNorm(32), nn::Linear(32, 8), nn::Tanh());
}

// Counts its live instances, to check copies and destruction of shared callables and modules.
struct Counted {
    explicit Counted(std::atomic<int>& live) : live_(&live) { ++*live_; }
    Counted(const Counted& other) : live_(other.live_) { ++*live_; }
    Counted& operator=(const Counted&) = delete;
    ~Counted() { --*live_; }
    std::atomic<int>* live_;
};
struct CountedLayer : nn::Module {
    explicit CountedLayer(std::atomic<int>& live) : counted(live) {}
    Tensor operator()(const Tensor& x) const { return x; }
    Counted counted;
    MEZZO_MODULE(CountedLayer)
};

}  // namespace

TEST_CASE("threads: one module serves several under Autocast", "[threads]") {
    const nn::Sequential net = small_net();
    const Tensor x = randn({4, 16});
    const auto infer = [&](Dtype dtype) {
        amp::Autocast scope({.dtype = dtype});
        return net(x).to(float32);
    };
    for (const bool recorded : {false, true}) {
        Tensors wanted;
        for (const Dtype dtype : {float16, bfloat16}) wanted.push_back(infer(dtype).detach());
        // Later rounds follow a step that makes 16-bit copies of the weights.
        std::vector<int> good(4);
        on_threads(4, [&](int t) {
            for (int round = 0; round < 30; ++round) {
                const int which = (t + round) % 2;
                if (recorded) {
                    good[std::size_t(t)] +=
                        all_close(infer(which ? bfloat16 : float16), wanted[std::size_t(which)]);
                } else {
                    NoGrad plain;
                    good[std::size_t(t)] +=
                        all_close(infer(which ? bfloat16 : float16), wanted[std::size_t(which)]);
                }
            }
        });
        CHECK(good == std::vector<int>(4, 30));
        optim::SGD optimizer(net.parameters(), {.lr = 0.01});
        sum(infer(float16)).backward();
        optimizer.step();
        optimizer.zero_grad();
    }
}

TEST_CASE("threads: copies of modules and callables count right", "[threads]") {
    std::atomic<int> layers{0}, calls{0};
    {
        const nn::Sequential net{nn::Linear(2, 2), CountedLayer(layers)};
        const autograd::Callback<int(int)> callback([counted = Counted(calls)](int x) { return x + 1; });
        const nn::Linear linear(3, 3);
        on_threads(4, [&](int) {
            for (int round = 0; round < 20000; ++round) {
                const nn::Sequential copy = net;
                autograd::Callback<int(int)> same = callback;
                same = callback;
                const nn::Linear handle = linear;
                if (same(round) != round + 1 || copy.size() != 2 || !handle.weight.defined()) layers = -1000;
            }
        });
        CHECK(layers == 1);
        CHECK(calls == 1);
        CHECK(net(ones({1, 2})).numel() == 2);
        CHECK(callback(1) == 2);
    }
    CHECK(layers == 0);
    CHECK(calls == 0);
}

TEST_CASE("threads: gradients of a shared module, with hooks on its parameters", "[threads]") {
    const nn::Sequential net = small_net();
    const Tensors parameters = net.parameters();
    std::atomic<int> hooked{0};
    for (const Tensor& p : parameters)
        autograd::add_hook(p, [counted = Counted(hooked)](const Tensor& g) -> Tensor { return g * 2.0; });
    const int callables = hooked;
    const auto gradients = [&](int t, bool low) {
        amp::Autocast scope({.dtype = bfloat16, .enabled = low});
        const Tensor x = full({3, 16}, 0.1 * (t + 1));
        const Tensor loss = sum(square(net(x)));
        return autograd::grad({loss}, parameters);
    };
    for (const bool low : {false, true}) {
        std::vector<Tensors> wanted, found(4);
        for (int t = 0; t < 4; ++t) wanted.push_back(gradients(t, low));
        on_threads(4, [&](int t) {
            for (int round = 0; round < 10; ++round) found[std::size_t(t)] = gradients(t, low);
        });
        for (std::size_t t = 0; t < 4; ++t)
            for (std::size_t i = 0; i < parameters.size(); ++i) CHECK(all_close(found[t][i], wanted[t][i]));
    }
    CHECK(hooked == callables);
    for (const Tensor& p : parameters) CHECK_FALSE(p.grad().defined());
}

TEST_CASE("threads: tensors are made in one and dropped in another", "[threads]") {
    const Tensor base = ones({64});
    std::vector<Tensor> results(4);
    on_threads(4, [&](int t) {
        for (int round = 0; round < 100; ++round) {
            Tensor y = base * double(t);
            for (int i = 0; i < 10; ++i) y = y + base.slice(0, 0, 64);
            results[std::size_t(t)] = y;
        }
    });
    for (int t = 0; t < 4; ++t) CHECK(results[std::size_t(t)][0].item<float>() == float(t + 10));
    on_threads(2, [&](int t) { results[std::size_t(t)] = Tensor(); });
}

TEST_CASE("threads: dropout draws from one stream, each number once", "[threads]") {
    manual_seed(9);
    (void)dropout(ones({64}), 0.5);
    const std::uint64_t once = random_state().offset;
    const RandomState before = random_state();
    on_threads(3, [](int) {
        for (int round = 0; round < 20; ++round) (void)dropout(ones({64}), 0.5);
    });
    CHECK(random_state().offset - before.offset == 3 * 20 * once);
}

TEST_CASE("threads: gradients of shared leaves are looked at by several", "[threads]") {
    const nn::Sequential net = small_net();
    const Tensors leaves = net.parameters();
    sum(square(net(randn({4, 16})))).backward();
    nn::clip_grad_norm_(leaves, 0.1);
    const std::vector<float> first = leaves[0].grad().to_vector<float>();  // multiplies all of them
    double wanted = 0;
    for (const Tensor& leaf : leaves) wanted += sum(square(leaf.grad())).item<double>();
    CHECK(wanted == Approx(0.01).epsilon(1e-4));
    std::vector<double> seen(4);
    on_threads(4, [&](int number) {
        for (const Tensor& leaf : leaves)
            seen[std::size_t(number)] += sum(square(leaf.grad())).item<double>();
    });
    CHECK(seen == std::vector<double>(4, wanted));
    CHECK(leaves[0].grad().to_vector<float>() == first);
}

// The threads never end: exit() comes while they compute.
TEST_CASE("exit while threads train", "[.child]") {
    static std::atomic<int> running{0};
    for (int t = 0; t < 3; ++t)
        std::thread([] {
            nn::Linear net(64, 64);
            for (;;) {
                optim::AdamW optimizer(net.parameters(), {.lr = 1e-3});
                sum(net(ones({256, 64})).exp()).backward();
                optimizer.step();
                optimizer.zero_grad();
                ++running;
            }
        }).detach();
    while (running < 6) std::this_thread::yield();
    std::exit(42);
}

TEST_CASE("threads: exit() while others train", "[threads]") {
    for (int i = 0; i < 3; ++i) CHECK(test::exit_status_of_case("exit while threads train") == 42);
}
