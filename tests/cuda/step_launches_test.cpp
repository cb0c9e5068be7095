// Counts launches, copies and waits of an optimizer step on the CUDA device, real or emulated.
#include <catch2/catch.hpp>
#include <memory>
#include <optional>
#include <vector>

#include "cuda/runtime/runtime.h"
#include "mezzo/distributed/data_parallel.h"
#include "mezzo/distributed/group.h"
#include "mezzo/mezzo.h"
#include "tests/support/support.h"

namespace {

using namespace mezzo;

const Device gpu{DeviceType::cuda};

enum class Method { sgd, momentum, adam, adamw, rmsprop };

// An optimizer with two groups of parameters that have different options.
std::unique_ptr<optim::Optimizer> make(Method method, const Tensors& params) {
    const auto cut = std::ptrdiff_t(params.size() / 3);
    const Tensors some(params.begin(), params.begin() + cut), others(params.begin() + cut, params.end());
    switch (method) {
        case Method::adam:
            return std::make_unique<optim::Adam>(
                std::vector<optim::AdamGroup>{{.params = some}, {.params = others, .options = {.lr = 0.1}}});
        case Method::adamw:
            return std::make_unique<optim::AdamW>(
                std::vector<optim::AdamWGroup>{{.params = some}, {.params = others, .options = {.lr = 0.1}}});
        case Method::rmsprop:  // with all the state that an optimizer can have
            return std::make_unique<optim::RMSprop>(std::vector<optim::RMSpropGroup>{
                {.params = some},
                {.params = others, .options = {.lr = 0.1, .momentum = 0.9, .centered = true}}});
        default:
            const optim::SGDOptions options{.lr = 0.1, .momentum = method == Method::momentum ? 0.9 : 0.0};
            return std::make_unique<optim::SGD>(
                std::vector<optim::SGDGroup>{{.params = some, .options = options}, {.params = others}});
    }
}

struct Loop {
    bool scaled, clip;
};

cuda::Counters difference(const cuda::Counters& before, const cuda::Counters& after) {
    return {after.launches - before.launches, after.host_syncs - before.host_syncs,
            after.copies - before.copies};
}

// Counters of all work after backward, in the third step.
cuda::Counters cost(Method method, std::size_t count, const Loop& loop, Dtype dtype) {
    Tensors params;
    for (std::size_t i = 0; i < count; ++i)
        params.push_back(
            full({std::int64_t(1 + i % 5)}, 0.5, {.dtype = dtype, .device = gpu}).set_requires_grad());
    const auto optimizer = make(method, params);
    if (is_16bit(dtype)) optimizer->use_master_weights();
    amp::GradScaler scaler({.enabled = loop.scaled});
    cuda::Counters before{}, after{};
    for (int i = 0; i < 3; ++i) {
        optimizer->zero_grad();
        scaler.scale(ones({}, {.device = gpu}));
        for (const Tensor& p : params) p.set_grad(full(p.shape(), 3, {.dtype = dtype, .device = gpu}));
        before = cuda::counters();
        Tensor norm;
        if (loop.clip) {
            scaler.unscale_(*optimizer);
            norm = nn::clip_grad_norm_(params, 0.5);
        }
        scaler.step(*optimizer);
        scaler.update();
        after = cuda::counters();
    }
    CHECK(optimizer->applied_steps() == 3);
    return difference(before, after);
}

}  // namespace

TEST_CASE("step launches: two with scaler or clipping, one without, and no waiting", "[cuda]") {
    if (test::no_device()) return;
    for (const Method method : {Method::sgd, Method::momentum, Method::adam, Method::adamw, Method::rmsprop})
        for (const Dtype dtype : {float32, float16})
            for (const std::size_t count : {3, 200, 400, 1500})
                for (const Loop& loop :
                     {Loop{true, false}, Loop{true, true}, Loop{false, false}, Loop{false, true}}) {
                    CAPTURE(int(method), name(dtype), count, loop.scaled, loop.clip);
                    if (dtype == float16 && count == 1500) continue;
                    const cuda::Counters spent = cost(method, count, loop, dtype);
                    const bool reads = loop.scaled || loop.clip;
                    // a table holds 1,350 gradients, or 416 parameters with their state
                    const std::uint64_t expected = count == 1500 ? (reads ? 2 : 0) + 4 : (reads ? 1 : 0) + 1;
                    CHECK(spent.launches == expected);
                    CHECK(spent.host_syncs == 0);
                    CHECK(spent.copies == 0);
                }
}

TEMPLATE_TEST_CASE("step launches: one for an update with split masters and moments in less than 32 bits",
                   "[cuda]", optim::Adam, optim::AdamW) {
    if (test::no_device()) return;
    Tensors params;
    for (std::int64_t i = 0; i < 60; ++i)
        params.push_back(
            full({64, i % 2 == 0 ? 64 : 1}, 0.5, {.dtype = bfloat16, .device = gpu}).set_requires_grad());
    TestType optimizer(params, {.states = optim::StatePrecision::eight_bit});
    optimizer.use_master_weights(optim::MasterWeights::split);
    for (int i = 0; i < 3; ++i) {
        for (const Tensor& p : params) p.set_grad(full(p.shape(), 3, {.dtype = bfloat16, .device = gpu}));
        const cuda::Counters before = cuda::counters();
        optimizer.step();
        const cuda::Counters spent = difference(before, cuda::counters());
        if (i == 0) continue;  // makes the state
        CHECK(spent.launches == 1);
        CHECK(spent.host_syncs == 0);
        CHECK(spent.copies == 0);
    }
}

TEST_CASE("step launches: DataParallel in a group of one adds nothing", "[cuda][distributed]") {
    if (test::no_device()) return;
    const distributed::Group alone = distributed::init();
    std::vector<cuda::Counters> steps;
    for (const bool grouped : {false, true}) {
        nn::Sequential net(nn::Linear(8, 16), nn::ReLU(), nn::Linear(16, 4));
        net.to(gpu);
        std::optional<distributed::DataParallel> parallel;
        if (grouped) parallel.emplace(net, alone);
        optim::AdamW optimizer(net.parameters());
        const Tensor x = ones({5, 8}, {.device = gpu}), y = ones({5, 4}, {.device = gpu});
        cuda::Counters before{}, after{};
        for (int step = 0; step < 3; ++step) {
            before = cuda::counters();
            mse_loss(net(x), y).backward();
            optimizer.step();
            optimizer.zero_grad();
            after = cuda::counters();
        }
        steps.push_back(difference(before, after));
    }
    CHECK(steps[0].launches > 0);
    CHECK(steps[1].launches == steps[0].launches);
    CHECK(steps[1].host_syncs == steps[0].host_syncs);
    CHECK(steps[1].copies == steps[0].copies);
}
