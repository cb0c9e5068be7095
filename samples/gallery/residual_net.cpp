// A network with residual blocks of one's own, in three precisions: it separates two spirals in float32,
// bfloat16 and float16.
#include <mezzo/mezzo.h>

#include <iostream>

namespace mz = mezzo;
namespace nn = mezzo::nn;

namespace {

// begin
struct Block : nn::Module {
    explicit Block(std::int64_t width) : norm(width), up(width, 2 * width), down(2 * width, width) {}
    mz::Tensor operator()(const mz::Tensor& x) const {
        mz::Tensor y = down(mz::gelu(up(norm(x))));
        y += x;  // y is another tensor from here on: x keeps its elements
        return y;
    }
    nn::LayerNorm norm;
    nn::Linear up, down;
    MEZZO_MODULE(Block, norm, up, down)
};

struct Net : nn::Module {
    explicit Net(std::int64_t depth) : blocks(std::size_t(depth), Block(32)) {
        for (Block& block : blocks) block = nn::clone(block);  // the vector's copies share their weights
    }
    mz::Tensor operator()(const mz::Tensor& x) const {
        mz::Tensor y = first(x);
        for (const Block& block : blocks) y = block(y);
        return last(y);
    }
    nn::Linear first{2, 32};
    std::vector<Block> blocks;
    nn::Linear last{32, 2};
    MEZZO_MODULE(Net, first, blocks, last)
};
// end

struct Spirals {
    mz::Tensor points, labels;
};

Spirals spirals(std::int64_t n) {
    const mz::Tensor label = mz::arange(n).remainder(2.0), t = 3 * mz::rand(n) + 0.3;
    const mz::Tensor angle = 3 * t + label.to(mz::float32) * 3.14159;
    const mz::Tensor points = mz::stack({t * angle.cos(), t * angle.sin()}, 1);
    return {points + 0.03 * mz::randn_like(points), label};
}

double train(mz::Dtype precision, const Spirals& data) {
    mz::manual_seed(2);
    Net net(3);
    mz::optim::AdamW optimizer(net.parameters(), {.lr = 3e-3});
    mz::amp::GradScaler scaler({.enabled = precision == mz::float16});
    for (int step = 0; step < 120; ++step) {
        mz::Tensor loss;
        {
            const mz::amp::Autocast scope({.dtype = precision});  // off in float32
            loss = mz::cross_entropy(net(data.points), data.labels);
        }
        optimizer.zero_grad();
        scaler.scale(loss).backward();
        scaler.step(optimizer);
        scaler.update();
    }
    const mz::NoGrad plain;
    return (net(data.points).argmax(1) == data.labels).to(mz::float32).mean().item<double>();
}

}  // namespace

int main() {
    mz::manual_seed(1);
    const Spirals data = spirals(512);
    bool good = true;
    for (const mz::Dtype precision : {mz::float32, mz::bfloat16, mz::float16}) {
        const double accuracy = train(precision, data);
        std::cout << precision << ": " << 100 * accuracy << " % right\n";
        good = good && accuracy > 0.95;
    }
    return good ? 0 : 1;
}
