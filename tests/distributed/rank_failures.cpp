// A rank that is killed at a certain point of its work.
#include <signal.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "tests/distributed/rank_tools.h"

namespace mz = mezzo;
namespace md = mezzo::distributed;

namespace rank_test {
namespace {

bool is_last(const md::Group& group) { return group.rank() == group.size() - 1; }

// Trains one large parameter whose gradient has the same value everywhere: rank + 1 in the first step, twice
// that in the second.
class ConstantGradient {
public:
    explicit ConstantGradient(const md::Group& group) : group_(group), parallel_(layer_, group) {}

    void step() {
        const int number = ++steps_;
        std::this_thread::sleep_for(std::chrono::milliseconds(30));  // so that the store learns of every call
        (mz::sum(layer_.weight) * own(number)).backward();
        const float* const gradient = std::as_const(layer_.weight).grad().data<float>();
        mean_before_ = *gradient;
        gradient_ = gradient;
        layer_.zero_grad();
    }
    // Whether the exchange has changed one end of this step's gradient and not the other. Another thread may
    // call it.
    bool within_the_reduction() const {
        const volatile float* const x = gradient_;
        if (x == nullptr) return false;
        const float mine = own(steps_), before = mean_before_, first = x[0], last = x[elements - 1];
        const auto changed = [&](float value) { return value != mine && value != before && value != 0; };
        return (first == mine && changed(last)) || (last == mine && changed(first));
    }

private:
    static constexpr std::int64_t elements = std::int64_t{1} << 23;
    float own(int number) const { return float(number * (group_.rank() + 1)); }

    const md::Group group_;
    mz::nn::Linear layer_{elements, 1, {.bias = false}};
    const md::DataParallel parallel_;
    std::atomic<int> steps_{0};
    std::atomic<float> mean_before_{0};
    // Points into the bucket, which holds the sum, too: the next gradients are written there as well, because
    // nothing else holds this one.
    std::atomic<const float*> gradient_{nullptr};
};

}  // namespace

void kill_self() {
    note_end();
    raise(SIGKILL);
}

// Kills the last rank while the sum is under way.
void kill_in_reduction() {
    const md::Group group = join();
    ConstantGradient training(group);
    write_outcome("begun");
    std::optional<std::jthread> watcher;
    if (is_last(group))
        watcher.emplace([&training](const std::stop_token& stop) {
            while (!stop.stop_requested())
                if (training.within_the_reduction()) kill_self();
        });
    for (;;) training.step();
}

// Kills the last rank between the gradients of its two layers: those of the second are being exchanged, or
// wait for the other ranks.
void kill_in_backward() {
    const md::Group group = join();
    const mz::nn::Linear first(64, 1000), second(1000, 64);
    mz::nn::Sequential net{first, mz::nn::ReLU(), second};
    md::DataParallel parallel(net, group, {.first_bucket_bytes = 1, .bucket_bytes = 1});
    mz::optim::SGD optimizer(net.parameters(), {.lr = 1e-3});
    for (int step = 0;; ++step) {
        if (step == 3) write_outcome("begun");
        const mz::Tensor h = mz::relu(first(mz::ones({32, 64})));
        if (step == 3 && is_last(group))
            mz::autograd::add_hook(h, [](const mz::Tensor& gradient) {
                kill_self();
                return gradient;
            });
        second(h).square().mean().backward();
        optimizer.step();
        optimizer.zero_grad();
    }
}

}  // namespace rank_test
