// batch_norm and its layers: values and running statistics of PyTorch, updates of the statistics, and numbers
// of very different sizes.
#include <catch2/catch.hpp>

#include <cmath>
#include <limits>

#include "autograd/op.h"
#include "cpu/isa/isa.h"
#include "mezzo/mezzo.h"
#include "tests/support/support.h"

using namespace mezzo;
using namespace mezzo::test;
using Catch::Matchers::Contains;

namespace {

constexpr double inf = std::numeric_limits<double>::infinity();

// Images [2, 2, 2, 3] by a formula that the script of the golden values uses as well.
Tensor image(int step, Device device = cpu_device, Dtype dtype = float32) {
    std::vector<double> values;
    for (int i = 0; i < 24; ++i) values.push_back((i * 37 + step * 11) % 19 / 8.0 - 1);
    return tensor_of(values, {2, 2, 2, 3}, dtype, device);
}

nn::BatchNorm2d golden_norm(double momentum, Device device, Dtype dtype = float32) {
    nn::BatchNorm2d norm(3, {.momentum = momentum, .device = device, .dtype = dtype});
    NoGrad plain;
    norm.weight.copy_(Tensor::from({0.5f, 1.5f, -2.0f}));
    norm.bias.copy_(Tensor::from({0.25f, -0.5f, 1.0f}));
    return norm;
}

std::vector<double> first_six(const Tensor& x) {
    std::vector<double> values = doubles(x);
    values.resize(6);
    return values;
}

void check_close(const std::vector<double>& actual, const std::vector<double>& wanted,
                 double allowed = 1e-6) {
    CHECK(difference(actual, wanted, {allowed, allowed}) == "");
}

struct State {
    explicit State(const nn::BatchNorm2d& norm)
        : mean(doubles(norm.running_mean)),
          var(doubles(norm.running_var)),
          batches(norm.num_batches_tracked.item<std::int64_t>()) {}
    bool operator==(const State&) const = default;
    std::vector<double> mean, var;
    std::int64_t batches;
};

}  // namespace

TEST_CASE("batch_norm: three steps, gradients and evaluation as in PyTorch 2.15", "[batch_norm]") {
    for (const Device device : devices()) {
        CAPTURE(name(device.type()));
        nn::BatchNorm2d norm = golden_norm(0.1, device);
        Tensor x, y;
        for (int step = 0; step < 3; ++step) {
            x = image(step, device).set_requires_grad();
            y = norm(x);
        }
        y.backward({.gradient = image(5, device)});
        check_close(doubles(norm.running_mean), {0.0119375, 0.031796875, 0.05165625});
        check_close(doubles(norm.running_var), {0.8739375, 0.885902623, 0.876757813});
        CHECK(norm.num_batches_tracked.item<int>() == 3);
        check_close(first_six(y), {-0.095578, -2.01328107, 3.76685731, -0.3720404, 1.93977968, -1.44134468});
        check_close(first_six(x.grad()),
                    {0.34572875, 1.04472306, -1.85337434, -0.07805967, 1.2854883, -0.91132729});
        check_close(doubles(norm.weight.grad()), {-2.8913359468, -1.5081338515, -0.040689078});
        check_close(doubles(norm.bias.grad()), {3.25, 2.25, 1.25});
        norm.eval();
        check_close(first_six(norm(image(4, device))),
                    {0.10990423, -1.14829612, 2.17830098, -0.09066236, -1.74591882, 2.97927599});
        CHECK(norm.num_batches_tracked.item<int>() == 3);
    }
}

TEST_CASE("batch_norm: momentum 1 and the mean over all batches as in PyTorch 2.15", "[batch_norm]") {
    struct Golden {
        double momentum;
        std::vector<double> mean, var;
    };
    const Golden all[] = {
        {1, {-0.15625, 0.015625, 0.1875}, {0.525669643, 0.658203125, 0.674107143}},
        {nn::cumulative_average, {0.052083333, 0.125, 0.197916667}, {0.539806548, 0.578683036, 0.539806548}}};
    for (const Device device : devices())
        for (const bool decomposed : {false, true})
            for (const Golden& golden : all) {
                CAPTURE(name(device.type()), decomposed, golden.momentum);
                const nn::BatchNorm2d norm = golden_norm(golden.momentum, device);
                for (int step = 0; step < 3; ++step) {
                    std::unique_ptr<ByDecomposition> reference;
                    if (decomposed) reference = std::make_unique<ByDecomposition>();
                    (void)norm(image(step, device));
                }
                check_close(doubles(norm.running_mean), golden.mean);
                check_close(doubles(norm.running_var), golden.var);
                CHECK(norm.num_batches_tracked.item<int>() == 3);
            }
}

TEST_CASE("batch_norm: running statistics in 16 bit are rounded once a step", "[batch_norm]") {
    for (const Device device : devices())
        for (const Dtype dtype : {float16, bfloat16}) {
            const nn::BatchNorm2d norm = golden_norm(0.1, device, dtype);
            (void)norm(image(0, device, dtype));
            nn::BatchNorm2d exact = golden_norm(0.1, device);
            (void)exact(image(0, device));
            CHECK(norm.running_var.dtype() == dtype);
            CHECK(doubles(norm.running_mean) == doubles(exact.running_mean.to(dtype)));
            CHECK(doubles(norm.running_var) == doubles(exact.running_var.to(dtype)));
        }
}

TEST_CASE("batch_norm: no update in evaluation, or from a batch that is not finite", "[batch_norm]") {
    for (const Device device : devices())
        for (const bool decomposed : {false, true})
            for (const double momentum : {0.1, nn::cumulative_average}) {
                CAPTURE(name(device.type()), decomposed, momentum);
                std::unique_ptr<ByDecomposition> reference;
                if (decomposed) reference = std::make_unique<ByDecomposition>();
                nn::BatchNorm2d norm = golden_norm(momentum, device);
                (void)norm(image(0, device));
                const State before(norm);
                for (const double bad : {inf, -inf, std::nan("")}) {
                    Tensor x = image(1, device).clone();
                    x[1][1][0][2].fill_(bad);
                    const Tensor y = norm(x);
                    CHECK(std::isnan(y[0][0][0][2].item<double>()));
                    CHECK(std::isfinite(y[0][0][0][0].item<double>()));
                    CHECK(State(norm) == before);
                }
                (void)norm(image(1, device) * 1e30);  // the variance overflows
                CHECK(State(norm) == before);
                norm.eval();
                (void)norm(image(1, device));
                CHECK(State(norm) == before);
                norm.train();
                (void)norm(image(1, device));
                CHECK(norm.num_batches_tracked.item<int>() == 2);
                CHECK_FALSE(State(norm) == before);
            }
}

TEST_CASE("batch_norm: a batch of none is counted, and leaves the running statistics", "[batch_norm]") {
    for (const Device device : devices())
        for (const double momentum : {0.1, nn::cumulative_average}) {
            nn::BatchNorm2d norm = golden_norm(momentum, device);
            (void)norm(image(0, device));
            const std::vector<double> mean = doubles(norm.running_mean), variance = doubles(norm.running_var);
            CHECK(norm(zeros({0, 2, 2, 3}, {.device = device})).shape() == Shape{0, 2, 2, 3});
            CHECK(norm.num_batches_tracked.item<int>() == 2);
            norm.eval();
            (void)norm(zeros({0, 2, 2, 3}, {.device = device}));
            CHECK(norm.num_batches_tracked.item<int>() == 2);
            CHECK(doubles(norm.running_mean) == mean);
            CHECK(doubles(norm.running_var) == variance);
        }
}

TEST_CASE("batch_norm: a batch of none has gradients of zero", "[batch_norm]") {
    for (const Device device : devices())
        for (const bool training : {true, false}) {
            nn::BatchNorm2d norm = golden_norm(0.1, device);
            norm.train(training);
            const Tensor x = zeros({0, 2, 2, 3}, {.device = device}).set_requires_grad();
            sum(norm(x, {.relu = true})).backward();
            CHECK(doubles(norm.weight.grad()) == std::vector<double>(3, 0.0));
            CHECK(doubles(norm.bias.grad()) == std::vector<double>(3, 0.0));
            CHECK(x.grad().shape() == x.shape());
        }
}

TEST_CASE("batch_norm: a checkpoint updates running statistics once", "[batch_norm]") {
    for (const Device device : devices())
        for (const bool decomposed : {false, true}) {
            std::unique_ptr<ByDecomposition> reference;
            if (decomposed) reference = std::make_unique<ByDecomposition>();
            const nn::BatchNorm2d plain = golden_norm(0.1, device), checked = golden_norm(0.1, device);
            const Tensor a = image(0, device).set_requires_grad(), b = image(0, device).set_requires_grad();
            sum(square(plain(a))).backward();
            const Tensor y =
                autograd::checkpoint([&](const Tensors& in) { return Tensors{checked(in[0])}; }, {b})[0];
            const State once(checked);
            sum(square(y)).backward();
            CHECK(State(checked) == once);
            CHECK(State(plain) == once);
            CHECK(once.batches == 1);
            CHECK(doubles(a.grad()) == doubles(b.grad()));
            (void)checked(image(1, device));  // after the second run updates are on again
            CHECK(State(checked).batches == 2);
        }
}

TEST_CASE("batch_norm: updates are in-place writes, and the result may be written", "[batch_norm]") {
    for (const Device device : devices()) {
        const nn::BatchNorm2d norm = golden_norm(0.1, device);
        const Tensor x = image(0, device).set_requires_grad();
        const std::uint64_t mean = norm.running_mean.version(), var = norm.running_var.version(),
                            batches = norm.num_batches_tracked.version();
        const Tensor y = norm(x, {.relu = true});
        CHECK(norm.running_mean.version() > mean);
        CHECK(norm.running_var.version() > var);
        CHECK(norm.num_batches_tracked.version() > batches);
        (void)norm(image(1, device));  // running statistics are no part of the gradient
        {
            NoGrad plain;
            y.zero_();  // nor is the result
        }
        const Tensor seed = image(2, device), untouched = image(0, device).set_requires_grad();
        sum(y * seed).backward();
        sum(golden_norm(0.1, device)(untouched, {.relu = true}) * seed).backward();
        CHECK(all_close(x.grad(), untouched.grad(), 0, 0));
        const Tensor z = norm(x);
        {
            NoGrad plain;
            norm.weight.add_(ones({3}, {.device = device}));
        }
        CHECK_THROWS_WITH(sum(z).backward(), Contains("changed in place"));
    }
}

TEST_CASE("batch_norm: a mean far from 0 costs no digits", "[batch_norm]") {
    const std::int64_t rows = 3000;
    std::vector<double> values;
    for (const double v : random_values(rows * 3, 1, Domain::any)) values.push_back(1e4 + 1e-2 * v);
    for (const Device device : devices()) {
        CAPTURE(name(device.type()));
        const Tensor x = tensor_of(values, {rows, 3}, float32, device), exact = x.to(cpu_device).to(float64);
        const nn::BatchNorm1d norm(3, {.eps = 0, .momentum = 1, .device = device});
        const nn::BatchNorm1d reference(3, {.eps = 0, .momentum = 1, .dtype = float64});
        const Tensor y = norm(x), wanted = reference(exact);
        CHECK(difference(doubles(norm.running_var), doubles(reference.running_var), {1e-5, 0}) == "");
        CHECK(difference(doubles(y), doubles(wanted), {1e-4, 1e-4}) == "");
    }
}

TEST_CASE("batch_norm: the largest float16 and a channel of one value", "[batch_norm]") {
    for (const Device device : devices()) {
        std::vector<double> values;
        for (int i = 0; i < 40; ++i)
            for (const double v : {i % 2 ? 65504.0 : -65504.0, 65504.0, 0.1}) values.push_back(v);
        const Tensor x = tensor_of(values, {40, 3}, float16, device);
        const nn::BatchNorm1d norm(3, {.momentum = 1, .device = device});
        NoGrad plain;
        norm.bias.fill_(0.375);
        const std::vector<double> y = doubles(norm(x));
        CHECK(y[0] == Approx(-0.625));
        CHECK(y[3] == Approx(1.375));
        CHECK(y[1] == 0.375);
        CHECK(y[2] == 0.375);
        const std::vector<double> var = doubles(norm.running_var);
        CHECK(var[0] == Approx(65504.0 * 65504.0 * 40 / 39));
        CHECK(var[1] == 0);
        CHECK(var[2] == 0);
        CHECK(doubles(norm.running_mean)[1] == 65504);
    }
}

TEST_CASE("batch_norm: what it refuses", "[batch_norm]") {
    const Tensor x = ones({4, 3}), c = ones({3});
    const Tensor mean = zeros({3}), var = ones({3}), counter = scalar(0, {.dtype = int64});
    CHECK_THROWS_WITH(batch_norm(ones({1, 3}), mean, var), Contains("single value per channel"));
    CHECK_THROWS_WITH(batch_norm(ones({1, 3}), {}, {}, {}, {}, {.training = false}),
                      Contains("single value per channel"));
    CHECK_NOTHROW(batch_norm(ones({1, 3}), mean, var, {}, {}, {.training = false}));
    CHECK_THROWS_WITH(batch_norm(x, mean, {}), Contains("pass both or neither"));
    CHECK_THROWS_WITH(batch_norm(x, ones({4}), var), Contains("running_mean [4]"));
    CHECK_THROWS_WITH(batch_norm(x, mean, var, ones({4})), Contains("weight [4]"));
    CHECK_THROWS_WITH(batch_norm(x, mean, var, c, ones({3, 1})), Contains("bias [3, 1]"));
    CHECK_THROWS_WITH(batch_norm(x, mean, var, {}, {}, {.eps = -1}), Contains("eps -1"));
    CHECK_THROWS_WITH(batch_norm(x, mean, var, {}, {}, {.momentum = 1.5}), Contains("momentum is 1.5"));
    CHECK_THROWS_WITH(batch_norm(x, mean, var, {}, {}, {.momentum = nn::cumulative_average}),
                      Contains("needs num_batches_tracked"));
    CHECK_THROWS_WITH(batch_norm(x, mean, var, {}, {}, {.num_batches_tracked = ones({})}),
                      Contains("must be one int64"));
    CHECK_THROWS_WITH(batch_norm(x, mean, var, {}, {}, {.residual = ones({3, 4})}),
                      Contains("shapes differ"));
    CHECK_THROWS_WITH(batch_norm(x, mean, var, {}, {}, {.residual = ones({4, 3}, {.dtype = float16})}),
                      Contains("the residual float16"));
    CHECK_THROWS_WITH(batch_norm(ones({4, 3}, {.dtype = int32}), mean, var), Contains("must be floating"));
    CHECK_THROWS_WITH(batch_norm(x, zeros({3}).set_requires_grad(), var), Contains("requires grad"));
    CHECK_THROWS_WITH(batch_norm(x, zeros({3, 2}).select(1, 0), var), Contains("must be contiguous"));
    CHECK(doubles(mean) == std::vector<double>(3, 0.0));  // none of these has written
    CHECK(counter.item<int>() == 0);
    CHECK_THROWS_WITH(group_norm(x, 2), Contains("2 groups do not divide 3 channels"));
    CHECK_THROWS_WITH(group_norm(ones({3}), 1), Contains("[batch, ..., channels]"));
    CHECK_THROWS_WITH(nn::BatchNorm2d(3)(ones({2, 3, 4, 4})), Contains("channels come last"));
    CHECK_THROWS_WITH(nn::BatchNorm2d(3)(ones({2, 3})), Contains("[batch, height, width, channels]"));
    CHECK_THROWS_WITH(nn::BatchNorm1d(3)(ones({2, 2, 2, 3})), Contains("[batch, length, channels]"));
    CHECK_THROWS_WITH(nn::BatchNorm2d(0), Contains("num_features is 0"));
    CHECK_THROWS_WITH(nn::BatchNorm2d(3, {.momentum = -1}), Contains("momentum is -1"));
    CHECK_THROWS_WITH(nn::BatchNorm2d(3, {.eps = -1}), Contains("BatchNorm2d: eps -1"));
    CHECK_THROWS_WITH(nn::GroupNorm(2, 3), Contains("2 groups do not divide 3 channels"));
}

TEST_CASE("batch_norm: layers print, list and start as PyTorch's", "[batch_norm]") {
    const nn::BatchNorm2d norm(4);
    CHECK(norm.to_string() ==
          "BatchNorm2d(4, eps=1e-05, momentum=0.1, affine=true, bias=true, track_running_stats=true)");
    const nn::BatchNorm1d bare(
        4, {.momentum = nn::cumulative_average, .affine = false, .track_running_stats = false});
    CHECK(bare.to_string() ==
          "BatchNorm1d(4, eps=1e-05, momentum=none, affine=false, bias=false, track_running_stats=false)");
    CHECK(nn::GroupNorm(2, 4).to_string() == "GroupNorm(2, 4, eps=1e-05, affine=true, bias=true)");
    CHECK(bare.state_dict().empty());
    std::vector<std::string> names;
    for (const auto& [key, value] : norm.state_dict()) names.push_back(key);
    CHECK(names ==
          std::vector<std::string>{"weight", "bias", "running_mean", "running_var", "num_batches_tracked"});
    CHECK(norm.parameters().size() == 2);
    CHECK(norm.is_normalization());
    CHECK(doubles(norm.weight) == std::vector<double>(4, 1.0));
    CHECK(doubles(norm.running_mean) == std::vector<double>(4, 0.0));
    CHECK(doubles(norm.running_var) == std::vector<double>(4, 1.0));
    CHECK(norm.num_batches_tracked.dtype() == int64);
    CHECK(norm.num_batches_tracked.dim() == 0);
    nn::BatchNorm2d half(4);
    half.to(float16);
    CHECK(half.running_var.dtype() == float16);
    CHECK(half.num_batches_tracked.dtype() == int64);
    // Without running statistics evaluation, too, uses the batch's statistics.
    nn::BatchNorm1d fresh(3, {.affine = false, .track_running_stats = false});
    const Tensor trained = fresh(image(0).reshape({8, 3}));
    fresh.eval();
    CHECK(doubles(fresh(image(0).reshape({8, 3}))) == doubles(trained));
}

TEST_CASE("batch_norm: Sequential runs BatchNorm2d and ReLU as one op", "[batch_norm]") {
    const nn::Sequential joined{golden_norm(0.1, cpu_device), nn::ReLU()};
    const nn::BatchNorm2d alone = golden_norm(0.1, cpu_device);
    const Tensor x = image(0).set_requires_grad(), y = joined(x);
    CHECK(std::string(y->grad_meta->node->op->name()) == "reshape");
    const Ref<Node> below = y->grad_meta->node->edges[0].node;
    CHECK(std::string(below->op->name()) == "batch_norm");
    CHECK(doubles(y) == doubles(relu(alone(x))));
}

TEST_CASE("batch_norm: float32 statistics are closer to float64 than PyTorch's", "[batch_norm]") {
    // The largest relative errors of PyTorch 2.15 on the same numbers, with one and two threads:
    // 2.7e-7 and 1.3e-7 of the mean, 3.4e-6 and 2.8e-6 of the variance.
    const std::int64_t rows = 32768, channels = 16;
    std::vector<float> values;
    for (std::int64_t i = 0; i < rows * channels; ++i)
        values.push_back(float(double(i * 2654435761 % 4294967296) / 4294967296.0 + 3));
    const Tensor x = Tensor::from(values, {rows, channels}), wide = x.to(float64);
    const std::vector<double> mean_64 = doubles(mean(wide, {0})),
                              var_64 = doubles(sum(square(wide - mean(wide, {0})), {0}) / double(rows - 1));
    for (const Device device : devices()) {
        CAPTURE(name(device.type()));
        const nn::BatchNorm1d norm(channels, {.momentum = 1, .device = device});
        (void)norm(x.to(device));
        CHECK(difference(doubles(norm.running_mean), mean_64, {1.2e-7, 0}) == "");
        CHECK(difference(doubles(norm.running_var), var_64, {1e-6, 0}) == "");
    }
}
