// The CPU's optimizer and scaler kernels against plain float64 arithmetic, and the scaler against tables of
// events.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "cpu/parallel.h"
#include "kernels/functor_step.h"

using namespace mezzo;

namespace {

const StepKernels& kernels() { return *step_kernels(DeviceType::cpu); }
constexpr float inf = std::numeric_limits<float>::infinity();
const float nan_value = std::numeric_limits<float>::quiet_NaN();

// Elements of any floating dtype behind a raw pointer.
struct Values {
    Dtype dtype;
    std::vector<double> f64;
    std::vector<float> f32;
    std::vector<std::uint16_t> bits;

    Values(Dtype type, const std::vector<double>& values) : dtype(type) {
        for (const double v : values)
            if (type == float64)
                f64.push_back(v);
            else if (type == float32)
                f32.push_back(float(v));
            else
                bits.push_back(type == float16 ? float16_t(float(v)).bits : bfloat16_t(float(v)).bits);
    }
    void* data() {
        return dtype == float64   ? static_cast<void*>(f64.data())
               : dtype == float32 ? static_cast<void*>(f32.data())
                                  : bits.data();
    }
    double operator[](std::size_t i) const {
        if (dtype == float64) return f64[i];
        if (dtype == float32) return double(f32[i]);
        return double(dtype == float16 ? float(float16_t::from_bits(bits[i]))
                                       : float(bfloat16_t::from_bits(bits[i])));
    }
};

std::vector<double> random_values(std::size_t n, unsigned seed) {
    std::mt19937 bits(seed);
    std::normal_distribution<double> normal;
    std::vector<double> values(n);
    for (double& v : values) v = double(float(normal(bits)));
    return values;
}

enum class Algorithm { sgd, adam, adamw };
// Options of the three algorithms, and the kernels' arguments for them.
struct Variant {
    Algorithm algorithm = Algorithm::sgd;
    double lr = 0, weight_decay = 0;
    double momentum = 0, dampening = 0;
    bool nesterov = false;
    double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
    bool maximize = false;

    StepArgs args() const {
        if (algorithm == Algorithm::sgd)
            return functors::step_args(
                optim::SGDOptions{lr, momentum, dampening, weight_decay, nesterov, maximize});
        if (algorithm == Algorithm::adam)
            return functors::step_args(
                optim::AdamOptions{lr, beta1, beta2, eps, weight_decay, false, maximize});
        return functors::step_args(optim::AdamWOptions{lr, beta1, beta2, eps, weight_decay, false, maximize});
    }
};

struct Parameter {
    Values param, grad, first, second, copy16;
    float step = 0;
    std::vector<double> p, m, v;  // the reference

    Parameter(std::size_t n, Dtype dtype, Dtype grad_dtype, Dtype copy16_dtype, unsigned seed)
        : param(dtype, random_values(n, seed)),
          grad(grad_dtype, std::vector<double>(n)),
          first(dtype == float64 ? float64 : float32, std::vector<double>(n, 0)),
          second(first.dtype, std::vector<double>(n, 0)),
          copy16(copy16_dtype, std::vector<double>(n)),
          m(n, 0),
          v(n, 0) {
        for (std::size_t i = 0; i < n; ++i) p.push_back(param[i]);
    }
    ParamRef ref() {
        const auto n = std::int64_t(p.size());
        return {.param = param.data(),
                .grad = grad.data(),
                .state = {first.data(), second.data()},
                .copy16 = is_16bit(copy16.dtype) ? copy16.data() : nullptr,
                .numel = n,
                .dtype = param.dtype,
                .grad_dtype = grad.dtype,
                .copy16_dtype = copy16.dtype,
                .step = &step};
    }
    void reference(const Variant& a, double multiplier) {
        const double t = double(step) + 1;
        for (std::size_t i = 0; i < p.size(); ++i) {
            double g = grad[i] * multiplier * (a.maximize ? -1 : 1);
            if (a.algorithm == Algorithm::adamw)
                p[i] *= 1 - a.lr * a.weight_decay;
            else
                g += a.weight_decay * p[i];
            if (a.algorithm == Algorithm::sgd) {
                if (a.momentum != 0) {
                    m[i] = step == 0 ? g : a.momentum * m[i] + (1 - a.dampening) * g;
                    g = a.nesterov ? g + a.momentum * m[i] : m[i];
                }
                p[i] -= a.lr * g;
                continue;
            }
            m[i] = a.beta1 * m[i] + (1 - a.beta1) * g;
            v[i] = a.beta2 * v[i] + (1 - a.beta2) * g * g;
            const double denominator = std::sqrt(v[i]) / std::sqrt(1 - std::pow(a.beta2, t)) + a.eps;
            p[i] -= a.lr / (1 - std::pow(a.beta1, t)) * m[i] / denominator;
        }
    }
};

const Variant variants[] = {
    {.algorithm = Algorithm::sgd, .lr = 0.1},
    {.algorithm = Algorithm::sgd, .lr = 0.1, .weight_decay = 0.05},
    {.algorithm = Algorithm::sgd, .lr = 0.1, .momentum = 0.9},
    {.algorithm = Algorithm::sgd, .lr = 0.1, .weight_decay = 0.05, .momentum = 0.9, .dampening = 0.3},
    {.algorithm = Algorithm::sgd, .lr = 0.1, .weight_decay = 0.05, .momentum = 0.9, .nesterov = true},
    {.algorithm = Algorithm::sgd, .lr = 0.1, .momentum = 0.9, .nesterov = true, .maximize = true},
    {.algorithm = Algorithm::adam, .lr = 0.01},
    {.algorithm = Algorithm::adam, .lr = 0.01, .weight_decay = 0.1, .maximize = true},
    {.algorithm = Algorithm::adamw,
     .lr = 0.01,
     .weight_decay = 0.1,
     .beta1 = 0.8,
     .beta2 = 0.95,
     .eps = 1e-6},
};

ParamRef gradient(Values& g, std::size_t n) {
    return {.param = nullptr,
            .grad = g.data(),
            .state = {},
            .copy16 = nullptr,
            .numel = std::int64_t(n),
            .dtype = float32,
            .grad_dtype = g.dtype,
            .copy16_dtype = float32,
            .step = nullptr};
}

ScalerState scaler_of(float scale, float growth_tracker = 0, float hysteresis_left = 1) {
    ScalerState state{};
    state.current = state.previous = {scale, growth_tracker, hysteresis_left};
    return state;
}

// Whether the gradients, divided by the scale if there is one, have inf or NaN.
bool overflows(const std::vector<ParamRef>& refs, ScalerState* scaler = nullptr) {
    StepState state{};
    kernels().statistics(refs,
                         {.state = &state, .scaler = scaler, .first = true, .scaled = scaler != nullptr});
    return state.found_inf != 0;
}

float norm_of(const std::vector<ParamRef>& refs) {
    StepState state{};
    float norm = -1;
    kernels().statistics(refs, {.state = &state, .norm = &norm});
    CHECK((state.norm == norm || std::isnan(norm)));
    return norm;
}

void clip(const std::vector<ParamRef>& refs, double max_norm) {
    StepState state{};
    float norm = 0;
    kernels().statistics(refs, {.state = &state, .norm = &norm});
    kernels().scale_gradients(refs, {.state = &state, .clip = true, .max_norm = max_norm});
}

}  // namespace

TEST_CASE("updates equal float64 arithmetic for every algorithm, dtype and thread count", "[step]") {
    const int threads = cpu::num_threads();
    for (const int used : {1, 2})
        for (const Variant& variant : variants) {
            const StepArgs args = variant.args();
            cpu::set_num_threads(used);
            std::vector<Parameter> list;
            list.emplace_back(1, float32, float32, float32, 1);
            list.emplace_back(0, float32, float32, float32, 2);
            list.emplace_back(37, float32, bfloat16, float16, 3);
            list.emplace_back(40001, float32, float32, bfloat16, 4);
            list.emplace_back(2500, float64, float64, float16, 5);
            list.emplace_back(1500, float32, float16, float32, 6);
            StepState state = {};
            state.grad_multiplier = 0.25f;
            for (unsigned step = 0; step < 4; ++step) {
                std::vector<ParamRef> refs;
                for (Parameter& p : list) {
                    p.grad = Values(p.grad.dtype, random_values(p.p.size(), 100 + step));
                    if (step == 0 && !p.first.f32.empty())
                        p.first.f32[0] = nan_value * float(variant.algorithm == Algorithm::sgd);
                    if (step == 0 && !p.first.f32.empty() && variant.algorithm != Algorithm::sgd)
                        p.first.f32[0] = 0;
                    p.reference(variant, 0.25);
                    refs.push_back(p.ref());
                }
                kernels().update(refs, {&args, 1}, {.state = &state}, nullptr, &state);
            }
            CHECK(state.applied == 4);
            for (const Parameter& p : list) {
                CHECK(p.step == 4);
                const double tolerance = p.param.dtype == float64 ? 1e-12 : 4e-6;
                for (std::size_t i = 0; i < p.p.size(); ++i) {
                    const bool close =
                        std::fabs(p.param[i] - p.p[i]) <= tolerance * std::max(1.0, std::fabs(p.p[i]));
                    INFO("variant " << &variant - variants << " size " << p.p.size() << " element " << i
                                    << ": " << p.param[i] << " instead of " << p.p[i]);
                    if (!close) CHECK(close);
                    if (!is_16bit(p.copy16.dtype) || p.param.dtype == float64) continue;
                    const Values rounded(p.copy16.dtype, {p.param[i]});
                    if (p.copy16[i] != rounded[0]) CHECK(p.copy16[i] == rounded[0]);
                }
            }
        }
    cpu::set_num_threads(threads);
}

TEST_CASE("a 16-bit parameter without master is updated in float", "[step]") {
    for (const Dtype dtype : {float16, bfloat16}) {
        Parameter p(5, dtype, dtype, float32, 7);
        StepState state = {};
        state.grad_multiplier = 1;
        p.grad = Values(dtype, random_values(5, 8));
        const Variant variant{.algorithm = Algorithm::adamw, .lr = 0.1, .weight_decay = 0.01};
        const StepArgs args = variant.args();
        p.reference(variant, 1);
        const std::vector<ParamRef> refs = {p.ref()};
        kernels().update(refs, {&args, 1}, {}, nullptr, &state);
        for (std::size_t i = 0; i < 5; ++i)
            CHECK(p.param[i] == Approx(p.p[i]).epsilon(dtype == float16 ? 1e-3 : 8e-3));
    }
}

TEST_CASE("a step with found_inf changes nothing but the count of skipped steps", "[step]") {
    for (const Variant& variant : variants) {
        const StepArgs args = variant.args();
        Parameter p(3000, float32, float32, float16, 9);
        p.grad = Values(float32, random_values(3000, 10));
        p.grad.f32[17] = nan_value;
        const std::vector<ParamRef> refs = {p.ref()};
        const Parameter before = p;
        ScalerState scaler = scaler_of(4);
        StepState state = {};
        kernels().statistics(refs, {.state = &state, .scaler = &scaler, .first = true, .scaled = true});
        CHECK(state.grad_multiplier == 0.25f);
        kernels().update(refs, {&args, 1}, {.state = &state}, &state.found_inf, &state);
        CHECK((state.found_inf == 1 && state.skipped == 1 && state.applied == 0 && p.step == 0 &&
               scaler.found_inf == 1));
        CHECK((p.param.f32 == before.param.f32 && p.first.f32 == before.first.f32 &&
               p.second.f32 == before.second.f32 && p.copy16.bits == before.copy16.bits));
    }
}

TEST_CASE("statistics find one bad element anywhere, in every dtype, before and after the multiply",
          "[step]") {
    for (const Dtype dtype : {float16, bfloat16, float32, float64})
        for (const std::size_t n : {1u, 255u, 256u, 257u, 100003u})
            for (const std::size_t at : {std::size_t(0), n / 2, n - 1})
                for (const float bad : {inf, -inf, nan_value, 60000.0f, 1e-40f}) {
                    std::vector<double> values(n, 1);
                    values[at] = double(bad);
                    Values clean(float32, {1, 2, 3}), g(dtype, values);
                    const std::vector<ParamRef> refs = {gradient(clean, 3), gradient(g, n)};
                    float flags[2] = {5, 5};
                    kernels().flag_nonfinite(refs, flags);
                    const bool expected = !std::isfinite(bad);
                    CHECK(overflows(refs) == expected);
                    CHECK(flags[0] == 0);
                    CHECK((flags[1] != 0) == expected);
                }
    // Two large finite elements do not add up to an overflow; an element that overflows only when unscaled is
    // found.
    Values large(float32, {3e38, 3e38});
    const std::vector<ParamRef> refs = {gradient(large, 2)};
    CHECK_FALSE(overflows(refs));
    CHECK(large.f32[0] == 3e38f);
    ScalerState tiny = scaler_of(0x1p-20f);
    CHECK(overflows(refs, &tiny));
    ScalerState zero = scaler_of(0);
    Values nothing(float32, {0});
    CHECK(overflows({gradient(nothing, 1)}, &zero));  // 0 * infinity would put NaN into the parameter
}

TEST_CASE("a second check adds to the first", "[step]") {
    Values good(float32, {1}), bad(float32, {double(inf)});
    const std::vector<ParamRef> good_refs = {gradient(good, 1)}, bad_refs = {gradient(bad, 1)};
    const StepKernels::ScalerArgs args = {2, 0.5f, 1, 0, inf, 1, false, true};
    StepState first{}, second{};
    ScalerState scaler = scaler_of(8);
    const auto check = [&](const std::vector<ParamRef>& refs, StepState& state, bool opens, bool again) {
        kernels().statistics(refs, {.state = &state,
                                    .scaler = &scaler,
                                    .first = opens,
                                    .scaled = true,
                                    .again = again,
                                    .args = args});
    };
    check(good_refs, first, true, false);
    CHECK((first.found_inf == 0 && scaler.found_inf == 0 && scaler.current.scale == 16));
    check(bad_refs, second, false, false);
    CHECK((second.found_inf == 1 && scaler.found_inf == 1 && scaler.current.scale == 4 &&
           scaler.previous.scale == 8));
    CHECK(second.grad_multiplier == 0.125f);  // by the scale of the iteration
    check(good_refs, first, false, false);
    CHECK((first.found_inf == 0 && scaler.found_inf == 1 && scaler.current.scale == 4));
    check(good_refs, second, false, true);
    CHECK(second.found_inf == 1);
    check(good_refs, second, true, false);  // the next iteration
    CHECK((second.found_inf == 0 && scaler.previous.scale == 4 && scaler.current.scale == 8));
}

TEST_CASE("unscaling multiplies by the reciprocal rounded to float", "[step]") {
    ScalerState scaler = scaler_of(3);
    StepState state = {};
    Values g(float32, {27, double(0.3f), double(inf)}), half(bfloat16, {12});
    std::vector<ParamRef> refs = {gradient(g, 3)};
    kernels().statistics(refs, {.state = &state, .scaler = &scaler, .first = true, .scaled = true});
    CHECK(g.f32[0] == 27);
    kernels().scale_gradients(refs, {.state = &state});
    CHECK((g.f32[0] == 9 && double(g.f32[1]) == 0.10000000894069672 && g.f32[2] == inf &&
           state.found_inf == 1));
    scaler = scaler_of(4);
    refs = {gradient(half, 1)};
    kernels().statistics(refs, {.state = &state, .scaler = &scaler, .first = true, .scaled = true});
    kernels().scale_gradients(refs, {.state = &state});
    CHECK(half[0] == 3);
}

TEST_CASE("gradient norms and clipping", "[step]") {
    std::vector<double> values = random_values(50000, 12);
    Values a(float32, values), b(bfloat16, {3, 4}), c(float64, {0.5});
    const std::vector<ParamRef> refs = {gradient(a, values.size()), gradient(b, 2), gradient(c, 1)};
    double squares = 25.25;
    for (const double v : values) squares += v * v;
    CHECK(norm_of(refs) == Approx(std::sqrt(squares)).epsilon(1e-6));
    clip(refs, 1000);
    CHECK((b[0] == 3 && c[0] == 0.5));
    clip(refs, 1);
    CHECK(norm_of(refs) == Approx(1).epsilon(1e-4));
    ScalerState scaler = scaler_of(4);
    StepState state{};
    float norm = 0;
    kernels().statistics(refs,
                         {.state = &state, .norm = &norm, .scaler = &scaler, .first = true, .scaled = true});
    CHECK(norm == Approx(0.25).epsilon(1e-4));  // of the unscaled gradients
    Values bad(float32, {1, double(inf)});
    const std::vector<ParamRef> bad_refs = {gradient(bad, 2)};
    CHECK(std::isinf(norm_of(bad_refs)));
    clip(bad_refs, 1);
    CHECK((bad.f32[0] == 0 && std::isnan(bad.f32[1])));
    Values wide(float16, {-5, 0.25, 7});
    const std::vector<ParamRef> wide_refs = {gradient(wide, 3)};
    kernels().clip_by_value(wide_refs, 2);
    CHECK((wide[0] == -2 && wide[1] == 0.25 && wide[2] == 2));
}

TEST_CASE("the scaler's tables of events", "[step]") {
    struct Table {
        const char* events;
        float init, growth, interval, floor, hysteresis;
        bool refill;
        std::vector<float> scales;
    };
    const float none = 0;
    const Table tables[] = {
        {"iiiooo"
         "ioi",
         16,
         2,
         3,
         none,
         1,
         false,
         {8, 4, 2, 2, 2, 4, 2, 2, 1}},  // PyTorch
        {"iiiooo"
         "ioi",
         16,
         2,
         3,
         1,
         2,
         false,
         {16, 8, 4, 4, 4, 8, 8, 8, 4}},  // Megatron
        {"iiiooo"
         "ioi",
         16,
         2,
         3,
         none,
         2,
         true,
         {16, 8, 4, 4, 4, 8, 8, 8, 8}},  // Apex' hysteresis kernel
        {"iiiiii", 4, 2, 3, none, 1, false, {2, 1, 0.5f, 0.25f, 0.125f, 0.0625f}},
        {"iiiiii", 4, 2, 3, 1, 1, false, {2, 1, 1, 1, 1, 1}},
        {"oooooooooo", 16, 2, 3, none, 1, false, {16, 16, 32, 32, 32, 64, 64, 64, 128, 128}},
    };
    for (const Table& table : tables) {
        ScalerState scaler = scaler_of(table.init, 0, table.hysteresis);
        const StepKernels::ScalerArgs args = {
            table.growth, 0.5f, table.interval, table.floor, inf, table.hysteresis, table.refill, true};
        std::vector<float> scales;
        for (const char* event = table.events; *event; ++event) {
            Values g(float32, {*event == 'i' ? double(inf) : 1.0});
            StepState state{};
            const std::vector<ParamRef> refs = {gradient(g, 1)};
            kernels().statistics(
                refs, {.state = &state, .scaler = &scaler, .first = true, .scaled = true, .args = args});
            CHECK(state.grad_multiplier == 1 / scaler.previous.scale);
            const ScalerState seen = scaler;
            kernels().update_scale(&scaler, args);  // gives the same result
            CHECK((scaler.current.scale == seen.current.scale &&
                   scaler.current.growth_tracker == seen.current.growth_tracker &&
                   scaler.current.hysteresis_left == seen.current.hysteresis_left));
            scales.push_back(scaler.current.scale);
        }
        INFO(table.events << " from " << table.init << " hysteresis " << table.hysteresis);
        CHECK(scales == table.scales);
    }
}

TEST_CASE("scaler: finite growth, cap, lowered interval, static scale", "[step]") {
    Values g(float32, {1});
    const auto run = [&](ScalerState& scaler, const StepKernels::ScalerArgs& args, float gradient_value = 1) {
        g.f32[0] = gradient_value;
        StepState state{};
        const std::vector<ParamRef> refs = {gradient(g, 1)};
        kernels().statistics(
            refs, {.state = &state, .scaler = &scaler, .first = true, .scaled = true, .args = args});
    };
    StepKernels::ScalerArgs args = {16, 0.5f, 1, 0, inf, 1, false, true};
    ScalerState s = scaler_of(1e38f);
    run(s, args);
    CHECK((s.current.scale == 1e38f && s.current.growth_tracker == 0));
    args = {2, 0.5f, 1, 0, 16777216, 1, false, true};
    s = scaler_of(8388608);
    for (int i = 0; i < 3; ++i) run(s, args);
    CHECK(s.current.scale == 16777216);
    args = {2, 0.5f, 4, 0, inf, 1, false, true};
    s = scaler_of(8, 5);  // the interval was 10 when the tracker grew
    run(s, args);
    CHECK((s.current.scale == 16 && s.current.growth_tracker == 0));
    args.dynamic = false;
    s = scaler_of(128);
    for (const float value : {1.0f, inf, 1.0f}) {
        run(s, args, value);
        CHECK((s.current.scale == 128 && s.found_inf == float(std::isinf(value))));
    }
}
