// Captured steps that outlive their optimizer, scaler or schedule: replays go on with the state that they
// hold.
#include <catch2/catch.hpp>
#include <memory>

#include "core/tensor_impl.h"
#include "mezzo/mezzo.h"
#include "tests/support/support.h"

namespace {

using namespace mezzo;

const Device gpu{DeviceType::cuda};

enum class Gone { nothing, schedule, scaler, optimizer, everything };

// One parameter and its training; the test may destroy its objects between two calls of the captured step.
struct Training {
    Tensor w = full({6}, 0.5, {.device = gpu}).set_requires_grad();
    std::unique_ptr<optim::Optimizer> optimizer =
        std::make_unique<optim::AdamW>(StateDict{{"w", w}}, optim::AdamWOptions{.lr = 0.1});
    std::unique_ptr<optim::Scheduler> schedule = std::make_unique<optim::ExponentialLR>(*optimizer, 0.5);
    std::unique_ptr<amp::GradScaler> scaler =
        std::make_unique<amp::GradScaler>(amp::GradScalerOptions{.init_scale = 8, .growth_interval = 2});
    cuda::CapturedStep step{[this](const Tensors& in) -> Tensors {
                                scaler->scale(sum(square(w) * in[0])).backward();
                                scaler->unscale_(*optimizer);
                                const Tensor norm = nn::clip_grad_norm_({w}, 2);
                                scaler->step(*optimizer);
                                scaler->update();
                                optimizer->zero_grad();
                                return {norm};
                            },
                            {.device = gpu}};

    void destroy(Gone gone) {
        const bool all = gone == Gone::everything;
        if (all || gone == Gone::schedule) schedule.reset();
        if (all || gone == Gone::scaler) scaler.reset();
        if (all || gone == Gone::optimizer) optimizer.reset();
    }
};

std::vector<std::vector<double>> train(Gone gone) {
    Training t;
    std::vector<std::vector<double>> seen;
    for (int i = 0; i < 9; ++i) {
        if (i == 5) {
            const std::int64_t storages = live_objects().storages;
            t.destroy(gone);
            CHECK(live_objects().storages == storages);  // the graph holds what it reads and writes
        }
        seen.push_back(test::doubles(t.step({full({1}, 1 + 0.1 * i, {.device = gpu})})[0]));
        seen.push_back(test::doubles(t.w));
    }
    CHECK(t.step.statistics().replays == 9 - 4);
    return seen;
}

}  // namespace

TEST_CASE("captured lifetimes: a replay holds the optimizer's and the scaler's state", "[cuda]") {
    if (test::no_device()) return;
    const LiveObjects before = live_objects();
    const std::vector<std::vector<double>> expected = train(Gone::nothing);
    for (const Gone gone : {Gone::schedule, Gone::scaler, Gone::optimizer, Gone::everything}) {
        CAPTURE(int(gone));
        CHECK((train(gone) == expected));
    }
    CHECK(live_objects().tensors == before.tensors);
    CHECK(live_objects().storages == before.storages);
}

TEST_CASE("captured lifetimes: a scaler that is moved to another one", "[cuda]") {
    if (test::no_device()) return;
    std::vector<std::vector<double>> seen[2];
    for (const bool moves : {false, true}) {
        Training t;
        for (int i = 0; i < 8; ++i) {
            if (moves && i == 5) {
                amp::GradScaler target({.init_scale = 1024});
                target = std::move(*t.scaler);
                CHECK_THROWS_WITH(t.scaler->get_scale(), Catch::Matchers::Contains("moved from"));
                *t.scaler = std::move(target);
            }
            t.step({full({1}, 1, {.device = gpu})});
            seen[moves].push_back(test::doubles(t.w));
            seen[moves].push_back({t.scaler->get_scale()});
        }
        CHECK(t.step.statistics().replays == 8 - 4);
    }
    CHECK((seen[0] == seen[1]));
}
