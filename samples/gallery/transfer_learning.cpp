// Transfer learning: a network trained for one task gets a new head for another. Its body is frozen first and
// tuned with a smaller rate afterwards; the best weights are restored at the end.
#include <mezzo/mezzo.h>

#include <iostream>

namespace mz = mezzo;
namespace nn = mezzo::nn;

namespace {

constexpr std::int64_t features = 16;

// The two tasks depend on the same hidden directions.
mz::Tensor directions() {
    mz::manual_seed(11);
    return mz::randn({features, 3});
}

struct Data {
    mz::Tensor x, y;
};

Data first_task(std::int64_t n) {
    const mz::Tensor x = mz::randn({n, features});
    return {x, x.matmul(directions()).tanh().argmax(1)};
}

Data second_task(std::int64_t n) {
    const mz::Tensor x = mz::randn({n, features});
    return {x, (x.matmul(directions()).tanh().sum(1) > 0).to(mz::int64)};
}

double accuracy(const nn::Sequential& model, const Data& data) {
    const mz::NoGrad plain;
    return (model(data.x).argmax(1) == data.y).to(mz::float32).mean().item<double>();
}

double train(nn::Sequential& model, mz::optim::Optimizer& optimizer, const Data& data, const Data& held_out,
             int steps) {
    double best = 0;
    mz::StateDict best_weights = model.snapshot();  // a state_dict() would follow the training
    for (int step = 0; step < steps; ++step) {
        optimizer.zero_grad();
        mz::cross_entropy(model(data.x), data.y).backward();
        optimizer.step();
        if (const double now = accuracy(model, held_out); now > best) {
            best = now;
            best_weights = model.snapshot();
        }
    }
    model.load_state_dict(best_weights);
    return best;
}

}  // namespace

int main() {
    const Data large = first_task(2000), large_test = first_task(500);
    const Data small = second_task(120), small_test = second_task(1000);
    mz::manual_seed(5);

    nn::Sequential body{nn::Linear(features, 64), nn::ReLU(), nn::Linear(64, 32), nn::ReLU()};
    nn::Sequential pretrained{body, nn::Linear(32, 3)};  // shares the body's weights
    mz::optim::Adam pretraining(pretrained.parameters(), {.lr = 3e-3});
    std::cout << "first task: " << train(pretrained, pretraining, large, large_test, 60) << '\n';

    nn::Sequential own_body = nn::clone(body);  // weights of its own: the first model stays as it is
    nn::Sequential model{own_body, nn::Linear(32, 2)};
    own_body.freeze();
    std::cout << model.num_parameters(true) << " of " << model.num_parameters()
              << " parameters are trained\n";
    mz::optim::Adam head(model[1].parameters(), {.lr = 1e-2});
    const double frozen = train(model, head, small, small_test, 60);

    own_body.unfreeze();
    mz::optim::Adam all({{.params = own_body.parameters(), .options = {.lr = 1e-4}},
                         {.params = model[1].parameters(), .options = {.lr = 1e-3}}});
    const double tuned = train(model, all, small, small_test, 30);
    std::cout << "second task: head alone " << frozen << ", then all " << tuned << '\n';
    return frozen > 0.7 && tuned >= frozen - 0.02 && accuracy(pretrained, large_test) > 0.8 ? 0 : 1;
}
