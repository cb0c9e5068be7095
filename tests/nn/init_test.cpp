// Initialisation of parameters: bounds, standard deviations, shapes of distributions, orthogonality, errors.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <limits>

#include "mezzo/init.h"
#include "mezzo/nn.h"
#include "tests/support/support.h"

using namespace mezzo;
using Catch::Matchers::Contains;
namespace init = nn::init;
using init::FanMode;
using init::Nonlinearity;

namespace {

struct Moments {
    double mean = 0, std = 0, largest = 0;
};
Moments moments(const Tensor& x) {
    const std::vector<double> values = test::doubles(x);
    Moments m;
    for (const double v : values) m.mean += v / double(values.size());
    for (const double v : values) {
        m.std += (v - m.mean) * (v - m.mean) / double(values.size());
        m.largest = std::max(m.largest, std::abs(v));
    }
    m.std = std::sqrt(m.std);
    return m;
}

void check_uniform(const Tensor& x, double std) {
    const Moments m = moments(x);
    CHECK(m.largest <= std::sqrt(3.0) * std * (1 + 1e-6));
    CHECK(m.largest > 0.99 * std::sqrt(3.0) * std);
    CHECK(m.std == Approx(std).epsilon(0.02));
    CHECK(std::abs(m.mean) < 0.05 * std);
}
void check_normal(const Tensor& x, double std) {
    const Moments m = moments(x);
    CHECK(m.std == Approx(std).epsilon(0.02));
    CHECK(m.largest > 3 * std);
    CHECK(std::abs(m.mean) < 0.05 * std);
}

double below(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

// Largest distance between the empirical and the truncated normal distribution function, times sqrt(n):
// beyond 1.95 once in a thousand times (Kolmogorov).
double distance(const Tensor& x, const init::TruncNormalOptions& o) {
    std::vector<double> values = test::doubles(x);
    std::sort(values.begin(), values.end());
    // Both tails from the side of the larger distance, without cancellation.
    const auto share = [&](double v) {
        const bool upper = o.low > o.mean;
        const auto z = [&](double at) { return (upper ? o.mean - at : at - o.mean) / o.std; };
        return (below(z(v)) - below(z(o.low))) / (below(z(o.high)) - below(z(o.low)));
    };
    double worst = 0;
    for (std::size_t i = 0; i < values.size(); ++i)
        worst = std::max(worst, std::abs(share(values[i]) - (double(i) + 0.5) / double(values.size())));
    return worst * std::sqrt(double(values.size()));
}

// Largest difference of rows * rows^T, or of the columns' product, from gain^2 times the identity.
double not_orthogonal(const Tensor& x, double gain) {
    const Tensor matrix = x.to(float64).reshape({x.size(0), -1});
    const Tensor rows = matrix.size(0) <= matrix.size(1) ? matrix : matrix.t();
    const Tensor count = arange(rows.size(0));
    const Tensor identity = eq(count, count.unsqueeze(1)).to(float64);
    return max(abs(matmul(rows, rows.t()) - identity * (gain * gain))).item<double>();
}

}  // namespace

TEST_CASE("init: fans are PyTorch's", "[init]") {
    const auto fans = [](const Shape& shape) {
        const init::Fans f = init::calculate_fans(zeros(shape));
        return std::pair(f.in, f.out);
    };
    // torch.nn.init._calculate_fan_in_and_fan_out of weights [20, 10], [64, 3, 7, 7], [32, 4, 3, 5] (8
    // groups), [8, 16, 3, 3] (transposed, 8 inputs), [6, 5, 9].
    CHECK(fans({20, 10}) == std::pair<std::int64_t, std::int64_t>(10, 20));
    CHECK(fans({64, 7, 7, 3}) == std::pair<std::int64_t, std::int64_t>(147, 3136));
    CHECK(fans(nn::Conv2d(32, 32, {3, 5}, {.groups = 8}).weight.shape()) ==
          std::pair<std::int64_t, std::int64_t>(60, 480));
    CHECK(fans(nn::ConvTranspose2d(8, 16, 3).weight.shape()) ==
          std::pair<std::int64_t, std::int64_t>(144, 72));
    CHECK(fans(nn::Conv1d(5, 6, 9).weight.shape()) == std::pair<std::int64_t, std::int64_t>(45, 54));
}

TEST_CASE("init: gains are PyTorch's", "[init]") {
    CHECK(init::calculate_gain(Nonlinearity::linear) == 1);
    CHECK(init::calculate_gain(Nonlinearity::sigmoid) == 1);
    CHECK(init::calculate_gain(Nonlinearity::tanh) == Approx(1.6666666666666667));
    CHECK(init::calculate_gain(Nonlinearity::relu) == Approx(1.4142135623730951));
    CHECK(init::calculate_gain(Nonlinearity::leaky_relu) == Approx(1.4141428569978354));
    CHECK(init::calculate_gain(Nonlinearity::leaky_relu, 2) == Approx(0.6324555320336759));
    CHECK(init::calculate_gain(Nonlinearity::selu) == 0.75);
}

TEST_CASE("init: Kaiming's and Xavier's standard deviations", "[init]") {
    for (const Device device : test::devices()) {
        CAPTURE(name(device.type()));
        manual_seed(1);
        const Tensor weight = empty({64, 3, 5, 40}, {.device = device});  // fans 600 and 960
        check_uniform(init::kaiming_uniform_(weight), std::sqrt(2 / 600.0));
        check_uniform(init::kaiming_uniform_(weight, {.a = std::sqrt(5.0)}), std::sqrt(1 / 1800.0));
        check_normal(
            init::kaiming_normal_(weight, {.mode = FanMode::fan_out, .nonlinearity = Nonlinearity::relu}),
            std::sqrt(2 / 960.0));
        check_normal(init::kaiming_normal_(weight, {.a = 3, .nonlinearity = Nonlinearity::tanh}),
                     5 / (3 * std::sqrt(600.0)));
        check_uniform(init::xavier_uniform_(weight), std::sqrt(2 / 1560.0));
        check_normal(init::xavier_normal_(weight, 2.5), 2.5 * std::sqrt(2 / 1560.0));
        check_normal(init::normal_(weight, 0, 0.25), 0.25);
        const Moments m = moments(init::uniform_(weight, 3, 5));
        CHECK(m.mean == Approx(4).epsilon(0.01));
        CHECK(m.largest <= 5);
        CHECK(max(init::constant_(weight, -1.5)).item<float>() == -1.5f);
        CHECK(min(weight).item<float>() == -1.5f);
        CHECK(min(init::ones_(weight)).item<float>() == 1);
        CHECK(moments(init::zeros_(weight)).largest == 0);
    }
}

TEST_CASE("init: trunc_normal_ has the distribution it says", "[init]") {
    const double inf = std::numeric_limits<double>::infinity();
    manual_seed(2);
    const Tensor x = empty({100, 200}, {.dtype = float64});
    for (const init::TruncNormalOptions& o : {init::TruncNormalOptions{},
                                              {.std = 0.02},
                                              {.mean = 1, .std = 2, .low = -1, .high = 1.5},
                                              {.low = 5, .high = 6},
                                              {.mean = 3, .std = 0.5, .low = -9, .high = 0},
                                              {.low = -inf, .high = inf},
                                              {.mean = -2, .low = 10, .high = inf},
                                              {.low = -0.001, .high = 0.001}}) {
        CAPTURE(o.mean, o.std, o.low, o.high);
        CHECK(init::trunc_normal_(x, o).impl() == x.impl());
        const std::vector<double> values = test::doubles(x);
        CHECK(*std::min_element(values.begin(), values.end()) >= o.low);
        CHECK(*std::max_element(values.begin(), values.end()) <= o.high);
        CHECK(distance(x, o) < 1.95);
    }
    for (const Device device : test::devices()) {
        const Tensor low = init::trunc_normal_(empty({3, 1000}, {.dtype = float16, .device = device}),
                                               {.std = 0.02, .low = -0.04, .high = 0.04});
        CHECK(moments(low).std == Approx(0.02 * 0.8796).epsilon(0.05));
        CHECK(moments(low).largest <= 0.0401);
    }
}

TEST_CASE("init: orthogonal_ gives orthogonal rows or columns", "[init]") {
    manual_seed(3);
    for (const Shape& shape : {Shape{5, 5}, Shape{3, 8}, Shape{8, 3}, Shape{1, 4}, Shape{4, 1},
                               Shape{100, 70}, Shape{65, 200}, Shape{64, 3, 3, 16}, Shape{40, 1, 1, 8}}) {
        CAPTURE(shape.size(), shape[0], shape.back());
        CHECK(not_orthogonal(init::orthogonal_(empty(shape, {.dtype = float64})), 1) < 1e-13);
        CHECK(not_orthogonal(init::orthogonal_(empty(shape), 1.5), 1.5) < 2e-6);
    }
    for (const Device device : test::devices())
        CHECK(not_orthogonal(init::orthogonal_(empty({6, 4}, {.device = device})).to(cpu_device), 1) < 1e-6);
    // Uniformly distributed: each element has the mean 0, which a fixed sign would not give.
    Tensor total = zeros({3, 3}, {.dtype = float64});
    for (int i = 0; i < 2000; ++i) total = total + init::orthogonal_(empty({3, 3}, {.dtype = float64}));
    CHECK(moments(total).largest < 2000 * 5 * std::sqrt(1 / 3.0 / 2000));
}

TEST_CASE("init: parameters are written in place, unrecorded, and repeatably", "[init]") {
    nn::Linear layer(30, 20);
    const std::uint64_t version = layer.weight.version();
    std::vector<double> values[2];
    for (std::vector<double>& v : values) {
        manual_seed(9);
        for (const Tensor& weight : {init::kaiming_normal_(layer.weight), init::trunc_normal_(layer.weight),
                                     init::orthogonal_(layer.weight), init::xavier_uniform_(layer.weight)}) {
            const std::vector<double> more = test::doubles(weight);
            v.insert(v.end(), more.begin(), more.end());
        }
    }
    CHECK(values[0] == values[1]);
    CHECK(layer.weight.is_leaf());
    CHECK(layer.weight.requires_grad());
    CHECK(layer.weight.version() > version);
    const Tensor strided = zeros({20, 60}).slice(1, 0, 60, 2);
    CHECK(not_orthogonal(init::orthogonal_(strided), 1) < 1e-6);
    for (const auto& f :
         {+[](const Tensor& x) { init::kaiming_uniform_(x); }, +[](const Tensor& x) { init::orthogonal_(x); },
          +[](const Tensor& x) { init::trunc_normal_(x); },
          +[](const Tensor& x) { init::xavier_normal_(x); }}) {
        f(empty({0, 3}));
        f(empty({3, 0, 2}));
    }
}

TEST_CASE("init: errors", "[init]") {
    const Tensor matrix = zeros({2, 3}), row = zeros({3});
    CHECK_THROWS_WITH(init::kaiming_normal_(row), Contains("kaiming_normal_: weight [3] has 1 dimensions"));
    CHECK_THROWS_WITH(init::xavier_uniform_(row), Contains("xavier_uniform_: weight [3]"));
    CHECK_THROWS_WITH(init::calculate_fans(row), Contains("calculate_fans"));
    CHECK_THROWS_WITH(init::orthogonal_(row), Contains("at least two"));
    CHECK_THROWS_WITH(init::xavier_normal_(matrix, -1), Contains("gain -1 is negative"));
    CHECK_THROWS_WITH(init::kaiming_uniform_({}), Contains("kaiming_uniform_: the tensor is undefined"));
    CHECK_THROWS_WITH(init::ones_(zeros({2}, {.dtype = int64})), Contains("int64, but must be floating"));
    CHECK_THROWS_WITH(init::kaiming_uniform_(matrix, {.a = NAN}), Contains("slope nan is not finite"));
    CHECK_THROWS_WITH(init::trunc_normal_(matrix, {.std = 0}), Contains("std positive"));
    CHECK_THROWS_WITH(init::trunc_normal_(matrix, {.low = 2, .high = 2}),
                      Contains("low 2 is not less than high 2"));
    CHECK_THROWS_WITH(init::trunc_normal_(matrix, {.low = 40, .high = 41}), Contains("next to nothing"));
    CHECK_THROWS_WITH(init::normal_(matrix, 0, -1), Contains("normal_"));
    CHECK_THROWS_WITH(init::uniform_(matrix, 2, 1), Contains("uniform_"));
    CHECK(test::doubles(matrix) == std::vector<double>(6, 0));
}
