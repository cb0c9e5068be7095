// The step of docs/internals/training_step.md. training_step() is what a profiler watches: a step after those
// that make the 16-bit copies and the optimizer's state.
#include <mezzo/mezzo.h>

namespace mz = mezzo;

namespace {

struct Training {
    mz::Tensor x = mz::randn({64, 256}), y = mz::randn({64, 32});
    mz::nn::Sequential net{mz::nn::Linear(256, 256), mz::nn::ReLU(), mz::nn::Linear(256, 32)};
    mz::optim::Adam optimizer{net.parameters(), {.lr = 1e-3}};
    mz::amp::GradScaler scaler;

    void step() {
        mz::Tensor loss;
        {
            const mz::amp::Autocast scope;
            loss = mz::mse_loss(net(x), y);
        }
        optimizer.zero_grad();
        scaler.scale(loss).backward();
        scaler.step(optimizer);
        scaler.update();
    }
};

}  // namespace

extern "C" [[gnu::noinline]] void training_step(Training& training) { training.step(); }

int main() {
    mz::set_num_threads(1);  // one thread runs all of the step
    Training training;
    for (int i = 0; i < 3; ++i) training.step();
    training_step(training);
    return training.optimizer.skipped_steps() == 0 ? 0 : 1;
}
