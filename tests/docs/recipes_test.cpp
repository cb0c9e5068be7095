// Code of docs/guide/mixed_precision.md, training.md, data.md, debugging.md and extending.md: training steps.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "core/tensor_impl.h"
#include "mezzo/data/loader.h"
#include "mezzo/data/prefetch.h"
#include "mezzo/data/transforms.h"
#include "mezzo/mezzo.h"

namespace mz = mezzo;

namespace {

std::vector<float> floats(const mz::Tensor& x) { return x.to_vector<float>(); }

mz::nn::Sequential small_net(std::uint64_t seed) {
    mz::manual_seed(seed);
    return mz::nn::Sequential{mz::nn::Linear(4, 8), mz::nn::GELU(), mz::nn::Linear(8, 2)};
}

// begin
mz::Tensor focal_loss(const mz::Tensor& logits, const mz::Tensor& target, double alpha, double gamma) {
    const mz::Tensor positive = target == 1;
    const mz::Tensor missed = mz::sigmoid(mz::where(positive, -logits, logits));  // 1 - p of the right class
    const mz::Tensor weight = mz::where(positive, alpha, 1 - alpha) * missed.pow(gamma);
    return mz::binary_cross_entropy_with_logits(logits, target, {.weight = weight});
}
// end

mz::data::Dataset samples() {
    mz::manual_seed(11);
    return {mz::randn({16, 4}), mz::randint(0, 2, {16})};
}

}  // namespace

TEST_CASE("recipe: a training step", "[recipes]") {
    mz::nn::Sequential net = small_net(1);
    mz::data::DataLoader loader(samples(), {.batch_size = 8});
    float first = 0, last = 0;
    mz::optim::AdamW optimizer(net.parameters(), {.lr = 3e-2});
    mz::amp::GradScaler scaler;
    for (int epoch = 0; epoch < 20; ++epoch) {
        for (const auto& [x, y] : loader) {
            mz::Tensor loss;
            {
                mz::amp::Autocast scope({.dtype = mz::float16});
                loss = mz::cross_entropy(net(x), y);
            }
            optimizer.zero_grad();
            scaler.scale(loss).backward();
            scaler.step(optimizer);
            scaler.update();
            last = loss.item<float>();
            if (first == 0) first = last;
        }
    }
    CHECK(last < 0.8f * first);
    CHECK(optimizer.applied_steps() == 40);
}

TEST_CASE("recipe: accumulation", "[recipes]") {
    const mz::data::Dataset data = samples();
    mz::nn::Sequential net = small_net(2), whole = small_net(2);
    mz::optim::SGD optimizer(net.parameters(), {.lr = 0.1}), reference(whole.parameters(), {.lr = 0.1});
    mz::amp::GradScaler scaler({.init_scale = 1024});
    mz::data::DataLoader loader(data, {.batch_size = 4});
    // begin
    const std::int64_t micro_batches = 4;
    std::int64_t count = 0;
    for (const auto& [x, y] : loader) {
        const mz::Tensor loss = mz::cross_entropy(net(x), y) / double(micro_batches);
        scaler.scale(loss).backward();
        if (++count % micro_batches != 0) continue;
        scaler.step(optimizer);
        scaler.update();
        optimizer.zero_grad();
    }
    // end
    mz::cross_entropy(whole(data.x), data.y).backward();
    reference.step();
    for (std::size_t i = 0; i < net.parameters().size(); ++i)
        CHECK(mz::all_close(net.parameters()[i], whole.parameters()[i], 1e-5, 1e-6));
}

TEST_CASE("recipe: clipping", "[recipes]") {
    mz::nn::Sequential net = small_net(3);
    mz::optim::SGD optimizer(net.parameters(), {.lr = 1});
    mz::amp::GradScaler scaler;
    const mz::data::Dataset data = samples();
    const std::vector<mz::Tensor> before = [&] {
        std::vector<mz::Tensor> values;
        for (const mz::Tensor& p : net.parameters()) values.push_back(p.detach().clone());
        return values;
    }();
    const mz::Tensor loss = mz::cross_entropy(net(data.x), data.y);
    scaler.scale(loss).backward();
    scaler.unscale_(optimizer);
    mz::nn::clip_grad_norm_(net.parameters(), 0.01);
    scaler.step(optimizer);
    scaler.update();
    double squares = 0;
    for (std::size_t i = 0; i < before.size(); ++i)
        for (const float d : floats(net.parameters()[i].detach() - before[i]))
            squares += double(d) * double(d);
    CHECK(std::sqrt(squares) == Approx(0.01).epsilon(1e-3));
}

TEST_CASE("recipe: gradient penalty", "[recipes]") {
    const mz::Tensor w = mz::Tensor::from({2}).set_requires_grad(), x = mz::Tensor::from({3});
    mz::optim::SGD optimizer({w}, {.lr = 0.125});
    mz::amp::GradScaler scaler({.init_scale = 1024});
    const mz::Tensor loss = mz::sum(mz::square(w * x)) * 0.5;
    // begin
    const mz::Tensors scaled = mz::autograd::grad({scaler.scale(loss)}, {w}, {.create_graph = true});
    const mz::Tensor gradient = scaled[0] * (1 / scaler.get_scale());
    const mz::Tensor total = loss + mz::norm(gradient);
    scaler.scale(total).backward();
    scaler.step(optimizer);
    scaler.update();
    // end
    CHECK(scaled[0].item<float>() == 18432);
    CHECK(gradient.item<float>() == 18);
    CHECK(total.item<float>() == 36);
    CHECK(w.grad().item<float>() == 27);  // 27648 / 1024
    CHECK(w.item<float>() == -1.375f);
}

TEST_CASE("recipe: the scaled gradient of the penalty", "[recipes]") {
    const mz::Tensor w = mz::Tensor::from({2}).set_requires_grad();
    mz::amp::GradScaler scaler({.init_scale = 1024});
    const mz::Tensor loss = mz::sum(mz::square(w * 3.0)) * 0.5;
    const mz::Tensor inner = mz::autograd::grad({scaler.scale(loss)}, {w}, {.create_graph = true})[0];
    scaler.scale(loss + mz::norm(inner * (1.0 / 1024))).backward();
    CHECK(w.grad().item<float>() == 27648);
}

TEST_CASE("recipe: several losses, models and optimizers", "[recipes]") {
    mz::nn::Linear encoder(4, 4), first(4, 1), second(4, 1);
    mz::optim::SGD shared(encoder.parameters(), {.lr = 0.1});
    mz::optim::AdamW heads(
        {{.params = first.parameters()}, {.params = second.parameters(), .options = {.lr = 1e-2}}});
    mz::amp::GradScaler scaler({.init_scale = 1024});
    const mz::Tensor x = mz::ones({3, 4});
    // begin
    mz::Tensor loss_a, loss_b;
    {
        mz::amp::Autocast scope;
        const mz::Tensor features = encoder(x);
        loss_a = mz::mean(mz::square(first(features)));
        loss_b = mz::mean(mz::square(second(features) - 1.0));
    }
    scaler.scale(loss_a).backward({.retain_graph = true});
    scaler.scale(loss_b).backward();
    scaler.unscale_(shared);  // as many or few as wanted
    mz::nn::clip_grad_norm_(encoder.parameters(), 1);
    scaler.step(shared);
    scaler.step(heads);
    scaler.update();
    // end
    CHECK(shared.applied_steps() == 1);
    CHECK(heads.applied_steps() == 1);
    CHECK(encoder.weight.grad().defined());
}

TEST_CASE("recipe: a skipped step", "[recipes]") {
    const mz::Tensor w = mz::Tensor::from({1}).set_requires_grad();
    mz::optim::SGD optimizer(mz::StateDict{{"w", w}}, {.lr = 1});
    mz::optim::ExponentialLR schedule(optimizer, 0.5);
    mz::amp::GradScaler scaler({.init_scale = 1024});
    scaler.scale(mz::sum(w * double(std::numeric_limits<float>::infinity()))).backward();
    std::vector<std::string> culprits;
    // begin
    const mz::amp::StepResult result = scaler.step(optimizer);
    if (result.skipped()) culprits = scaler.overflowed_parameters(optimizer);  // asking waits for the device
    scaler.update();
    schedule.step();  // advances only with applied steps
    // end
    CHECK(culprits == std::vector<std::string>{"w (parameter 0)"});
    CHECK(optimizer.lr() == 1);
}

TEST_CASE("recipe: running a batch again after an overflow", "[recipes]") {
    // The product of x = 64 and the scaled gradient leaves float16 at scale 65536.
    const mz::Tensor w = mz::Tensor::from({1}, {1, 1}).set_requires_grad(),
                     x = mz::full({1, 1}, 64).set_requires_grad();
    mz::optim::SGD optimizer({w}, {.lr = 1.0 / 64});
    mz::amp::GradScaler scaler;
    const auto forward = [&] {
        mz::amp::Autocast scope;
        return mz::sum(mz::matmul(x, w));
    };
    int runs = 0;
    // begin
    for (;;) {
        optimizer.zero_grad();
        scaler.scale(forward()).backward();
        scaler.unscale_(optimizer);
        ++runs;
        if (!scaler.found_inf()) break;
        scaler.update();  // lowers the scale
    }
    scaler.step(optimizer);
    scaler.update();
    // end
    CHECK(runs > 1);
    CHECK(w.item<float>() == 0);
}

TEST_CASE("recipe: inference", "[recipes]") {
    mz::nn::Sequential net = small_net(4);
    const mz::Tensor x = mz::ones({2, 4});
    // begin
    net.eval();
    mz::NoGrad no_grad;
    mz::amp::Autocast scope({.dtype = mz::bfloat16});
    const mz::Tensor prediction = mz::argmax(net(x), 1);
    // end
    CHECK(prediction.shape() == mz::Shape{2});
    CHECK_FALSE(prediction.requires_grad());
}

TEST_CASE("recipe: checkpointing", "[recipes]") {
    mz::nn::Sequential block{mz::nn::Linear(4, 64), mz::nn::GELU(), mz::nn::Dropout(0.5),
                             mz::nn::Linear(64, 4)};
    const mz::Tensor x = mz::ones({8, 4});
    const auto gradients = [&](bool save_memory) {
        block.zero_grad();
        mz::manual_seed(5);
        mz::Tensor loss;
        {
            mz::amp::Autocast scope;
            // begin
            const mz::Tensor y =
                save_memory ? mz::autograd::checkpoint(
                                  [&](const mz::Tensors& in) { return mz::Tensors{block(in[0])}; }, {x})[0]
                            : block(x);
            // end
            loss = mz::sum(y);
        }
        loss.backward();
        std::vector<std::vector<float>> result;
        for (const mz::Tensor& p : block.parameters()) result.push_back(floats(p.grad()));
        return result;
    };
    CHECK(gradients(true) == gradients(false));
}

struct Clamped : mz::autograd::Function<Clamped> {
    // Limits values to [-1, 1] and lets the gradient through everywhere (a straight-through estimator).
    static mz::Tensors forward(mz::autograd::Context&, const mz::Tensors& in) {
        return {mz::clamp(in[0], -1, 1)};
    }
    static mz::Tensors backward(mz::autograd::Context&, const mz::Tensors& g) { return {g[0]}; }
};

TEST_CASE("recipe: a function with a gradient of its own", "[recipes]") {
    const mz::Tensor x = mz::Tensor::from({-3, 0.5, 2}).set_requires_grad();
    const mz::Tensor y = Clamped::apply({x})[0];
    mz::sum(y).backward();
    CHECK(floats(y) == std::vector<float>{-1, 0.5, 1});
    CHECK(floats(x.grad()) == std::vector<float>{1, 1, 1});
}

namespace {
// begin
class SignDescent : public mz::optim::CustomOptimizer {
public:
    explicit SignDescent(const std::vector<mz::optim::CustomGroup>& groups)
        : CustomOptimizer({.name = "SignDescent",
                           .options = {{"lr", 1e-3}, {"momentum", 0.9}, {"maximize", 0}},
                           .state = {"average"}},
                          groups) {}

protected:
    void update(mz::optim::ParameterUpdate& p) override {
        mz::Tensor& average = p.state("average");
        const double momentum = p.option("momentum");
        average = momentum * average + (1 - momentum) * p.grad;
        p.value = p.value - p.lr * mz::sign(average);
    }
};
// end
}  // namespace

TEST_CASE("recipe: an optimizer of one's own", "[recipes]") {
    mz::nn::Sequential net = small_net(8);
    const mz::data::Dataset data = samples();
    float first = 0, last = 0;
    // begin
    SignDescent optimizer({{.params = net.parameters(), .options = {{"lr", 0.02}}}});
    mz::optim::CosineAnnealingLR schedule(optimizer, {.t_max = 30});
    mz::amp::GradScaler scaler;
    // end
    for (int i = 0; i < 30; ++i) {
        mz::Tensor loss;
        {
            mz::amp::Autocast scope({.dtype = mz::float16});
            loss = mz::cross_entropy(net(data.x), data.y);
        }
        optimizer.zero_grad();
        scaler.scale(loss).backward();
        scaler.step(optimizer);
        scaler.update();
        schedule.step();
        last = loss.item<float>();
        if (first == 0) first = last;
    }
    CHECK(last < 0.8f * first);
    CHECK(optimizer.applied_steps() == 30);
}

TEST_CASE("recipe: averaged weights", "[recipes]") {
    mz::nn::Sequential net = small_net(9), evaluated = small_net(10);
    const mz::data::Dataset data = samples();
    mz::optim::SGD optimizer(net.parameters(), {.lr = 0.1});
    const auto train_step = [&] {
        mz::cross_entropy(net(data.x), data.y).backward();
        optimizer.step();
        optimizer.zero_grad();
    };
    // begin
    mz::optim::AveragedModel average(net, {.average = mz::optim::ema_average(0.9)});
    for (int i = 0; i < 20; ++i) {
        train_step();
        average.update_parameters(net);
    }
    average.copy_to(evaluated);  // a second model of the same layers
    // end
    const float trained = mz::cross_entropy(net(data.x), data.y).item<float>();
    CHECK(mz::cross_entropy(evaluated(data.x), data.y).item<float>() == Approx(trained).epsilon(0.05));
    CHECK_FALSE(mz::all_close(evaluated.parameters()[0], net.parameters()[0], 1e-5, 1e-6));
}

TEST_CASE("recipe: a step as a CUDA graph", "[recipes]") {
    mz::nn::Sequential net = small_net(8);
    net.to(mz::best_device());
    mz::data::DataLoader loader(samples(), {.batch_size = 8});
    float first = 0, last = 0;
    mz::optim::AdamW optimizer(net.parameters(), {.lr = 3e-2});
    mz::optim::CosineAnnealingLR schedule(optimizer, {.t_max = 1000});
    mz::amp::GradScaler scaler;
    mz::cuda::CapturedStep step([&](const mz::Tensors& in) {
        mz::Tensor loss;
        {
            mz::amp::Autocast scope({.dtype = mz::float16});
            loss = mz::cross_entropy(net(in[0]), in[1]);
        }
        scaler.scale(loss).backward();
        scaler.step(optimizer);
        scaler.update();
        optimizer.zero_grad();
        return mz::Tensors{loss};
    });
    for (int epoch = 0; epoch < 20; ++epoch) {
        for (const auto& [x, y] : loader) {
            const mz::Tensor loss = step({x, y})[0];
            schedule.step();
            last = loss.item<float>();
            if (first == 0) first = last;
        }
    }
    CHECK(last < 0.7f * first);
}

TEST_CASE("recipe: copying batches ahead", "[recipes]") {
    const mz::data::Dataset dataset = samples();
    mz::nn::Sequential net = small_net(8);
    net.to(mz::best_device());
    mz::optim::SGD optimizer(net.parameters(), {.lr = 0.1});
    std::int64_t seen = 0;
    const auto train_step = [&](const mz::Tensor& x, const mz::Tensor& y) {
        mz::cross_entropy(net(x), y).backward();
        optimizer.step();
        optimizer.zero_grad();
        seen += x.size(0);
    };
    // begin
    mz::data::DataLoader loader(
        dataset, {.batch_size = 8, .shuffle = true, .device = mz::best_device(), .prefetch = 2});
    for (const auto& [x, y] : loader) train_step(x, y);
    // end
    CHECK(seen == dataset.size());
    const std::vector<mz::data::Batch> batches{{dataset.x, dataset.y}, {dataset.x, dataset.y}};
    // begin
    for (const auto& [x, y] : mz::data::prefetch(batches, {.device = mz::best_device(), .ahead = 1}))
        train_step(x, y);
    // end
    CHECK(seen == 3 * dataset.size());
}

TEST_CASE("recipe: out of memory", "[recipes]") {
    mz::data::Dataset data = samples();
    mz::nn::Sequential net = small_net(8);
    mz::optim::SGD optimizer(net.parameters(), {.lr = 0.1});
    std::int64_t micro_batches = 1, failures = 0;
    const auto train_step = [&] {
        const std::int64_t rows = data.size() / micro_batches;
        if (micro_batches < 4) {
            ++failures;
            mz::empty({std::int64_t{1} << 50});
        }
        for (std::int64_t i = 0; i < micro_batches; ++i) {
            const mz::Tensor x = data.x.slice(0, i * rows, (i + 1) * rows),
                             y = data.y.slice(0, i * rows, (i + 1) * rows);
            (mz::cross_entropy(net(x), y) / double(micro_batches)).backward();
        }
        optimizer.step();
    };
    // begin
    for (bool done = false; !done;) {
        optimizer.zero_grad();
        try {
            train_step();
            done = true;
        } catch (const mz::Error& error) {
            if (error.kind() != mz::ErrorKind::memory || micro_batches >= 64) throw;
            micro_batches *= 2;
        }
    }
    // end
    CHECK(micro_batches == 4);
    CHECK(failures == 2);
    CHECK(optimizer.applied_steps() == 1);
}

TEST_CASE("recipe: focal loss", "[recipes]") {
    const std::vector<double> logit{-2, 0.5, 3, -1}, target{1, 1, 0, 0};
    double wanted = 0, gradient = 0;
    const auto value = [&](double x, double t) {
        const double p = 1 / (1 + std::exp(t == 1 ? -x : x));
        return -(t == 1 ? 0.25 : 0.75) * std::pow(1 - p, 2) * std::log(p);
    };
    for (std::size_t i = 0; i < 4; ++i) wanted += value(logit[i], target[i]) / 4;
    gradient = (value(3 + 1e-5, 0) - value(3 - 1e-5, 0)) / 2e-5 / 4;
    const mz::Tensor x = mz::Tensor::from(logit, {4}).set_requires_grad();
    const mz::Tensor loss = focal_loss(x, mz::Tensor::from(target, {4}), 0.25, 2);
    loss.backward();
    CHECK(loss.item<double>() == Approx(wanted));
    CHECK(x.grad()[2].item<double>() == Approx(gradient));
}

TEST_CASE("recipe: float32 inside a 16-bit region", "[recipes]") {
    const mz::Tensor x = mz::full({1, 1}, 300);
    mz::Tensor product, y;
    // begin
    {
        mz::amp::Autocast scope;
        product = mz::matmul(x, mz::ones({1, 1}));
        {
            mz::amp::Autocast off({.enabled = false});
            y = mz::matmul(product.to(mz::float32), x);
        }
    }
    // end
    CHECK(product.dtype() == mz::float16);
    CHECK(y.item<float>() == 90000);
}

TEST_CASE("recipe: saving and resuming", "[recipes]") {
    const mz::data::Dataset data = samples();
    const auto train = [&](mz::nn::Sequential& net, mz::optim::Optimizer& optimizer,
                           mz::amp::GradScaler& scaler, int steps) {
        for (int i = 0; i < steps; ++i) {
            mz::Tensor loss;
            {
                mz::amp::Autocast scope;
                loss = mz::cross_entropy(net(data.x), data.y);
            }
            optimizer.zero_grad();
            scaler.scale(loss).backward();
            scaler.step(optimizer);
            scaler.update();
        }
    };
    mz::nn::Sequential net = small_net(6), restored = small_net(7), straight = small_net(6);
    mz::optim::AdamW optimizer(net.parameters()), resumed(restored.parameters()),
        reference(straight.parameters());
    mz::amp::GradScaler scaler({.growth_interval = 3}), again, third({.growth_interval = 3});
    train(net, optimizer, scaler, 4);
    const mz::StateDict model_state = net.state_dict(), optimizer_state = optimizer.state_dict(),
                        scaler_state = scaler.state_dict();
    restored.load_state_dict(model_state);
    resumed.load_state_dict(optimizer_state);
    again.load_state_dict(scaler_state);
    train(restored, resumed, again, 4);
    train(straight, reference, third, 8);
    for (std::size_t i = 0; i < net.parameters().size(); ++i)
        CHECK(floats(restored.parameters()[i]) == floats(straight.parameters()[i]));
    CHECK(again.get_scale() == third.get_scale());
}
