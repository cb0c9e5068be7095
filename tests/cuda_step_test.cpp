// The optimizer-step kernels of the CUDA backend against the CPU's: on a GPU, or on the emulated device.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "cuda/runtime.h"
#include "ops/kernels.h"
#include "tests/support.h"

namespace {

using namespace mezzo;

const Device device{DeviceType::cuda};
constexpr float inf = std::numeric_limits<float>::infinity();

bool no_device() {
    if (cuda_device_count() > 0) return false;
    WARN("no CUDA device: skipped");
    return true;
}

struct Kind {
    Dtype param, grad;
    bool shadow;
    Dtype shadow_dtype;
};

// Parameters with gradients and optimizer state on one device; the same seed gives the same values
// everywhere.
struct Model {
    Device where;
    std::vector<Tensor> params, grads, first, second, shadows, steps;
    std::vector<ParamRef> refs;

    Model(Device at, const Kind& kind, const std::vector<std::int64_t>& sizes) : where(at) {
        const Dtype state = kind.param == float64 ? float64 : float32;
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            const auto make = [&](Dtype dtype, std::uint64_t seed) {
                const auto domain = seed == 4 ? test::Domain::positive : test::Domain::any;
                return test::tensor_of(test::random_values(sizes[i], seed * 100 + i, domain), {sizes[i]},
                                       dtype, at);
            };
            params.push_back(make(kind.param, 1));
            grads.push_back(make(kind.grad, 2));
            first.push_back(make(state, 3));
            second.push_back(make(state, 4));
            shadows.push_back(make(kind.shadow_dtype, 5));
            steps.push_back(test::tensor_of({i % 2 == 0 ? 0.0 : 3.0}, {1}, float32, at));
            refs.push_back({.param = raw(params[i]),
                            .grad = raw(grads[i]),
                            .state = {raw(first[i]), raw(second[i])},
                            .shadow = kind.shadow ? raw(shadows[i]) : nullptr,
                            .numel = sizes[i],
                            .dtype = kind.param,
                            .grad_dtype = kind.grad,
                            .shadow_dtype = kind.shadow_dtype,
                            .step = static_cast<float*>(raw(steps[i]))});
        }
    }
    const StepKernels& kernels() const { return *step_kernels(where.type()); }
};

StepState step_state(float grad_multiplier, float found_inf = 0) {
    StepState state{};
    state.grad_multiplier = grad_multiplier;
    state.found_inf = found_inf;
    return state;
}
ScalerState scaler_state(float scale, float hysteresis_left = 0) {
    ScalerState state{};
    state.scale = scale;
    state.hysteresis_left = hysteresis_left;
    return state;
}

// A struct of floats in a device's memory.
template <class T> struct On {
    Tensor floats;
    On(Device where, const T& value)
        : floats(test::tensor_of(values(value), {std::int64_t(sizeof(T) / 4)}, float32, where)) {}
    T* get() const { return static_cast<T*>(raw(floats)); }
    T read() const {
        const std::vector<float> numbers = floats.to_vector<float>();
        T value{};
        std::copy(numbers.begin(), numbers.end(), reinterpret_cast<float*>(&value));
        return value;
    }
    static std::vector<double> values(const T& value) {
        const auto* first = reinterpret_cast<const float*>(&value);
        return std::vector<double>(first, first + sizeof(T) / 4);
    }
};

void check_same(const std::vector<Tensor>& actual, const std::vector<Tensor>& expected, double slack = 4) {
    for (std::size_t i = 0; i < actual.size(); ++i) {
        test::Tolerance allowed = test::tolerance(actual[i].dtype());
        allowed.relative *= slack;
        allowed.absolute *= slack;
        CAPTURE(i, actual[i].numel());
        CHECK(test::difference(test::doubles(actual[i]), test::doubles(expected[i]), allowed) == "");
    }
}

void check_same(const Model& actual, const Model& expected) {
    check_same(actual.params, expected.params);
    check_same(actual.grads, expected.grads);
    check_same(actual.first, expected.first);
    check_same(actual.second, expected.second);
    check_same(actual.shadows, expected.shadows);
    check_same(actual.steps, expected.steps, 0);
}

const std::vector<Kind> kinds = {{float32, float32, false, float16},  {float32, float16, true, float16},
                                 {float32, bfloat16, true, bfloat16}, {float16, float16, false, float16},
                                 {float64, float64, true, float16},   {float32, float64, false, float16}};
const std::vector<std::int64_t> sizes = {1, 5, 2500, 0, 64, 2048, 3};

std::vector<StepArgs> all_args() {
    StepArgs sgd{.algorithm = Algorithm::sgd, .lr = 0.1};
    StepArgs decayed = sgd, momentum = sgd, nesterov = sgd;
    decayed.weight_decay = 0.01;
    decayed.maximize = true;
    momentum.momentum = 0.9;
    momentum.dampening = 0.1;
    nesterov.momentum = 0.9;
    nesterov.nesterov = true;
    nesterov.weight_decay = 0.1;
    StepArgs adam{.algorithm = Algorithm::adam, .lr = 0.01, .weight_decay = 0.1};
    StepArgs adamw{.algorithm = Algorithm::adamw, .lr = 0.01, .weight_decay = 0.1};
    return {sgd, decayed, momentum, nesterov, adam, adamw};
}

}  // namespace

TEST_CASE("cuda step: two updates of every algorithm and dtype", "[cuda]") {
    if (no_device()) return;
    for (const Kind& kind : kinds)
        for (const StepArgs& args : all_args()) {
            CAPTURE(name(kind.param), name(kind.grad), int(args.algorithm), args.momentum, args.nesterov);
            Model host(Device{}, kind, sizes), cuda(device, kind, sizes);
            for (Model* model : {&host, &cuda}) {
                const On<StepState> state(model->where, step_state(0.25f));
                for (int i = 0; i < 2; ++i) {
                    model->kernels().update(model->refs, args, state.get());
                    model->kernels().finish_step(model->refs, state.get());
                }
                CHECK(state.read().applied == 2);
            }
            check_same(cuda, host);
        }
}

TEST_CASE("cuda step: an overflow leaves everything as it was", "[cuda]") {
    if (no_device()) return;
    const Kind kind{float32, float32, true, float16};
    Model untouched(device, kind, sizes), model(device, kind, sizes);
    const On<StepState> state(device, step_state(1, 1));
    const auto before = cuda::counters();
    for (const StepArgs& args : all_args()) model.kernels().update(model.refs, args, state.get());
    model.kernels().finish_step(model.refs, state.get());
    CHECK(cuda::counters().host_syncs == before.host_syncs);
    CHECK(state.read().skipped == 1);
    CHECK(state.read().applied == 0);
    check_same(model, untouched);
}

TEST_CASE("cuda step: finds inf and NaN wherever they are, and unscales", "[cuda]") {
    if (no_device()) return;
    for (const Kind& kind : kinds)
        for (float bad : {0.0f, inf, std::nanf("")})
            for (std::int64_t position : {0, 1233, 2499}) {
                CAPTURE(name(kind.grad), bad, position);
                Model host(Device{}, kind, sizes), cuda(device, kind, sizes);
                for (Model* model : {&host, &cuda}) {
                    model->grads[2].slice(0, position, position + 1).fill_(double(bad));
                    const On<ScalerState> scaler(model->where, scaler_state(3));
                    const On<StepState> state(model->where, step_state(1));
                    const Tensor flags = full({std::int64_t(sizes.size())}, 9, {.device = model->where});
                    model->kernels().check_finite(model->refs, scaler.get(), true, state.get(),
                                                  static_cast<float*>(raw(flags)));
                    CHECK(state.read().found_inf == (bad != 0 ? 1 : 0));
                    const std::vector<double> seen = test::doubles(flags);
                    for (std::size_t i = 0; i < seen.size(); ++i)
                        CHECK(seen[i] == (i == 2 && bad != 0 ? 1 : 0));
                }
                check_same(cuda.grads, host.grads, 0);
            }
}

TEST_CASE("cuda step: overflow of the unscaled gradient only", "[cuda]") {
    if (no_device()) return;
    Model model(device, {float32, float32, false, float16}, {3});
    model.grads[0].fill_(3e38);
    for (float scale : {0.5f, 1.0f}) {
        const On<ScalerState> scaler(device, scaler_state(scale));
        const On<StepState> state(device, step_state(1));
        model.kernels().check_finite(model.refs, scaler.get(), false, state.get(), nullptr);
        CHECK(state.read().found_inf == (scale < 1 ? 1 : 0));
    }
    CHECK(test::doubles(model.grads[0])[0] == double(3e38f));
}

TEST_CASE("cuda step: norm and clipping, no waiting for the device", "[cuda]") {
    if (no_device()) return;
    for (const Kind& kind : kinds) {
        CAPTURE(name(kind.grad));
        Model host(Device{}, kind, sizes), cuda(device, kind, sizes);
        std::vector<Tensor> norms;
        const auto before = cuda::counters();
        for (Model* model : {&host, &cuda}) {
            norms.push_back(empty({1}, {.device = model->where}));
            auto* norm = static_cast<float*>(raw(norms.back()));
            model->kernels().grad_norm(model->refs, norm);
            model->kernels().clip_by_norm(model->refs, norm, 10);
            model->kernels().clip_by_value(model->refs, 0.1);
        }
        CHECK(cuda::counters().host_syncs == before.host_syncs);
        CHECK(norms[1].item<double>() == Approx(norms[0].item<double>()).epsilon(1e-5));
        CHECK(norms[1].item<double>() > 10);
        check_same(cuda.grads, host.grads, 2);
    }
}

TEST_CASE("cuda step: more parameters than one launch takes", "[cuda]") {
    if (no_device()) return;
    const std::vector<std::int64_t> many(500, 3);  // more than the counters of one launch, too
    const Kind kind{float32, float32, false, float16};
    Model host(Device{}, kind, many), cuda(device, kind, many);
    for (Model* model : {&host, &cuda}) {
        for (std::size_t i : {120, 121, 122}) model->grads[i].fill_(double(inf));  // found by several blocks
        const On<StepState> state(model->where, step_state(1));
        const Tensor flags = empty({500}, {.device = model->where});
        const On<StepState> checked(model->where, step_state(1));
        model->kernels().check_finite(model->refs, nullptr, false, checked.get(),
                                      static_cast<float*>(raw(flags)));
        CHECK(checked.read().found_inf == 1);
        for (std::size_t i : {120, 121, 122}) CHECK(test::doubles(flags)[i] == 1);
        CHECK(test::doubles(sum(flags))[0] == 3);
        model->kernels().update(model->refs, all_args()[0], state.get());
        model->kernels().finish_step(model->refs, state.get());
        CHECK(state.read().applied == 1);
    }
    check_same(cuda, host);
}

TEST_CASE("cuda step: the scaler's events", "[cuda]") {
    if (no_device()) return;
    struct Scheme {
        StepKernels::ScalerArgs args;
        std::vector<double> scales;
    };
    const float most = std::numeric_limits<float>::max();
    // events: overflow x 3, clean x 3, overflow, clean, overflow
    const bool overflows[] = {true, true, true, false, false, false, true, false, true};
    const Scheme schemes[] = {
        {{2, 0.5f, 3, 0, most, 1, false, true}, {8, 4, 2, 2, 2, 4, 2, 2, 1}},   // PyTorch
        {{2, 0.5f, 3, 1, most, 2, false, true}, {16, 8, 4, 4, 4, 8, 8, 8, 4}},  // Megatron
        {{2, 0.5f, 3, 0, most, 2, true, true}, {16, 8, 4, 4, 4, 8, 8, 8, 8}},   // Apex
        {{2, 0.5f, 3, 6, 7, 1, false, true}, {8, 6, 6, 6, 6, 6, 6, 6, 6}},      // floor and cap
        {{2, 0.5f, 1, 0, most, 1, false, false}, {16, 16, 16, 16, 16, 16, 16, 16, 16}}};
    for (const Scheme& scheme : schemes)
        for (Device where : {Device{}, device}) {
            CAPTURE(&scheme - schemes, name(where.type()));
            const StepKernels& kernels = *step_kernels(where.type());
            const On<ScalerState> scaler(where, scaler_state(16, scheme.args.hysteresis));
            const On<StepState> state(where, step_state(1));
            for (std::size_t i = 0; i < scheme.scales.size(); ++i) {
                kernels.begin_step(state.get(), scaler.get(), true);
                const float multiplier = state.read().grad_multiplier;
                CHECK(multiplier == 1 / scaler.read().scale);
                if (overflows[i]) state.floats.slice(0, 0, 1).fill_(1);
                kernels.merge_found_inf(scaler.get(), state.get());
                kernels.update_scale(scaler.get(), scheme.args);
                CHECK(scaler.read().scale == Approx(scheme.scales[i]));
                CHECK(scaler.read().found_inf == 0);
            }
        }
    const On<ScalerState> huge(device, scaler_state(0x1p127f));
    step_kernels(DeviceType::cuda)->update_scale(huge.get(), {2, 0.5f, 1, 0, inf, 1, false, true});
    CHECK(huge.read().scale == 0x1p127f);
}
