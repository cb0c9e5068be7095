// Training in which the last rank fails in the middle of backward, or has fewer batches than the others.
#include <functional>
#include <stdexcept>

#include "tests/distributed/rank_tools.h"

namespace mz = mezzo;
namespace md = mezzo::distributed;

namespace rank_test {
namespace {

constexpr int fatal_step = 3, batches = 6;

bool is_last(const md::Group& group) { return group.rank() == group.size() - 1; }

// A training loop in which each parameter has a bucket of its own.
class Training {
public:
    using Between = std::function<mz::Tensor(const mz::Tensor& hidden)>;

    explicit Training(const md::Group& group)
        : parallel_(net_, group, {.first_bucket_bytes = 1, .bucket_bytes = 1}) {}

    // `between` is applied between the two layers. When its backward runs, the gradients of the second layer
    // are being exchanged, or wait for the other ranks, and those of the first are not computed yet.
    void step(const Between& between) {
        second_(between(mz::relu(first_(mz::ones({32, 64}))))).square().mean().backward();
        optimizer_.step();
        optimizer_.zero_grad();
    }

private:
    const mz::nn::Linear first_{64, 1000}, second_{1000, 64};
    const mz::nn::Sequential net_{first_, second_};
    md::DataParallel parallel_;
    mz::optim::SGD optimizer_{net_.parameters(), {.lr = 1e-3}};
};

mz::Tensor unchanged(const mz::Tensor& hidden) { return hidden; }

void train_until(const Training::Between& fatal) {
    const md::Group group = join();
    Training training(group);
    for (int step = 0;; ++step) training.step(step == fatal_step && is_last(group) ? fatal : unchanged);
}

}  // namespace

// Fails by an exception that is not one of mezzo's.
void throw_in_hook() {
    train_until([](const mz::Tensor& hidden) {
        mz::autograd::add_hook(hidden, [](const mz::Tensor&) -> mz::Tensor {
            note_end();
            throw std::runtime_error("words of a hook");
        });
        return hidden;
    });
}

void throw_in_op() {
    train_until([](const mz::Tensor& hidden) {
        return mz::autograd::apply_function(
            {.name = "unlucky"},
            [](mz::autograd::Context&, const mz::Tensors& x) { return mz::Tensors{x[0] * 1.0}; },
            [](mz::autograd::Context&, const mz::Tensors& gradients) {
                note_end();
                return mz::Tensors{mz::matmul(gradients[0], mz::ones({7, 5}))};
            },
            {hidden})[0];
    });
}

void train_on_fewer_batches() {
    const md::Group group = join();
    Training training(group);
    for (int batch = 0; batch < (is_last(group) ? batches - 2 : batches); ++batch) training.step(unchanged);
    write_outcome("trained");
    note_end();
}

}  // namespace rank_test
