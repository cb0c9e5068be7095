// Losses that are made of other ops: values and gradients against numbers of PyTorch 2.15 in float64,
// weights, infinities, and what they refuse.
#include <catch2/catch.hpp>

#include <cmath>
#include <limits>

#include "mezzo/autograd.h"
#include "mezzo/loss_ops.h"
#include "mezzo/shape_ops.h"
#include "tests/support/support.h"

using namespace mezzo;
using namespace mezzo::test;

namespace {

using Integers = std::vector<std::int64_t>;
using Values = std::vector<double>;

// 2 sin(f i + 1/4), i = 0, 1, ... in [3, 4].
Tensor waves(double f, Device device) {
    Values values;
    for (int i = 0; i < 12; ++i) values.push_back(2 * std::sin(f * i + 0.25));
    return tensor_of(values, {3, 4}, float64, device);
}

// Inputs of the losses: x, y, a target of 0 and 1, and weights.
struct Inputs {
    explicit Inputs(Device d)
        : device(d),
          x(waves(1.3, d).set_requires_grad()),
          y(waves(0.7, d)),
          bits((waves(2.1, d) > 0).to(float64)),
          signs(2 * bits - 1),
          var(waves(0.3, d).abs() + 0.1),
          weight(tensor_of({0.5, 1.5, 2, 0.25}, {4}, float64, d)),
          pos_weight(tensor_of({3, 0.5, 1, 2}, {4}, float64, d)),
          classes(Tensor::from(Integers{1, 3, 0}, {3}).to(d)),
          labels(Tensor::from(Integers{3, 0, -1, 1, -1, 2, 2, 2, 2, 1, 0, 3}, {3, 4}).to(d)) {}
    Device device;
    Tensor x, y, bits, signs, var, weight, pos_weight, classes, labels;
};

struct Known {
    const char* name;
    Tensor (*loss)(const Inputs& in);
    double value, slope;  // slope: the gradient of x times waves(0.9)
};

constexpr Reduction total = Reduction::sum;
Tensor taxi(const Tensor& a, const Tensor& b) { return (a - b).abs().sum(-1); }

const Known known[] = {
    {"binary_cross_entropy",
     [](const Inputs& in) { return binary_cross_entropy(in.x.sigmoid(), in.bits, {.weight = in.weight}); },
     0.772337400054, -0.160373658108},
    {"binary_cross_entropy_with_logits",
     [](const Inputs& in) {
         return binary_cross_entropy_with_logits(in.x, in.bits,
                                                 {.weight = in.weight, .pos_weight = in.pos_weight});
     },
     0.906859121457, -0.00221606969863},
    {"binary_cross_entropy_with_logits, sum",
     [](const Inputs& in) {
         return binary_cross_entropy_with_logits(in.x, in.bits, {.reduction = total, .weight = in.weight});
     },
     9.26804880065, -1.92448389729},
    {"margin_ranking_loss",
     [](const Inputs& in) { return margin_ranking_loss(in.x, in.y, in.signs, {.margin = 0.3}); },
     0.902401002846, -0.417194977331},
    {"soft_margin_loss", [](const Inputs& in) { return soft_margin_loss(in.x, in.signs); }, 0.913804765482,
     -0.197093987108},
    {"multi_margin_loss of p 2",
     [](const Inputs& in) {
         return multi_margin_loss(in.x, in.classes, {.p = 2, .margin = 0.7, .weight = in.weight});
     },
     1.68772283543, -1.98342453621},
    {"multi_margin_loss", [](const Inputs& in) { return multi_margin_loss(in.x, in.classes); }, 1.26227365682,
     -0.747794316913},
    {"multilabel_margin_loss", [](const Inputs& in) { return multilabel_margin_loss(in.x, in.labels); },
     0.961947172784, 0.454099900759},
    {"multilabel_soft_margin_loss",
     [](const Inputs& in) { return multilabel_soft_margin_loss(in.x, in.bits, {.weight = in.weight}); },
     0.772337400054, -0.160373658108},
    // Some variances are below eps; the gradient passes.
    {"gaussian_nll_loss",
     [](const Inputs& in) { return gaussian_nll_loss(in.x, in.y, in.var, {.full = true, .eps = 0.5}); },
     2.13561556568, -1.0081435705},
    {"gaussian_nll_loss, a variance per row",
     [](const Inputs& in) {
         return gaussian_nll_loss(in.x, in.y, in.var.select(1, 0), {.reduction = total});
     },
     18.6620505364, -12.3153073175},
    {"poisson_nll_loss",
     [](const Inputs& in) { return poisson_nll_loss(in.x, 4 * in.y.abs(), {.full = true}); }, 4.90094184643,
     -1.42485522047},
    {"poisson_nll_loss of rates",
     [](const Inputs& in) {
         return poisson_nll_loss(in.x.abs(), in.y.abs(), {.log_input = false, .reduction = total});
     },
     14.9554834974, -10.2693468779},
    {"triplet_margin_with_distance_loss",
     [](const Inputs& in) {
         return triplet_margin_with_distance_loss(in.x, in.y, flip(in.x, {0}),
                                                  {.distance = taxi, .margin = 0.5, .swap = true});
     },
     3.35349678223, -0.451148700112},
    {"triplet_margin_with_distance_loss by default",
     [](const Inputs& in) { return triplet_margin_with_distance_loss(in.x, in.y, flip(in.x, {0})); },
     2.03115015542, -0.359467165875},
};

struct Refused {
    const char* op;
    ErrorKind kind;
    const char* text;
    Tensor (*run)();
};

Tensor f(const Shape& shape) { return ones(shape); }
Tensor of(const Integers& values) { return Tensor::from(values, {std::int64_t(values.size())}); }

}  // namespace

TEST_CASE("losses of other ops agree with PyTorch", "[ops][loss]") {
    for (const Device device : devices()) {
        const Inputs in(device);
        for (const Known& k : known) {
            CAPTURE(k.name, name(device.type()));
            const Tensor loss = k.loss(in);
            CHECK(loss.item<double>() == Approx(k.value).epsilon(1e-10));
            const Tensor g = autograd::grad({loss}, {in.x})[0];
            CHECK((g * waves(0.9, device)).sum().item<double>() == Approx(k.slope).epsilon(1e-9));
        }
    }
}

TEST_CASE("losses of rows have their shapes", "[ops][loss]") {
    constexpr Reduction none = Reduction::none;
    CHECK(multi_margin_loss(f({2, 3, 4}), zeros({2, 3}, {.dtype = int64}), {.reduction = none}).shape() ==
          Shape{2, 3});
    CHECK(multi_margin_loss(f({4}), scalar(1, {.dtype = int64}), {.reduction = none}).shape() == Shape{});
    CHECK(multi_margin_loss(f({4}), of({1}), {.reduction = none}).shape() == Shape{1});
    CHECK(multi_margin_loss(f({}), scalar(0, {.dtype = int64})).item<double>() == 0);
    CHECK(multilabel_margin_loss(f({3, 4}), zeros({3, 4}, {.dtype = int64}), {.reduction = none}).shape() ==
          Shape{3});
    CHECK(multilabel_soft_margin_loss(f({3, 4}), f({3, 4}), {.reduction = none}).shape() == Shape{3});
    CHECK(gaussian_nll_loss(f({3, 4}), f({4}), f({3, 1}), {.reduction = none}).shape() == Shape{3, 4});
}

TEST_CASE("the mean over an empty batch is NaN, as in PyTorch", "[ops][loss]") {
    const Tensor none = empty({0, 3}), log_none = log_softmax(none);
    for (const Tensor& loss :
         {kl_div(log_none, none), kl_div(log_none, none, {.batch_mean = true}), huber_loss(none, none)})
        CHECK(std::isnan(loss.item<double>()));
}

TEST_CASE("weights of 0 hide infinite losses", "[ops][loss]") {
    const double inf = std::numeric_limits<double>::infinity();
    for (const Device device : devices()) {
        const Tensor x = tensor_of({-inf, 2}, {2}, float32, device).set_requires_grad();
        const Tensor weight = tensor_of({0, 1}, {2}, float32, device), t = ones({2}, {.device = device});
        const Tensor loss =
            binary_cross_entropy_with_logits(x, t, {.reduction = Reduction::sum, .weight = weight});
        CHECK(loss.item<double>() == Approx(std::log1p(std::exp(-2.0))));
        loss.backward();
        CHECK(doubles(x.grad())[0] == 0);
        const Tensor masked = binary_cross_entropy_with_logits(
            x.detach(), t, {.reduction = Reduction::none, .pos_weight = weight});
        CHECK(doubles(masked)[0] == 0);
    }
}

TEST_CASE("the gradient of a variance passes its lower limit", "[ops][loss]") {
    for (const Device device : devices()) {
        const Tensor var = full({1}, 0.125, {.device = device, .requires_grad = true});
        const Tensor x = zeros({1}, {.device = device}), target = ones({1}, {.device = device});
        const Tensor loss = gaussian_nll_loss(x, target, var, {.eps = 0.5});
        loss.backward();
        CHECK(loss.item<double>() == Approx((std::log(0.5) + 2) / 2));
        CHECK(doubles(var.grad()) == Values{-1});  // (1 / 0.5 - 1 / 0.5^2) / 2
    }
}

TEST_CASE("losses refuse what does not fit", "[ops][loss][errors]") {
    const Refused refused[] = {
        {"binary_cross_entropy", ErrorKind::shape, "weight [3] does not broadcast",
         [] { return binary_cross_entropy(f({1}), f({1}), {.weight = f({3})}); }},
        {"binary_cross_entropy_with_logits", ErrorKind::shape, "pos_weight [3] does not broadcast",
         [] { return binary_cross_entropy_with_logits(f({1}), f({1}), {.pos_weight = f({3})}); }},
        {"binary_cross_entropy_with_logits", ErrorKind::dtype, "weight is int64",
         [] { return binary_cross_entropy_with_logits(f({1}), f({1}), {.weight = of({3})}); }},
        {"multi_margin_loss", ErrorKind::value, "p is 3",
         [] {
             return multi_margin_loss(f({1, 2}), of({0}), {.p = 3});
         }},
        {"multi_margin_loss", ErrorKind::value, "target 2 is not a class; there are 2",
         [] {
             return multi_margin_loss(f({1, 2}), of({2}));
         }},
        {"multi_margin_loss", ErrorKind::value, "target -1",
         [] {
             return multi_margin_loss(f({1, 2}), of({-1}));
         }},
        {"multi_margin_loss", ErrorKind::shape, "target [2]",
         [] {
             return multi_margin_loss(f({1, 2}), of({0, 0}));
         }},
        {"multi_margin_loss", ErrorKind::shape, "weight [3]",
         [] {
             return multi_margin_loss(f({1, 2}), of({0}), {.weight = f({3})});
         }},
        {"multilabel_margin_loss", ErrorKind::value, "target -2",
         [] {
             return multilabel_margin_loss(f({2}), of({0, -2}));
         }},
        {"multilabel_margin_loss", ErrorKind::dtype, "float32",
         [] { return multilabel_margin_loss(f({2}), f({2})); }},
        {"gaussian_nll_loss", ErrorKind::value, "negative",
         [] { return gaussian_nll_loss(f({2}), f({2}), -f({2})); }},
        {"gaussian_nll_loss", ErrorKind::value, "eps is 0",
         [] { return gaussian_nll_loss(f({2}), f({2}), f({2}), {.eps = 0}); }},
        {"gaussian_nll_loss", ErrorKind::shape, "[3]",
         [] { return gaussian_nll_loss(f({2}), f({2}), f({3})); }},
        {"triplet_margin_with_distance_loss", ErrorKind::value, "margin is 0",
         [] {
             return triplet_margin_with_distance_loss(f({1, 2}), f({1, 2}), f({1, 2}), {.margin = 0});
         }},
        {"poisson_nll_loss", ErrorKind::value, "reduction",
         [] { return poisson_nll_loss(f({1}), f({1}), {.reduction = Reduction(7)}); }},
    };
    for (const Refused& r : refused) {
        CAPTURE(r.op, r.text);
        try {
            (void)r.run();
            FAIL_CHECK("no error");
        } catch (const Error& e) {
            CHECK(e.kind() == r.kind);
            CHECK_THAT(e.what(), Catch::StartsWith(std::string(r.op) + ":") && Catch::Contains(r.text));
        }
    }
}
