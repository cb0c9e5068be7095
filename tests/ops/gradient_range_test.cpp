// Values and first derivatives over the full range of the 16-bit dtypes, against float64: no intermediate may
// leave the range if the result does not, because the loss scaler cannot see a zero made there.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <set>
#include <sstream>

#include "mezzo/autograd.h"
#include "tests/ops/gradient_range_exceptions.h"
#include "tests/ops/gradient_range_lines.h"

using namespace mezzo;
using namespace mezzo::test;

namespace {

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

// All inputs with gradients of every size that training in 16 bit meets.
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

// Errors of one function in one dtype.
struct Summary {
    double worst = 0;  // relative error of normal results, in units
    int zeros = 0, infinities = 0, errors = 0, excused = 0;
    std::string first;

    // `g` is the factor that the number is proportional to; `narrow` is the result in float32.
    void look(const Range& r, const Problem& p, std::size_t i, double got, double want, double narrow,
              double g, const Exception& allowed) {
        const double size = std::abs(want), off = std::abs(got - want);
        if (!(size <= r.highest * (1 - r.unit))) return;  // infinity, or next to it
        double slack = (allowed.steps * r.step + allowed.units * r.unit + allowed.absolute) * g;
        if (allowed.of_logarithm && size > 0) slack += size * r.unit * std::abs(std::log(size / g));
        if (allowed.beyond_float32 && r.highest > 1e38) {
            excused += !std::isfinite(got);
            if (!std::isfinite(got)) return;
            slack += 0x1p-125 * g;
        }
        if (allowed.as_float32) {
            const bool in_range = std::abs(narrow) <= r.highest * (1 - r.unit);
            excused += !in_range;
            if (!in_range) return;
            slack += 4 * std::abs(narrow - want);
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

Summary values_of(const Line& line, const Problem& p, const Outcome& got, const Outcome& want,
                  const Outcome& narrow, Dtype dtype) {
    Summary s;
    for (std::size_t i = 0; i < p.g.size(); ++i)
        s.look(range_of(dtype), p, i, got.y[i], want.y[i], narrow.y[i], 1, exception_for_value(line.name));
    return s;
}

Summary gradients_of(const Line& line, const Problem& p, const Outcome& got, const Outcome& want,
                     const Outcome& narrow, Dtype dtype) {
    const Range r = range_of(dtype);
    const Exception allowed = exception_for(line.name);
    Summary s;
    for (std::size_t i = 0; i < p.g.size(); ++i) {
        if (!(std::abs(want.y[i]) <= r.highest)) continue;  // no number before the backward pass
        for (std::size_t k = 0; k < std::size_t(line.inputs); ++k)
            s.look(r, p, i, got.gradients[k][i], want.gradients[k][i], narrow.gradients[k][i],
                   std::abs(p.g[i]), allowed);
    }
    return s;
}

// How many values and derivatives needed the function's exceptions.
struct Excused {
    int values = 0, gradients = 0;
};
void check_line(const Line& line, Dtype dtype, Device device, Excused& excused) {
    Problem p = problem_of(line, dtype);
    p.g = doubles(tensor_of(p.g, {std::int64_t(p.g.size())}, dtype));
    const Outcome want = run(line, p, float64, cpu_device, false);
    const bool as_float32 = exception_for(line.name).as_float32 || exception_for_value(line.name).as_float32;
    const Outcome narrow = as_float32 ? run(line, p, float32, device, false) : want;
    const auto check = [&](const char* what, bool autocast, const Summary& s) {
        CAPTURE(line.name, what, name(dtype), name(device.type()), autocast, s.worst, s.first);
        CHECK(s.infinities == 0);
        CHECK(s.zeros == 0);
        CHECK(s.errors == 0);
        return s.excused;
    };
    for (const bool autocast : {false, true}) {
        const Outcome got = run(line, p, dtype, device, autocast);
        excused.values += check("value", autocast, values_of(line, p, got, want, narrow, dtype));
        excused.gradients += check("gradient", autocast, gradients_of(line, p, got, want, narrow, dtype));
    }
}

}  // namespace

TEST_CASE("values and gradients keep the range of 16-bit numbers", "[ops][range]") {
    for (const Line& line : lines()) DYNAMIC_SECTION(line.name) {
            Excused excused;
            for (const Dtype dtype : {float16, bfloat16}) check_line(line, dtype, cpu_device, excused);
            const Exception value = exception_for_value(line.name), gradient = exception_for(line.name);
            CAPTURE(value.reason, gradient.reason);
            CHECK((excused.values > 0) == (*value.reason != 0));
            CHECK((excused.gradients > 0) == (*gradient.reason != 0));
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

TEST_CASE("left out of the range test is what has a reason", "[ops][range]") {
    for (const auto& entry : left_out()) {
        const std::string& function = entry.first;
        CAPTURE(function);
        CHECK(*entry.second != 0);
        CHECK(std::none_of(lines().begin(), lines().end(),
                           [&](const Line& line) { return function == line.name; }));
    }
}

// Products of 16-bit numbers that leave the range, while their sum does not.
TEST_CASE("sums of products of 16-bit numbers are rounded once", "[ops][range]") {
    for (const Device device : devices())
        for (const Dtype dtype : {float16, bfloat16}) {
            const Tensor a = tensor_of({304, 304, 1}, {3}, dtype, device),
                         b = tensor_of({304, -304, 0.375}, {3}, dtype, device);
            const Tensor row = a.unsqueeze(0), column = b.unsqueeze(1),
                         zero = zeros({1, 1}, {.dtype = dtype, .device = device});
            CAPTURE(name(dtype), name(device.type()));
            for (const Tensor& y :
                 {dot(a, b), matmul(row, column), bmm(row.unsqueeze(0), column.unsqueeze(0)),
                  addmm(zero, row, column), baddbmm(zero, row.unsqueeze(0), column.unsqueeze(0)),
                  einsum("i,i->", {a, b}), linear(row, b.unsqueeze(0)), merged_linear(row, {b.unsqueeze(0)}),
                  conv1d(a.reshape({1, 3, 1}), b.reshape({1, 3, 1})),
                  conv2d(a.reshape({1, 1, 3, 1}), b.reshape({1, 1, 3, 1}))})
                CHECK(doubles(y) == std::vector<double>{0.375});
        }
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
