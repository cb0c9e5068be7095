// A convolutional network on small images, with a data loader, batch norm, a schedule of two parts and a
// summary. Images are [batch, height, width, channels].
#include <mezzo/data/loader.h>
#include <mezzo/insight/summary.h>
#include <mezzo/mezzo.h>

#include <iostream>

namespace mz = mezzo;
namespace nn = mezzo::nn;

namespace {

struct Cnn : nn::Module {
    nn::Conv2d conv1{1, 8, 3, {.padding = 1, .bias = false}};
    nn::BatchNorm2d bn1{8};
    nn::Conv2d conv2{8, 16, 3, {.stride = 2, .padding = 1}};
    nn::Linear fc{16, 3};
    mz::Tensor operator()(const mz::Tensor& x) const {
        mz::Tensor y = mz::max_pool2d(mz::relu(bn1(conv1(x))), {.kernel_size = 2});
        y = mz::relu(conv2(y));
        return fc(y.max({1, 2}));
    }
    MEZZO_MODULE(Cnn, conv1, bn1, conv2, fc)
};

// Noise with a bright row, column or diagonal.
mz::data::Dataset lines(std::int64_t n) {
    const mz::Tensor x = 0.4 * mz::randn({n, 12, 12, 1}), label = mz::randint(0, 3, {n});
    const mz::Tensor at = mz::randint(0, 12, {n});
    for (std::int64_t i = 0; i < n; ++i) {
        const std::int64_t kind = label[i].item<std::int64_t>(), k = at[i].item<std::int64_t>();
        const mz::Tensor image = x[{i, mz::ellipsis, 0}];  // a view: writing to it writes to x
        if (kind == 0) image[k].fill_(2);
        if (kind == 1) image[{mz::Slice(), k}].fill_(2);
        if (kind == 2) image.add_(mz::eye(12), 2);
    }
    return {x, label};
}

}  // namespace

int main() {
    mz::manual_seed(9);
    const mz::data::Dataset train = lines(600), test = lines(300);
    Cnn net;
    std::cout << nn::summary(net, train.x[mz::Slice(0, 1)]);
    mz::optim::SGD optimizer(net.parameters(), {.lr = 0.1, .momentum = 0.9});
    // Two schedules of one optimizer are one schedule: PyTorch's SequentialLR.
    mz::optim::SequentialLR schedule(optimizer,
                                     {mz::optim::LinearWarmup(optimizer, {.warmup_steps = 10}),
                                      mz::optim::CosineAnnealingLR(optimizer, {.t_max = 80})},
                                     {10});
    mz::data::DataLoader loader(train, {.batch_size = 32, .shuffle = true});
    for (int epoch = 0; epoch < 4; ++epoch)
        for (const auto& [x, y] : loader) {
            optimizer.zero_grad();
            mz::cross_entropy(net(x), y).backward();
            optimizer.step();
            schedule.step();
        }
    net.eval();
    const mz::NoGrad plain;
    const mz::Tensor guess = net(test.x).argmax(1);
    const double accuracy = (guess == test.y).to(mz::float32).mean().item<double>();
    std::cout << 100 * accuracy << " % right, last rate " << optimizer.lr() << '\n';
    return accuracy > 0.9 ? 0 : 1;
}
