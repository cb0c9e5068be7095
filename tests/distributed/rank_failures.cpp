// A rank that is killed at a certain point of its work.
#include <signal.h>

#include <atomic>
#include <thread>

#include "tests/distributed/rank_tools.h"

namespace mz = mezzo;
namespace md = mezzo::distributed;

namespace rank_test {
namespace {

bool is_last(const md::Group& group) { return group.rank() == group.size() - 1; }

// Ends this process as soon as a part of a sum has been written and another part not.
class KilledWithinASum {
public:
    KilledWithinASum(const mz::Tensor& x, float sum) : x_(x), sum_(sum), watcher_([this] { watch(); }) {}

    void reduce(const md::Group& group) {
        reducing_ = true;
        group.all_reduce_(x_);
        reducing_ = false;
    }

private:
    void watch() const {
        const volatile float* const x = x_.data<float>();
        const std::int64_t last = x_.numel() - 1;
        for (;;)
            if (reducing_ && (x[0] == sum_) != (x[last] == sum_)) kill_self();
    }

    const mz::Tensor x_;
    const float sum_;
    std::atomic<bool> reducing_{false};
    std::jthread watcher_;
};

}  // namespace

void kill_self() {
    note_end();
    raise(SIGKILL);
}

// The last rank, while the sum is under way.
void kill_in_reduction() {
    const md::Group group = join();
    const mz::Tensor x = mz::ones({std::int64_t{1} << 23});
    group.barrier();
    write_outcome("begun");
    if (!is_last(group))
        for (;;) group.all_reduce_(x.fill_(1));
    KilledWithinASum victim(x, float(group.size()));
    for (;;) {
        x.fill_(1);
        victim.reduce(group);
    }
}

// The last rank, between the gradients of its two layers: those of the second are on their way, or wait for the other ranks.
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
