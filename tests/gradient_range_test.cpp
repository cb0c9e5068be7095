// First derivatives over the full range of the 16-bit dtypes, against the same derivative in float64: no step
// on the way may leave the range where the result does not, for a zero made there is invisible to the loss
// scaler.
#include <catch2/catch.hpp>

#include <cmath>
#include <map>
#include <set>
#include <sstream>

#include "grad_check.h"
#include "mezzo/autocast.h"
#include "mezzo/autograd.h"
#include "mezzo/loss_ops.h"
#include "mezzo/pointwise_ops.h"
#include "mezzo/reduce_ops.h"
#include "support.h"

using namespace mezzo;
using namespace mezzo::test;

namespace {

struct Line {
    const char* name;
    Function* function;
    int inputs = 1;
    double low = -1e300, high = 1e300;  // of the second input: results of tanh and sigmoid are in [-1, 1]
};

// By how much more than rounding a derivative by an input may be off, and why it must.
struct Exception {
    double steps = 0;             // of the least number of the dtype, times g
    double units = 0;             // of roundoff, times g
    double absolute = 0;          // times g
    bool of_logarithm = false;    // as if the logarithm of the derivative were rounded, and to 0
    bool beyond_float32 = false;  // infinite, or off by a subnormal number of float32, where float32 computes
    const char* reason = "";
};
const char reads_its_result[] =
    "the gradient reads the result, which rounding has made 0 or 1: reading the input would keep one more "
    "tensor";
const char tail[] = "the error of the erf-form GELU in its left tail is absolute";
const char narrow[] = "float32 computes it, and a factor of it leaves the range that bfloat16 shares with it";

#define UNARY(name)                            \
    {                                          \
#name, [](In x) { return name(x[0]); } \
    }
#define BINARY(name)                                    \
    {                                                   \
#name, [](In x) { return name(x[0], x[1]); }, 2 \
    }
#define OF_ONE(name, ...)                      \
    {                                          \
        name, [](In x) { return __VA_ARGS__; } \
    }
#define OF_TWO(name, ...)                         \
    {                                             \
        name, [](In x) { return __VA_ARGS__; }, 2 \
    }

Tensor pairs(In x) { return stack({x[0], x[1]}, 1); }

Tensor two(In x, double a, double b) { return tensor_of({a, b}, {2}, float32, x[0].device()); }
Tensor classes(In x) { return zeros({x[0].size(0)}, {.dtype = int64, .device = x[0].device()}); }
Tensor refused_by_autocast(In x) {
    const amp::Autocast plain({.enabled = false});
    return binary_cross_entropy(x[1], (x[0] > 0.0).to(x[1].dtype()), {.reduction = Reduction::none});
}

const std::vector<Line>& lines() {
    static const std::vector<Line> all = {
#define MEZZO_UNARY(name, cast, ints, save, gradient) UNARY(name),
#include "mezzo/ops.def"
#undef MEZZO_UNARY
        OF_ONE("add_scalar", x[0] + 1.5),
        OF_ONE("rsub_scalar", 1.5 - x[0]),
        OF_ONE("mul_scalar", x[0] * 2.5),
        OF_ONE("div_scalar", x[0] / 2.5),
        OF_ONE("rdiv_scalar", 2.5 / x[0]),
        OF_ONE("rdiv_scalar of 1000", 1000.0 / x[0]),
        OF_ONE("rdiv_scalar of 1e-4", 1e-4 / x[0]),
        OF_ONE("pow_scalar", pow(x[0], 2.5)),
        OF_ONE("pow_scalar to 3", pow(x[0], 3)),
        OF_ONE("pow_scalar to -2", pow(x[0], -2)),
        OF_ONE("pow_scalar to 1/2", pow(x[0], 0.5)),
        OF_ONE("clamp", clamp(x[0], -0.5, 100)),
        OF_ONE("hardtanh", hardtanh(x[0], -0.5, 100)),
        OF_ONE("elu", elu(x[0], 1.5)),
        OF_ONE("leaky_relu", leaky_relu(x[0], 0.2)),
        BINARY(remainder),
        BINARY(atan2),
        BINARY(mish_grad),
        BINARY(add),
        BINARY(sub),
        BINARY(mul),
        BINARY(div),
        BINARY(pow),
        BINARY(maximum),
        BINARY(minimum),
        BINARY(relu_grad),
        BINARY(gelu_grad),
        BINARY(gelu_tanh_grad),
        BINARY(silu_grad),
        {"tanh_grad", [](In x) { return tanh_grad(x[0], x[1]); }, 2, -1, 1},
        {"sigmoid_grad", [](In x) { return sigmoid_grad(x[0], x[1]); }, 2, 0, 1},
        // What is no line of the table.
        OF_TWO("norm", norm(pairs(x), {1})),
        OF_TWO("max", max(pairs(x), {1})),
        OF_TWO("mean", mean(pairs(x), {1})),
        OF_TWO("min", min(pairs(x), {1})),
        OF_TWO("sum", sum(pairs(x), {1})),
        OF_TWO("logsumexp", logsumexp(pairs(x), {1})),
        OF_TWO("quantile", quantile(pairs(x), 0.25, {.dim = 1})),
        OF_TWO("cumsum", cumsum(pairs(x), 1).select(1, 1)),
        // Beyond these bounds a gate is below float32's range, or its complement has few digits in float32.
        {"glu", [](In x) { return glu(pairs(x)).squeeze(1); }, 2, -80, 10},
        {"swiglu", [](In x) { return swiglu(x[0], x[1]); }, 2, -1e4, 1e4},
        {"swiglu of halves", [](In x) { return swiglu(pairs(x)).squeeze(1); }, 2, -1e4, 1e4},
        OF_TWO("lerp", lerp(x[0], x[1], 0.3)),
        OF_TWO("lerp of tensors", lerp(x[0], x[1], full_like(x[0], 0.75))),
        OF_TWO("addcmul", addcmul(full_like(x[0], 1), x[0], x[1], 0.5)),
        OF_TWO("addcdiv", addcdiv(full_like(x[0], 1), x[0], x[1], -2)),
        OF_TWO("where", where(gt(x[0], 0.0), x[0], x[1])),
        OF_TWO("masked_fill", masked_fill(x[0], gt(x[1], 0.0), 2)),
        OF_TWO("softmin", softmin(pairs(x), 1).select(1, 0)),
        OF_TWO("softmax", softmax(pairs(x)).select(1, 0)),
        OF_TWO("log_softmax", log_softmax(pairs(x)).select(1, 0)),
        OF_TWO("mse_loss", mse_loss(x[0], x[1], {.reduction = Reduction::none})),
        OF_TWO("l1_loss", l1_loss(x[0], x[1], {.reduction = Reduction::none})),
        OF_TWO("smooth_l1_loss", smooth_l1_loss(x[0], x[1], {.beta = 3, .reduction = Reduction::none})),
        OF_TWO("huber_loss", huber_loss(x[0], x[1], {.delta = 1e-3, .reduction = Reduction::none})),
        OF_TWO("huber_loss of 300", huber_loss(x[0], x[1], {.delta = 300, .reduction = Reduction::none})),
        {"binary_cross_entropy", refused_by_autocast, 2, 0, 1},
        {"binary_cross_entropy_with_logits",
         [](In x) { return binary_cross_entropy_with_logits(x[0], x[1], {.reduction = Reduction::none}); }, 2,
         0, 1},
        {"kl_div", [](In x) { return kl_div(x[0], x[1], {.reduction = Reduction::none}); }, 2, 0},
        OF_TWO("cross_entropy", cross_entropy(pairs(x), classes(x), {.reduction = Reduction::none})),
        OF_TWO("cross_entropy with weights",
               cross_entropy(pairs(x), classes(x), {.reduction = Reduction::none, .weight = two(x, 2, 3)})),
        OF_TWO("cross_entropy of probabilities",
               cross_entropy(pairs(x), two(x, 0.75, 0.25).expand(pairs(x).shape()),
                             {.reduction = Reduction::none})),
        OF_TWO("nll_loss", nll_loss(pairs(x), classes(x), {.reduction = Reduction::none})),
        OF_TWO("hinge_embedding_loss", hinge_embedding_loss(x[0], 2.0 * (x[1] > 0.0).to(float32) - 1.0,
                                                            {.reduction = Reduction::none})),
        OF_TWO("triplet_margin_loss",
               triplet_margin_loss(zeros({1}, {.device = x[0].device()}), x[0].unsqueeze(1),
                                   x[1].unsqueeze(1), {.reduction = Reduction::none})),
        // Without cosine_embedding_loss: terms of its gradient cancel, so that the error of each component is
        // relative to the largest one.
    };
    return all;
}

Exception exception_for(const std::string& name) {
    static const std::map<std::string, Exception> all = {
        {"exp", {.steps = 1, .reason = reads_its_result}},
        {"tanh", {.units = 2, .reason = reads_its_result}},
        {"sigmoid", {.units = 1, .reason = reads_its_result}},
        {"softmax", {.units = 2, .reason = reads_its_result}},
        {"softmin", {.units = 2, .reason = reads_its_result}},
        {"glu", {.beyond_float32 = true, .reason = narrow}},
        {"addcdiv", {.beyond_float32 = true, .reason = narrow}},
        {"log_softmax", {.steps = 1, .of_logarithm = true, .reason = reads_its_result}},
        {"gelu", {.absolute = 6e-8, .reason = tail}},
        {"mish", {.beyond_float32 = true, .reason = narrow}},
        {"silu", {.beyond_float32 = true, .reason = narrow}},
        {"gelu_tanh", {.beyond_float32 = true, .reason = narrow}},
        {"kl_div", {.beyond_float32 = true, .reason = narrow}},
        {"pow", {.beyond_float32 = true, .reason = narrow}},
        {"pow_scalar to -2", {.beyond_float32 = true, .reason = narrow}},
    };
    const auto found = all.find(name);
    return found == all.end() ? Exception{} : found->second;
}

struct Range {
    double highest, normal, step, unit;  // greatest, least normal and least number, and unit roundoff
};
Range range_of(Dtype dtype) {
    if (dtype == float16) return {65504, 0x1p-14, 0x1p-24, 0x1p-11};
    return {0x1.fep127, 0x1p-126, 0x1p-133, 0x1p-8};
}

double value_of(Dtype dtype, int bits) {
    const int mantissa = dtype == float16 ? 10 : 7, bias = dtype == float16 ? 15 : 127;
    const int exponent = (bits & 0x7fff) >> mantissa, fraction = bits & ((1 << mantissa) - 1);
    const double size = exponent == 0 ? std::ldexp(fraction, 1 - bias - mantissa)
                                      : std::ldexp((1 << mantissa) + fraction, exponent - bias - mantissa);
    return bits & 0x8000 ? -size : size;
}

// Every `step`-th finite number.
std::vector<double> numbers(Dtype dtype, int step) {
    const int finite = dtype == float16 ? 0x7c00 : 0x7f80;
    std::vector<double> values;
    for (int sign : {0, 0x8000})
        for (int bits = sign == 0 ? 0 : 1; bits < finite; bits += step)
            values.push_back(value_of(dtype, sign | bits));
    return values;
}

struct Problem {
    std::vector<std::vector<double>> inputs;
    std::vector<double> g;
};

// All inputs with gradients of every size that a 16-bit training meets.
Problem problem_of(const Line& line, Dtype dtype) {
    const std::vector<double> gs = {0x1p-24, 0x1p-14, 0.75, 1000, -60000};
    Problem p;
    p.inputs.resize(std::size_t(line.inputs));
    const std::vector<double> values = numbers(dtype, line.inputs == 1 ? 3 : dtype == float16 ? 641 : 661);
    for (const double g : gs)
        for (const double a : values) {
            if (line.inputs == 1) {
                p.inputs[0].push_back(a);
                p.g.push_back(g);
                continue;
            }
            for (const double b : values) {
                if (b < line.low || b > line.high) continue;
                p.inputs[0].push_back(a);
                p.inputs[1].push_back(b);
                p.g.push_back(g);
            }
        }
    return p;
}

struct Outcome {
    std::vector<double> y;
    std::vector<std::vector<double>> gradients;
};

Outcome run(const Line& line, const Problem& p, Dtype dtype, Device device, bool autocast) {
    const std::int64_t n = std::int64_t(p.g.size());
    Tensors x;
    for (const std::vector<double>& values : p.inputs)
        x.push_back(tensor_of(values, {n}, dtype, device).set_requires_grad());
    Tensor y;
    {
        amp::Autocast scope(
            {.device = device.type(), .dtype = is_16bit(dtype) ? dtype : float16, .enabled = autocast});
        y = line.function(x);
    }
    // Rounded to dtype on both sides.
    const Tensor g = tensor_of(p.g, {n}, dtype == float64 ? float32 : dtype).to(y.dtype()).to(device);
    if (y.requires_grad()) autograd::backward({y}, {.grad_outputs = {g}});
    Outcome o{doubles(y), {}};
    for (const Tensor& leaf : x)
        o.gradients.push_back(leaf.grad().defined() ? doubles(leaf.grad())
                                                    : std::vector<double>(p.g.size(), 0.0));
    return o;
}

// What one line did in one dtype.
struct Summary {
    double worst = 0;  // relative error of normal results, in units
    int zeros = 0, infinities = 0, errors = 0, excused = 0;
    std::string first;

    void look(const Range& r, const Problem& p, std::size_t i, double got, double want,
              const Exception& allowed) {
        const double size = std::abs(want), g = std::abs(p.g[i]), off = std::abs(got - want);
        if (!(size <= r.highest * (1 - r.unit))) return;  // infinity, or next to it
        double slack = (allowed.steps * r.step + allowed.units * r.unit + allowed.absolute) * g;
        if (allowed.of_logarithm && size > 0) slack += size * r.unit * std::abs(std::log(size / g));
        if (allowed.beyond_float32 && r.highest > 1e38) {
            excused += !std::isfinite(got);
            if (!std::isfinite(got)) return;
            slack += 0x1p-125 * g;
        }
        const double rounding = 4 * r.unit * size + 2 * r.step;
        const bool infinite = !std::isfinite(got), zero = got == 0 && size >= 2 * r.step + slack;
        const bool error = !infinite && !(off <= rounding + slack);
        infinities += infinite;
        zeros += zero;
        errors += error;
        excused += !infinite && off > rounding && !error;
        if (!infinite && size >= r.normal) worst = std::max(worst, (off - slack) / (size * r.unit));
        if (!(infinite || zero || error) || !first.empty()) return;
        std::ostringstream text;
        text << "got " << got << " instead of " << want << " for g " << p.g[i];
        for (const auto& x : p.inputs) text << ", " << x[i];
        first = text.str();
    }
};

Summary summary_of(const Line& line, const Problem& p, const Outcome& got, const Outcome& want, Dtype dtype) {
    const Range r = range_of(dtype);
    const Exception allowed = exception_for(line.name);
    Summary s;
    for (std::size_t i = 0; i < p.g.size(); ++i) {
        if (!(std::abs(want.y[i]) <= r.highest)) continue;  // no number before the backward pass
        for (int k = 0; k < line.inputs; ++k)
            s.look(r, p, i, got.gradients[std::size_t(k)][i], want.gradients[std::size_t(k)][i], allowed);
    }
    return s;
}

// How many derivatives the line's exception was needed for.
int check_line(const Line& line, Dtype dtype, Device device) {
    Problem p = problem_of(line, dtype);
    p.g = doubles(tensor_of(p.g, {std::int64_t(p.g.size())}, dtype));
    const Outcome want = run(line, p, float64, cpu_device, false);
    int excused = 0;
    for (const bool autocast : {false, true}) {
        const Summary s = summary_of(line, p, run(line, p, dtype, device, autocast), want, dtype);
        CAPTURE(line.name, name(dtype), name(device.type()), autocast, s.worst, s.first);
        CHECK(s.infinities == 0);
        CHECK(s.zeros == 0);
        CHECK(s.errors == 0);
        excused += s.excused;
    }
    return excused;
}

}  // namespace

TEST_CASE("gradients keep the range of 16-bit numbers", "[ops][range]") {
    for (const Line& line : lines()) DYNAMIC_SECTION(line.name) {
            int excused = 0;
            for (const Dtype dtype : {float16, bfloat16}) excused += check_line(line, dtype, cpu_device);
            const Exception exception = exception_for(line.name);
            CAPTURE(exception.reason);
            CHECK((excused > 0) == (*exception.reason != 0));
        }
}

TEST_CASE("every line of the op table has its gradient run over the full range", "[ops][range]") {
    std::set<std::string> run;
    for (const Line& line : lines()) run.insert(line.name);
#define MEZZO_UNARY(name, cast, ints, save, gradient) CHECK(run.contains(#name));
#define MEZZO_UNARY_SCALAR(name, cast, ints, save, gradient) CHECK(run.contains(#name));
#define MEZZO_BINARY(name, cast, ints, save, gradient_a, gradient_b) CHECK(run.contains(#name));
#include "mezzo/ops.def"
#undef MEZZO_UNARY
#undef MEZZO_UNARY_SCALAR
#undef MEZZO_BINARY
}

TEST_CASE("the gradient of a quotient in float16", "[ops][range]") {
    for (const Device device : devices())
        for (const bool autocast : {false, true}) {
            const Tensor a = tensor_of({1000}, {1}, float16, device),
                         b = tensor_of({257}, {1}, float16, device);
            Tensor x = alias(b).set_requires_grad(), z = alias(b).set_requires_grad();
            Tensor quotient, scalar;
            {
                amp::Autocast scope({.device = device.type(), .enabled = autocast});
                quotient = a / x;
                scalar = 1000.0 / z;
            }
            sum(quotient).backward();
            sum(scalar).backward();
            CHECK(doubles(x.grad())[0] == Approx(-1000.0 / (257 * 257)).epsilon(1e-3));
            CHECK(doubles(z.grad())[0] == Approx(-1000.0 / (257 * 257)).epsilon(1e-3));
        }
}

TEST_CASE("the gradient of an extremum at NaN is NaN", "[ops][range]") {
    for (const Device device : devices())
        for (const bool smallest : {false, true}) {
            const Tensor x = tensor_of({1, NAN, 3, 1, 5, 3}, {2, 3}, float32, device).set_requires_grad();
            sum(smallest ? min(x, {1}) : max(x, {1})).backward();
            const std::vector<double> g = doubles(x.grad());
            for (std::size_t i = 0; i < 3; ++i) CHECK(std::isnan(g[i]));
            CHECK(std::vector<double>(g.begin() + 3, g.end()) ==
                  (smallest ? std::vector<double>{1, 0, 0} : std::vector<double>{0, 1, 0}));
            // Element by element a NaN passes the gradient on, as torch.maximum does.
            const Tensor a = tensor_of({NAN, 1}, {2}, float32, device).set_requires_grad();
            const Tensor b = tensor_of({2, NAN}, {2}, float32, device).set_requires_grad();
            sum(smallest ? minimum(a, b) : maximum(a, b)).backward();
            CHECK(doubles(a.grad()) == std::vector<double>{1, 1});
            CHECK(doubles(b.grad()) == std::vector<double>{1, 1});
        }
}
