// ctc_loss against the sum over all alignments, its gradient against differences of values, and what it
// refuses.
#include <catch2/catch.hpp>

#include <cmath>

#include "mezzo/autocast.h"
#include "mezzo/autograd.h"
#include "mezzo/loss_ops.h"
#include "tests/support/grad_check.h"
#include "tests/support/support.h"

using namespace mezzo;
using namespace mezzo::test;

namespace {

using Integers = std::vector<std::int64_t>;
using Values = std::vector<double>;

Tensor of(const Integers& values) { return Tensor::from(values, {std::int64_t(values.size())}); }

// The target of an alignment: repeated classes once, without blanks.
Integers collapsed(const Integers& path, std::int64_t blank) {
    Integers target;
    for (std::size_t t = 0; t < path.size(); ++t)
        if (path[t] != blank && (t == 0 || path[t] != path[t - 1])) target.push_back(path[t]);
    return target;
}

// -ln of the sum over all alignments of one sequence. log_p: [time, classes], of which `steps` count.
double loss_of_paths(const Values& log_p, std::int64_t classes, std::int64_t steps, const Integers& target,
                     std::int64_t blank) {
    std::int64_t paths = 1;
    for (std::int64_t t = 0; t < steps; ++t) paths *= classes;
    double total = 0;
    for (std::int64_t p = 0; p < paths; ++p) {
        Integers path;
        double sum = 0;
        for (std::int64_t t = 0, rest = p; t < steps; ++t, rest /= classes) {
            path.push_back(rest % classes);
            sum += log_p[std::size_t(t * classes + path.back())];
        }
        if (collapsed(path, blank) == target) total += std::exp(sum);
    }
    return -std::log(total);
}

// Five steps of three classes for each of these, which have repeated labels, none, and more than fit.
const std::vector<Integers> sequences{{1, 2}, {2, 2, 1}, {}, {1, 1, 1, 1}, {2}};
const Integers input_lengths{5, 5, 4, 5, 0}, target_lengths{2, 3, 0, 4, 1};

Tensor padded() {
    Integers all;
    for (const Integers& s : sequences)
        for (std::size_t i = 0; i < 4; ++i) all.push_back(i < s.size() ? s[i] : -7);
    return Tensor::from(all, {5, 4});
}
Tensor joined() {
    Integers all;
    for (const Integers& s : sequences) all.insert(all.end(), s.begin(), s.end());
    return of(all);
}

Tensor logits(Dtype dtype, Device device = cpu_device) {
    return tensor_of(random_values(5 * 5 * 3, 7, Domain::any), {5, 5, 3}, dtype, device);
}

Values wanted_losses(const Tensor& x) {
    const Tensor log_p = log_softmax(x.to(cpu_device).to(float64), -1);
    Values losses;
    for (std::size_t b = 0; b < sequences.size(); ++b)
        losses.push_back(loss_of_paths(doubles(log_p.select(1, std::int64_t(b)).contiguous()), 3,
                                       input_lengths[b], sequences[b], 0));
    return losses;
}

Tensor losses_of(const Tensor& x, const Tensor& targets, CtcOptions options) {
    return ctc_loss(log_softmax(x, -1), targets.to(x.device()), input_lengths, target_lengths, options);
}

}  // namespace

TEST_CASE("ctc_loss is the sum over all alignments", "[ops][loss][ctc]") {
    for (const Device device : devices())
        for (const Dtype dtype : {float64, float32, float16, bfloat16}) {
            CAPTURE(name(device.type()), name(dtype));
            const Tensor x = logits(dtype, device);
            const Values wanted = wanted_losses(x);
            CHECK(std::isinf(wanted[3]));
            CHECK(std::isinf(wanted[4]));
            // The logarithms are rounded to the dtype, too.
            const Tolerance allowed{dtype == float64 ? 1e-12 : dtype == float32 ? 1e-5 : 3e-2, 0};
            const Tensor y = losses_of(x, padded(), {.reduction = Reduction::none});
            CHECK(y.dtype() == dtype);
            CHECK(y.device() == device);
            CHECK(difference(doubles(y), wanted, allowed) == "");
            CHECK(doubles(losses_of(x, joined(), {.reduction = Reduction::none})) == doubles(y));
            CHECK(doubles(losses_of(x, padded().to(int32), {.reduction = Reduction::none})) == doubles(y));
            const double finite = wanted[0] + wanted[1] + wanted[2];
            const CtcOptions sum{.reduction = Reduction::sum, .zero_infinity = true};
            CHECK(difference(doubles(losses_of(x, padded(), sum)), Values{finite}, allowed) == "");
            const double mean = (wanted[0] / 2 + wanted[1] / 3 + wanted[2]) / 5;
            CHECK(difference(doubles(losses_of(x, padded(), {.zero_infinity = true})), Values{mean},
                             allowed) == "");
            CHECK(std::isinf(doubles(losses_of(x, padded(), {}))[0]));
        }
}

TEST_CASE("ctc_loss of one sequence and of another blank", "[ops][loss][ctc]") {
    const Tensor x = logits(float64).select(1, 0);
    const Tensor log_p = log_softmax(x, -1);
    for (const std::int64_t blank : {0, 2}) {
        const Integers target{1, blank == 0 ? 2 : 0};
        const double wanted = loss_of_paths(doubles(log_p), 3, 4, target, blank);
        for (const Tensor& length : {scalar(4, {.dtype = int32}), of({4})}) {
            const CtcOptions options{.blank = blank, .reduction = Reduction::none};
            const Tensor y = ctc_loss(log_p, of(target), length, scalar(2, {.dtype = int64}), options);
            CHECK(y.shape() == Shape{});
            CHECK(y.item<double>() == Approx(wanted));
        }
        CHECK(ctc_loss(log_p, of(target), {4}, {2}, {.blank = blank}).item<double>() == Approx(wanted / 2));
    }
}

TEST_CASE("the gradient of ctc_loss agrees with differences of values", "[ops][loss][ctc]") {
    const Tensors x{logits(float64)};
    for (const bool pad : {true, false}) {
        static bool with_padding;
        with_padding = pad;
        Function* const function = [](In in) {
            const Tensor targets = with_padding ? padded() : joined();
            return losses_of(in[0], targets, {.reduction = Reduction::none, .zero_infinity = true});
        };
        CHECK(check_gradient(function, x) == "");
    }
    Function* const mean = [](In in) { return losses_of(in[0], padded(), {.zero_infinity = true}); };
    CHECK(check_gradient(mean, x) == "");
}

// e^log_probs minus the probability of the class, which for a uniform distribution is countable: of the nine
// alignments of two steps three have the target {1}: 1 1, 1 0 and 0 1.
TEST_CASE("the gradient of ctc_loss by log_probs is that of logits", "[ops][loss][ctc]") {
    for (const Device device : devices()) {
        const Tensor x = full({2, 1, 3}, -std::log(3.0), {.device = device, .requires_grad = true});
        ctc_loss(x, Tensor::from(Integers{1}, {1, 1}), {2}, {1}, {.reduction = Reduction::sum}).backward();
        const double third = 1.0 / 3;
        CHECK(difference(doubles(x.grad()), Values{0, third - 2 * third, third, 0, -third, third},
                         {1e-6, 1e-6}) == "");
    }
}

TEST_CASE("gradients of ctc_loss of infinite losses and behind the end", "[ops][loss][ctc]") {
    for (const Device device : devices())
        for (const bool zero : {true, false}) {
            const Tensor x = logits(float32, device).set_requires_grad();
            losses_of(x, padded(), {.reduction = Reduction::sum, .zero_infinity = zero}).backward();
            const Tensor g = x.grad();
            CHECK(doubles(g[{4, 2}]) == Values(3, 0));         // the third sequence has four steps
            CHECK(doubles(g[{Slice(), 4}]) == Values(15, 0));  // the fifth none
            const Values lost = doubles(g[{Slice(), 3}]);
            for (const double v : lost) CHECK((zero ? v == 0 : std::isnan(v)));
            for (const std::int64_t b : {0, 1, 2})
                for (const double v : doubles(g[{Slice(), b}])) CHECK(std::isfinite(v));
        }
}

TEST_CASE("ctc_loss of long sequences in float32", "[ops][loss][ctc]") {
    const Tensor x = tensor_of(random_values(300 * 2 * 9, 3, Domain::any), {300, 2, 9}, float64);
    Integers labels;
    for (int i = 0; i < 80; ++i) labels.push_back(1 + (i * i) % 8);
    const auto run = [&](Dtype dtype) {
        const Tensor leaf = x.clone().to(dtype).set_requires_grad();
        const Tensor y = ctc_loss(log_softmax(leaf, -1), Tensor::from(labels, {2, 40}), {300, 250}, {40, 33},
                                  {.reduction = Reduction::none});
        y.sum().backward();
        return std::pair(doubles(y), doubles(leaf.grad()));
    };
    const auto exact = run(float64), narrow = run(float32);
    CHECK(difference(narrow.first, exact.first, {1e-6, 0}) == "");
    CHECK(difference(narrow.second, exact.second, {1e-4, 1e-6}) == "");
}

TEST_CASE("ctc_loss under autocast is float32", "[ops][loss][ctc][autocast]") {
    for (const Device device : devices()) {
        const amp::Autocast scope({.device = device.type(), .dtype = float16});
        const Tensor x = logits(float16, device).set_requires_grad();
        const Tensor y = losses_of(x, padded(), {.reduction = Reduction::sum, .zero_infinity = true});
        CHECK(y.dtype() == float32);
        y.backward();
        CHECK(x.grad().dtype() == float16);
    }
}

TEST_CASE("ctc_loss refuses what does not fit", "[ops][loss][ctc][errors]") {
    const Tensor x = log_softmax(logits(float32), -1);
    const auto refused = [&](ErrorKind kind, const char* text, const auto& run) {
        CAPTURE(text);
        try {
            run();
            FAIL_CHECK("no error");
        } catch (const Error& e) {
            CHECK(e.kind() == kind);
            CHECK_THAT(e.what(), Catch::StartsWith("ctc_loss: ") && Catch::Contains(text));
        }
    };
    const auto with = [&](const Integers& inputs, const Integers& targets, CtcOptions options = {}) {
        return ctc_loss(x, padded(), inputs, targets, options);
    };
    refused(ErrorKind::value, "input length 6 of sequence 1 is outside [0, 5]", [&] {
        with({5, 6, 5, 5, 5}, target_lengths);
    });
    refused(ErrorKind::value, "target length 5 of sequence 0 is outside [0, 4]", [&] {
        with(input_lengths, {5, 1, 1, 1, 1});
    });
    refused(ErrorKind::value, "target -7 at position 2 of sequence 0", [&] {
        with(input_lengths, {3, 1, 0, 1, 1});
    });
    refused(ErrorKind::shape, "has not one length", [&] { with({5, 5}, target_lengths); });
    refused(ErrorKind::value, "blank is 3", [&] { with(input_lengths, target_lengths, {.blank = 3}); });
    refused(ErrorKind::value, "add up to", [&] {
        ctc_loss(x, of({1, 2, 1}), input_lengths, {1, 1, 0, 0, 0});
    });
    refused(ErrorKind::dtype, "float32",
            [&] { ctc_loss(x, padded().to(float32), input_lengths, target_lengths); });
    refused(ErrorKind::shape, "[5, 5, 3, 1]",
            [&] { ctc_loss(x.unsqueeze(-1), padded(), input_lengths, target_lengths); });
    refused(ErrorKind::state, "second derivative", [&] {
        const Tensor leaf = logits(float64).set_requires_grad();
        const Tensor y = losses_of(leaf, padded(), {.zero_infinity = true});
        const Tensor g = autograd::grad({y}, {leaf}, {.create_graph = true})[0];
        g.square().sum().backward();
    });
}

TEST_CASE("ctc_loss: NaN is not lost", "[ops][loss][ctc]") {
    const Tensor x = tensor_of({-INFINITY, NAN}, {1, 1, 2}, float64);
    for (const bool zero : {false, true})
        CHECK(std::isnan(ctc_loss(x, of({1}), {1}, {1}, {.zero_infinity = zero}).item<double>()));
}
