// A program outside the library: public headers only, an optimizer and an op of its own. It trains in float16
// with a loss scaler, stops in between, and a second run from the checkpoint ends with the same bits as a run
// without a stop. It returns 0 if all of that holds.
#include <mezzo/mezzo.h>

#include <cmath>
#include <cstdio>
#include <limits>
#include <string>

namespace mz = mezzo;

namespace {

// x * sigmoid(1.702 x), with a gradient of its own.
struct QuickGelu : mz::autograd::Function<QuickGelu> {
    static mz::Tensors forward(mz::autograd::Context& context, const mz::Tensors& in) {
        context.saved = in;
        return {in[0] * mz::sigmoid(1.702 * in[0])};
    }
    static mz::Tensors backward(mz::autograd::Context& context, const mz::Tensors& g) {
        const mz::Tensor x = context.saved[0], s = mz::sigmoid(1.702 * x);
        return {g[0] * (s + 1.702 * x * s * (1.0 - s))};
    }
};

// Momentum whose steps have the length of the gradient's square root, element by element.
class RootMomentum : public mz::optim::CustomOptimizer {
public:
    explicit RootMomentum(const mz::Tensors& params, double lr)
        : CustomOptimizer({"RootMomentum", {{"lr", lr}, {"momentum", 0.9}}, {"velocity"}}, {{params}}) {}

protected:
    void update(mz::optim::ParameterUpdate& p) override {
        mz::Tensor& v = p.state("velocity");
        v = p.option("momentum") * v + mz::sign(p.grad) * mz::sqrt(mz::abs(p.grad));
        p.value = p.value - p.lr * v;
    }
};

class Net : public mz::nn::Module {
public:
    Net() : first_(4, 16), second_(16, 2) {}
    mz::Tensor operator()(const mz::Tensor& x) const { return second_(QuickGelu::apply({first_(x)})[0]); }
    MEZZO_MODULE(Net, first_, second_)

private:
    mz::nn::Linear first_, second_;
};

struct Run {
    Net net;
    RootMomentum optimizer;
    mz::amp::GradScaler scaler{{.init_scale = 1024, .growth_interval = 4}};
    mz::Tensor x, y;
    float first = 0, last = 0;

    explicit Run(std::uint64_t seed)
        : net((mz::manual_seed(seed), Net())), optimizer(net.parameters(), 0.01) {
        mz::manual_seed(5);
        x = mz::randn({16, 4});
        y = mz::randint(0, 2, {16});
    }
    // Step 3 overflows, and is skipped.
    void train(int from, int to) {
        for (int i = from; i < to; ++i) {
            mz::Tensor loss;
            {
                mz::amp::Autocast scope({.dtype = mz::float16});
                const mz::Tensor noisy = mz::dropout(x, 0.1);
                loss = mz::cross_entropy(net(noisy), y);
            }
            last = loss.item<float>();
            if (i == 0) first = last;
            if (i == 3) loss = loss * double(std::numeric_limits<float>::max());
            optimizer.zero_grad();
            scaler.scale(loss).backward();
            scaler.step(optimizer);
            scaler.update();
        }
    }
    bool same(const Run& other) const {
        for (std::size_t i = 0; i < net.parameters().size(); ++i)
            if (net.parameters()[i].to_vector<float>() != other.net.parameters()[i].to_vector<float>())
                return false;
        return scaler.get_scale() == other.scaler.get_scale();
    }
};

int failed(const char* what) {
    std::fprintf(stderr, "%s\n", what);
    return 1;
}

}  // namespace

int main() {
    const std::string path = "external_program.ckpt";
    Run straight(1);
    straight.train(0, 30);
    {
        Run first(1);
        first.train(0, 7);
        mz::io::save_checkpoint(path, {.model = first.net.state_dict(),
                                       .optimizer = first.optimizer.state_dict(),
                                       .scaler = first.scaler.state_dict()});
    }
    Run resumed(2);
    if (resumed.same(straight)) return failed("a fresh run has the weights of a trained one");
    const mz::io::Checkpoint saved = mz::io::load_checkpoint(path);
    std::remove(path.c_str());
    resumed.net.load_state_dict(saved.model);
    resumed.optimizer.load_state_dict(saved.optimizer);
    resumed.scaler.load_state_dict(saved.scaler);
    mz::set_random_state(saved.random);
    resumed.train(7, 30);
    if (!resumed.same(straight)) return failed("the resumed run differs from the one without a stop");
    if (straight.optimizer.skipped_steps() < 1 ||
        resumed.optimizer.applied_steps() != straight.optimizer.applied_steps())
        return failed("the counts of steps are wrong");
    if (!(straight.last < 0.7f * straight.first)) return failed("the loss did not fall");
    return 0;
}
