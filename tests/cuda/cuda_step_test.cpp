// The optimizer-step kernels of the CUDA backend against the CPU's: on a GPU, or on the emulated device.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "cuda/runtime/runtime.h"
#include "kernels/functor_step.h"
#include "tests/support/support.h"

namespace {

using namespace mezzo;

const Device device{DeviceType::cuda};
constexpr float inf = std::numeric_limits<float>::infinity();

struct Kind {
    Dtype param, grad;
    bool copy16;
    Dtype copy16_dtype;
};

// Parameters with gradients and optimizer state on one device; the same seed gives the same values on every
// device.
struct Model {
    Device where;
    std::vector<Tensor> params, grads, first, second, third, copies16, steps;
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
            third.push_back(make(state, 6));
            copies16.push_back(make(kind.copy16_dtype, 5));
            // a count, and NAdam's product of momenta after as many updates
            steps.push_back(test::tensor_of(
                i % 2 == 0 ? std::vector<double>{0, 0} : std::vector<double>{3, 0.1}, {2}, float32, at));
            refs.push_back({.param = raw(params[i]),
                            .grad = raw(grads[i]),
                            .state = {raw(first[i]), raw(second[i]), raw(third[i])},
                            .copy16 = kind.copy16 ? raw(copies16[i]) : nullptr,
                            .numel = sizes[i],
                            .dtype = kind.param,
                            .grad_dtype = kind.grad,
                            .copy16_dtype = kind.copy16_dtype,
                            .step = static_cast<float*>(raw(steps[i]))});
        }
    }
    const StepKernels& kernels() const { return *step_kernels(where.type()); }
};

StepState step_state(float grad_multiplier = 1, float found_inf = 0) {
    StepState state{};
    state.grad_multiplier = grad_multiplier;
    state.found_inf = found_inf;
    return state;
}
ScalerState scaler_state(float scale, float hysteresis_left = 0) {
    ScalerState state{};
    state.current = state.previous = {scale, 0, hysteresis_left};
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
    check_same(actual.third, expected.third);
    check_same(actual.copies16, expected.copies16);
    check_same(actual.steps, expected.steps, 0);
}

const std::vector<Kind> kinds = {{float32, float32, false, float16},  {float32, float16, true, float16},
                                 {float32, bfloat16, true, bfloat16}, {float16, float16, false, float16},
                                 {float64, float64, true, float16},   {float32, float64, false, float16}};
const std::vector<std::int64_t> sizes = {1, 5, 2500, 0, 64, 2048, 3};

std::vector<StepArgs> all_args() {
    using functors::step_args;
    using namespace optim;
    return {step_args(SGDOptions{.lr = 0.1}),
            step_args(SGDOptions{.lr = 0.1, .weight_decay = 0.01, .maximize = true}),
            step_args(SGDOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.1}),
            step_args(SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true}),
            step_args(AdamOptions{.lr = 0.01, .weight_decay = 0.1}),
            step_args(AdamWOptions{.lr = 0.01, .weight_decay = 0.1}),
            step_args(AdamOptions{.lr = 0.01, .weight_decay = 0.1, .amsgrad = true}),
            step_args(AdamWOptions{.lr = 0.01, .amsgrad = true, .maximize = true}),
            step_args(RMSpropOptions{.lr = 0.01}),
            step_args(RMSpropOptions{.lr = 0.01, .eps = 1e-2, .momentum = 0.9, .centered = true}),
            step_args(AdagradOptions{.lr_decay = 0.1, .initial_accumulator_value = 0.5}),
            step_args(NAdamOptions{.weight_decay = 0.1}),
            step_args(NAdamOptions{.weight_decay = 0.1, .decoupled_weight_decay = true, .maximize = true}),
            step_args(LionOptions{.lr = 0.01, .weight_decay = 0.1})};
}

}  // namespace

TEST_CASE("cuda step: two updates of every algorithm and dtype", "[cuda]") {
    if (test::no_device()) return;
    const std::vector<StepArgs> all = all_args();
    for (const Kind& kind : kinds)
        for (const StepArgs& args : all) {
            CAPTURE(name(kind.param), name(kind.grad), &args - all.data());
            Model host(Device{}, kind, sizes), cuda(device, kind, sizes);
            for (Model* model : {&host, &cuda}) {
                const On<StepState> state(model->where, step_state(0.25f));
                for (int i = 0; i < 2; ++i)
                    model->kernels().update(model->refs, {&args, 1}, {.state = state.get()}, nullptr,
                                            state.get());
                CHECK(state.read().applied == 2);
            }
            check_same(cuda, host);
        }
}

TEST_CASE("cuda step: an overflow leaves everything as it was", "[cuda]") {
    if (test::no_device()) return;
    const Kind kind{float32, float32, true, float16};
    Model untouched(device, kind, sizes), model(device, kind, sizes);
    const On<StepState> state(device, step_state(1, 1));
    const auto before = cuda::counters();
    for (const StepArgs& args : all_args())
        model.kernels().update(model.refs, {&args, 1}, {}, &state.get()->found_inf, state.get());
    CHECK(cuda::counters().host_syncs == before.host_syncs);
    CHECK(state.read().skipped == float(all_args().size()));
    CHECK(state.read().applied == 0);
    check_same(model, untouched);
}

TEST_CASE("cuda step: finds inf and NaN wherever they are, and unscales", "[cuda]") {
    if (test::no_device()) return;
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
                    model->kernels().statistics(
                        model->refs,
                        {.state = state.get(), .scaler = scaler.get(), .first = true, .scaled = true});
                    model->kernels().flag_nonfinite(model->refs, static_cast<float*>(raw(flags)));
                    model->kernels().scale_gradients(model->refs, {.state = state.get()});
                    CHECK(state.read().found_inf == (bad != 0 ? 1 : 0));
                    CHECK(scaler.read().found_inf == (bad != 0 ? 1 : 0));
                    const std::vector<double> seen = test::doubles(flags);
                    for (std::size_t i = 0; i < seen.size(); ++i)
                        CHECK(seen[i] == (i == 2 && bad != 0 ? 1 : 0));
                }
                check_same(cuda.grads, host.grads, 0);
            }
}

TEST_CASE("cuda step: overflow of the unscaled gradient only", "[cuda]") {
    if (test::no_device()) return;
    Model model(device, {float32, float32, false, float16}, {3});
    model.grads[0].fill_(3e38);
    for (float scale : {0.5f, 1.0f}) {
        const On<ScalerState> scaler(device, scaler_state(scale));
        const On<StepState> state(device, step_state(1));
        model.kernels().statistics(
            model.refs, {.state = state.get(), .scaler = scaler.get(), .first = true, .scaled = true});
        CHECK(state.read().found_inf == (scale < 1 ? 1 : 0));
    }
    CHECK(test::doubles(model.grads[0])[0] == double(3e38f));
}

TEST_CASE("cuda step: norm and clipping, no waiting for the device", "[cuda]") {
    if (test::no_device()) return;
    for (const Kind& kind : kinds) {
        CAPTURE(name(kind.grad));
        Model host(Device{}, kind, sizes), cuda(device, kind, sizes);
        std::vector<Tensor> norms;
        const On<StepState> states[] = {{Device{}, step_state()}, {device, step_state()}};
        const auto before = cuda::counters();
        for (Model* model : {&host, &cuda}) {
            norms.push_back(empty({1}, {.device = model->where}));
            auto* norm = static_cast<float*>(raw(norms.back()));
            StepState* const state = states[model == &cuda].get();
            model->kernels().statistics(model->refs, {.state = state, .norm = norm});
            model->kernels().scale_gradients(model->refs, {.state = state, .clip = true, .max_norm = 10});
            model->kernels().clip_by_value(model->refs, 0.1);
        }
        CHECK(cuda::counters().host_syncs == before.host_syncs);
        CHECK(norms[1].item<double>() == Approx(norms[0].item<double>()).epsilon(1e-5));
        CHECK(norms[1].item<double>() > 10);
        check_same(cuda.grads, host.grads, 2);
    }
}

TEST_CASE("cuda step: more parameters and groups than one launch takes", "[cuda]") {
    if (test::no_device()) return;
    const std::vector<std::int64_t> many(1500, 3);
    const Kind kind{float32, float32, false, float16};
    std::vector<StepArgs> groups(60, all_args()[2]);
    for (std::size_t g = 0; g < groups.size(); ++g) groups[g].options[0] = 0.01 * double(g + 1);
    Model host(Device{}, kind, many), cuda(device, kind, many);
    for (Model* model : {&host, &cuda}) {
        for (std::size_t i = 0; i < many.size(); ++i) model->refs[i].group = std::uint32_t(i / 25);
        const On<StepState> state(model->where, step_state());
        const Tensor norm = empty({}, {.device = model->where}),
                     flags = empty({1500}, {.device = model->where});
        model->kernels().statistics(model->refs,
                                    {.state = state.get(), .norm = static_cast<float*>(raw(norm))});
        double squares = 0;
        for (const Tensor& g : model->grads)
            for (const double x : test::doubles(g)) squares += x * x;
        CHECK(norm.item<double>() == Approx(std::sqrt(squares)).epsilon(1e-6));
        CHECK(state.read().found_inf == 0);
        model->kernels().update(model->refs, groups, {.state = state.get(), .clip = true, .max_norm = 1},
                                &state.get()->found_inf, state.get());
        CHECK(state.read().applied == 1);
        for (std::size_t i : {120, 121, 1400}) model->grads[i].fill_(double(inf));  // found by several blocks
        model->kernels().statistics(model->refs, {.state = state.get()});
        CHECK(state.read().found_inf == 1);
        model->kernels().flag_nonfinite(model->refs, static_cast<float*>(raw(flags)));
        for (std::size_t i : {120, 121, 1400}) CHECK(test::doubles(flags)[i] == 1);
        CHECK(test::doubles(sum(flags))[0] == 3);
        model->kernels().update(model->refs, groups, {}, &state.get()->found_inf, state.get());
        CHECK((state.read().applied == 1 && state.read().skipped == 1));
    }
    check_same(cuda, host);
}

TEST_CASE("cuda step: nothing but empty parameters is still a step", "[cuda]") {
    if (test::no_device()) return;
    for (const std::vector<std::int64_t>& none : {std::vector<std::int64_t>{}, {0, 0}}) {
        Model model(device, {float32, float32, false, float16}, none);
        const On<StepState> state(device, step_state(5, 1));
        const Tensor norm = full({}, 7, {.device = device});
        model.kernels().statistics(model.refs,
                                   {.state = state.get(), .norm = static_cast<float*>(raw(norm))});
        CHECK((state.read().found_inf == 0 && state.read().grad_multiplier == 1));
        CHECK(norm.item<float>() == 0);
        model.kernels().update(model.refs, {&all_args()[0], 1}, {}, nullptr, state.get());
        CHECK(state.read().applied == 1);
    }
}

TEST_CASE("cuda step: the scaler's events", "[cuda]") {
    if (test::no_device()) return;
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
                const float scale = scaler.read().current.scale;
                const Tensor g = full({1}, overflows[i] ? double(inf) : 1, {.device = where});
                ParamRef ref{};
                ref.grad = raw(g);
                ref.numel = 1;
                ref.dtype = ref.grad_dtype = float32;
                kernels.statistics({&ref, 1}, {.state = state.get(),
                                               .scaler = scaler.get(),
                                               .first = true,
                                               .scaled = true,
                                               .args = scheme.args});
                CHECK(state.read().grad_multiplier == 1 / scale);
                const ScalerState seen = scaler.read();
                CHECK(seen.current.scale == Approx(scheme.scales[i]));
                CHECK(seen.previous.scale == scale);
                CHECK(seen.found_inf == float(overflows[i]));
                kernels.update_scale(scaler.get(), scheme.args);  // gives the same result
                CHECK(scaler.read().current.scale == seen.current.scale);
                CHECK(scaler.read().current.growth_tracker == seen.current.growth_tracker);
                CHECK(scaler.read().current.hysteresis_left == seen.current.hysteresis_left);
            }
        }
    const On<ScalerState> huge(device, scaler_state(0x1p127f));
    step_kernels(DeviceType::cuda)->update_scale(huge.get(), {2, 0.5f, 1, 0, inf, 1, false, true});
    CHECK(huge.read().current.scale == 0x1p127f);
}
