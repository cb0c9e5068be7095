// The optimizer step of a device without kernels for it: the CPU's kernels on copies, against the device's
// own kernels.
#include <catch2/catch.hpp>
#include <limits>

#include "kernels/functor_step.h"
#include "kernels/narrow_state.h"
#include "kernels/step_copies.h"
#include "tests/support/support.h"

using namespace mezzo;

namespace {

struct Kind {
    Dtype param, grad;
    bool copy16, split = false;
    StateFormat format[2] = {};
};

// Parameters with state, gradients and counters in a device's memory; the same for each Kind.
struct Model {
    Tensors all;  // everything that a kernel may write, but for halves and narrow state
    Tensors params, low, narrow;
    std::vector<ParamRef> refs;
    Tensor state, scaler, norm, flags;

    Model(Device device, const Kind& kind) {
        const auto made = [&](std::int64_t n, Dtype dtype, std::uint64_t seed) {
            const auto domain = seed < 10 ? test::Domain::positive : test::Domain::any;
            all.push_back(test::tensor_of(test::random_values(n, seed, domain), {n}, dtype, device));
            return raw(all.back());
        };
        const Dtype wide = kind.param == float64 ? float64 : float32;
        for (const std::int64_t n : {3, 0, 2000}) {
            const auto seed = std::uint64_t(n);
            ParamRef p{.param = made(n, kind.param, seed + 20),
                       .grad = made(n, kind.grad, seed + 21),
                       .state = {made(n, wide, 1), made(n, wide, 2), made(n, wide, 3)},
                       .copy16 = kind.copy16 ? made(n, float16, 4) : nullptr,
                       .numel = n,
                       .dtype = kind.param,
                       .grad_dtype = kind.grad,
                       .copy16_dtype = float16,
                       .group = n == 3 ? 0u : 1u,
                       .step = nullptr};
            params.push_back(all[all.size() - (kind.copy16 ? 6 : 5)]);
            if (kind.split) {  // the lower halves of float32 numbers are any bits
                low.push_back(test::tensor_of(test::random_values(n, seed + 22, test::Domain::any), {n},
                                              bfloat16, device));
                p.low16 = raw(low.back());
            }
            for (int k = 0; k < 2; ++k)
                if (kind.format[k] != StateFormat::wide) {
                    const bool half = kind.format[k] == StateFormat::bf16;
                    const auto bytes = half ? 2 * n : block8_count(n) * std::int64_t(sizeof(Block8));
                    narrow.push_back(zeros({bytes}, {.dtype = uint8, .device = device}));
                    p.state[k] = raw(narrow.back());
                    p.format[k] = kind.format[k];
                    p.state[2] = nullptr;  // AdamW's of amsgrad
                }
            all.push_back(test::tensor_of({2, 0.5}, {2}, float32, device));
            p.step = static_cast<float*>(raw(all.back()));
            refs.push_back(p);
        }
        state = zeros({16}, {.device = device});
        scaler = test::tensor_of({8, 2, 1, 0, 8, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0}, {16}, float32, device);
        norm = zeros({}, {.device = device});
        flags = zeros({3}, {.device = device});
        for (const Tensor& t : {state, scaler, norm, flags}) all.push_back(t);
    }
    // The numbers of which parameters and `low` are the halves.
    std::vector<float> joined() const {
        std::vector<float> result;
        for (std::size_t i = 0; i < low.size(); ++i) {
            const Tensor upper = params[i].to(cpu_device), lower = low[i].to(cpu_device);
            for (std::int64_t j = 0; j < upper.numel(); ++j)
                result.push_back(
                    functors::number_of(functors::joined(static_cast<const std::uint16_t*>(raw(upper))[j],
                                                         static_cast<const std::uint16_t*>(raw(lower))[j])));
        }
        return result;
    }
    StepState* step_state() const { return static_cast<StepState*>(raw(state)); }
    ScalerState* scaler_state() const { return static_cast<ScalerState*>(raw(scaler)); }
};

// Runs the same on the device's kernels and on copies: all memory must be the same afterwards.
template <class Run> void check_same(const Kind& kind, Run run) {
    for (const Device device : test::devices()) {
        Model plain(device, kind), copied(device, kind);
        run(*step_kernels(device.type()), plain);
        run(copied_step_kernels(device), copied);
        for (std::size_t i = 0; i < plain.all.size(); ++i) {
            CAPTURE(i, name(kind.param), name(kind.grad), int(device.type()));
            const test::Tolerance allowed = device.type() == DeviceType::cpu
                                                ? test::Tolerance{0, 0}
                                                : test::tolerance(plain.all[i].dtype());
            CHECK(test::difference(test::doubles(copied.all[i]), test::doubles(plain.all[i]), allowed) == "");
        }
        const std::vector<float> a = copied.joined(), b = plain.joined();
        const bool cpu = device.type() == DeviceType::cpu;
        CHECK(test::difference(std::vector<double>(a.begin(), a.end()),
                               std::vector<double>(b.begin(), b.end()),
                               cpu ? test::Tolerance{0, 0} : test::tolerance(float32)) == "");
        for (std::size_t i = 0; i < plain.narrow.size() && cpu; ++i)
            CHECK((test::doubles(copied.narrow[i]) == test::doubles(plain.narrow[i])));
    }
}

const Kind kinds[] = {{float32, float32, false},
                      {float32, float16, true},
                      {float64, float64, false},
                      {bfloat16, bfloat16, false},
                      {bfloat16, float32, false, true}};
constexpr StepKernels::ScalerArgs rules = {2, 0.5f, 3, 0, 65536, 1, false, true};

}  // namespace

TEST_CASE("step on copies: statistics, then every optimizer's update", "[step]") {
    using functors::step_args;
    for (const Kind& kind : kinds)
        for (const StepArgs& args :
             {step_args(optim::SGDOptions{.momentum = 0.9}), step_args(optim::AdamWOptions{.amsgrad = true}),
              step_args(optim::RMSpropOptions{.momentum = 0.9, .centered = true}),
              step_args(optim::NAdamOptions{}), step_args(optim::LionOptions{})})
            check_same(kind, [&](const StepKernels& kernels, Model& m) {
                StepArgs other = args;
                other.options[0] = 0.5;
                const std::vector<StepArgs> groups = {args, other};
                kernels.statistics(m.refs, {.state = m.step_state(),
                                            .norm = static_cast<float*>(raw(m.norm)),
                                            .scaler = m.scaler_state(),
                                            .first = true,
                                            .scaled = true,
                                            .args = rules});
                kernels.update(m.refs, groups, {.state = m.step_state(), .clip = true, .max_norm = 0.1},
                               &m.step_state()->found_inf, m.step_state());
            });
}

TEST_CASE("step on copies: state in less than 32 bits", "[step]") {
    constexpr auto half = StateFormat::bf16, codes = StateFormat::signed_blocks,
                   unsigned_codes = StateFormat::unsigned_blocks;
    for (const Kind& kind : {Kind{float32, float32, false, false, {half, half}},
                             Kind{float32, float16, true, false, {codes, half}},
                             Kind{bfloat16, bfloat16, false, true, {codes, unsigned_codes}},
                             Kind{bfloat16, float64, false, false, {codes, unsigned_codes}}})
        check_same(kind, [](const StepKernels& kernels, Model& m) {
            const std::vector<StepArgs> groups(2, functors::step_args(optim::AdamWOptions{.lr = 0.1}));
            kernels.update(m.refs, groups, {}, nullptr, m.step_state());
        });
}

TEST_CASE("step on copies: an overflow skips the update and backs off", "[step]") {
    check_same(kinds[0], [](const StepKernels& kernels, Model& m) {
        m.all[1].fill_(std::numeric_limits<double>::infinity());
        const std::vector<StepArgs> groups = {functors::step_args(optim::SGDOptions{}),
                                              functors::step_args(optim::SGDOptions{})};
        kernels.statistics(m.refs, {.state = m.step_state(),
                                    .scaler = m.scaler_state(),
                                    .first = true,
                                    .scaled = true,
                                    .args = rules});
        kernels.update(m.refs, groups, {}, &m.step_state()->found_inf, m.step_state());
        kernels.flag_nonfinite(m.refs, static_cast<float*>(raw(m.flags)));
        CHECK(test::doubles(m.flags) == std::vector<double>{1, 0, 0});
        CHECK(test::doubles(m.scaler)[0] == 4);
        CHECK(test::doubles(m.state)[4] == 1);  // skipped
    });
}

TEST_CASE("step on copies: gradients in place, the scaler, a rate on the device", "[step]") {
    for (const Kind& kind : kinds)
        check_same(kind, [](const StepKernels& kernels, Model& m) {
            kernels.statistics(m.refs, {.state = m.step_state(), .norm = static_cast<float*>(raw(m.norm))});
            kernels.scale_gradients(m.refs, {.state = m.step_state(), .clip = true, .max_norm = 1});
            kernels.clip_by_value(m.refs, 0.01);
            kernels.update_scale(m.scaler_state(), rules);
            const Tensor rate = full({}, 0.25, {.dtype = float64, .device = m.state.device()});
            StepArgs args = functors::step_args(optim::LionOptions{.lr = 3});
            args.lr_on_device = static_cast<const double*>(raw(rate));
            const std::vector<StepArgs> groups = {args, args};
            kernels.update(m.refs, groups, {}, nullptr, m.step_state());
        });
}
