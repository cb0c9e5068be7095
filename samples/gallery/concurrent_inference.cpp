// Concurrent inference: several threads call one model, each in its own precision, while the main thread
// trains a clone.
#include <mezzo/mezzo.h>

#include <atomic>
#include <iostream>
#include <thread>
#include <vector>

namespace mz = mezzo;
namespace nn = mezzo::nn;

int main() {
    mz::manual_seed(21);
    nn::Sequential model{nn::Linear(32, 64), nn::GELU(), nn::Dropout(0.1), nn::Linear(64, 8)};
    model.eval();
    const mz::Tensor requests = mz::randn({64, 32});
    mz::Tensor expected;
    {
        const mz::NoGrad plain;
        expected = model(requests);
    }
    std::atomic<int> answered{0}, wrong{0};
    const auto serve = [&](mz::Dtype precision) {
        // Scopes belong to the thread that opens them, so each thread opens its own.
        const mz::NoGrad plain;
        const mz::amp::Autocast scope({.dtype = precision});  // off in float32
        for (int i = 0; i < 40; ++i) {
            const mz::Tensor rows = requests[mz::Slice(i, i + 8)];
            const mz::Tensor answer = model(rows);
            if (!mz::all_close(answer, expected[mz::Slice(i, i + 8)], 0.05, 0.05)) ++wrong;
            ++answered;
        }
    };
    std::vector<std::thread> threads;
    for (const mz::Dtype precision : {mz::float32, mz::bfloat16, mz::float16, mz::float32})
        threads.emplace_back(serve, precision);

    // Nobody writes to weights that others read: what trains is a clone.
    nn::Sequential next = nn::clone(model);
    next.train();
    mz::optim::SGD optimizer(next.parameters(), {.lr = 0.1});
    double loss = 0;
    for (int step = 0; step < 50; ++step) {
        optimizer.zero_grad();
        const mz::Tensor mean = mz::mse_loss(next(requests), mz::zeros({64, 8}));
        mean.backward();
        optimizer.step();
        loss = mean.item<double>();
    }
    for (std::thread& thread : threads) thread.join();
    model.load_state_dict(next.state_dict());  // now that nobody reads them
    std::cout << answered << " answers, " << wrong << " wrong; the next model's loss " << loss << '\n';
    return answered == 160 && wrong == 0 && loss < 0.1 ? 0 : 1;
}
