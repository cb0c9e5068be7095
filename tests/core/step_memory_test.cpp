// The memory plan of a captured step, which assigns offsets to lifetimes.
#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <random>

#include "capture/step_memory.h"
#include "core/memory/storage.h"
#include "core/tensor_impl.h"
#include "mezzo/capture.h"
#include "mezzo/distributed/state.h"
#include "mezzo/mezzo.h"

using namespace mezzo;

namespace {

constexpr std::uint32_t never = ~std::uint32_t(0);

// Checks that no two allocations that are alive together share a byte.
void check_plan(const std::vector<Lifetime>& lifetimes, const MemoryPlan& plan) {
    REQUIRE(plan.offsets.size() == lifetimes.size());
    for (std::size_t i = 0; i < lifetimes.size(); ++i) {
        CHECK(plan.sizes[i] == lifetimes[i].bytes);
        CHECK(plan.offsets[i] + plan.sizes[i] <= plan.bytes);
        for (std::size_t j = 0; j < i; ++j) {
            const bool together =
                lifetimes[i].birth < lifetimes[j].death && lifetimes[j].birth < lifetimes[i].death;
            const bool apart = plan.offsets[i] + plan.sizes[i] <= plan.offsets[j] ||
                               plan.offsets[j] + plan.sizes[j] <= plan.offsets[i];
            REQUIRE((apart || !together));
        }
    }
}

// A block's worth of floats.
Tensor block(std::int64_t blocks = 1) { return empty({blocks * 128}); }

}  // namespace

TEST_CASE("step memory: places are shared by tensors that never meet") {
    // a stays, b dies before c is born, d outlives the step
    const std::vector<Lifetime> lifetimes{
        {1024, 0, 7}, {512, 1, 2}, {512, 3, 6}, {1024, 4, never}, {512, 5, 8}};
    const MemoryPlan plan = plan_memory(lifetimes);
    check_plan(lifetimes, plan);
    CHECK(plan.live_peak == 1024 + 512 + 1024 + 512);
    CHECK(plan.bytes == plan.live_peak);
    CHECK(plan_memory({{512, 0, 1}, {512, 2, 3}, {1024, 4, 5}}).bytes == 1024);
    CHECK(plan_memory({}).bytes == 0);
}

TEST_CASE("step memory: random lifetimes") {
    std::mt19937 random(7);
    for (int round = 0; round < 20; ++round) {
        std::vector<Lifetime> lifetimes;
        std::vector<std::size_t> live;
        std::size_t now = 0, peak = 0;
        for (std::uint32_t clock = 0; clock < 200; ++clock) {
            if (live.empty() || random() % 5 < 3) {
                lifetimes.push_back({512 * (1 + random() % 9), clock, never});
                live.push_back(lifetimes.size() - 1);
                now += lifetimes.back().bytes;
                peak = std::max(peak, now);
            } else {
                const std::size_t at = random() % live.size();
                lifetimes[live[at]].death = clock;
                now -= lifetimes[live[at]].bytes;
                live.erase(live.begin() + std::ptrdiff_t(at));
            }
        }
        const MemoryPlan plan = plan_memory(lifetimes);
        check_plan(lifetimes, plan);
        CHECK(plan.live_peak == peak);
        CHECK(plan.bytes >= peak);
        CHECK(plan.bytes <= peak + peak / 4);
    }
}

TEST_CASE("step memory: a traced step runs again in its arena") {
    Tensor kept;
    const auto step = [&] {
        const Tensor a = block(2);
        kept = Tensor();  // from the run before
        { const Tensor b = block(); }
        const Tensor c = block();
        kept = block(3);
    };
    step();
    MemoryPlan plan;
    {
        const MemoryTrace trace(cpu_device);
        step();
        plan = plan_memory(trace.lifetimes());
    }
    CHECK(plan.sizes == std::vector<std::size_t>{1024, 512, 512, 1536});
    CHECK(plan.bytes == 3072);

    const LiveObjects before = live_objects();
    const std::size_t allocated = memory_stats(cpu_device).allocated;
    {
        const Ref<Storage> arena = allocate_storage(plan.bytes, cpu_device);
        HeldBlocks held;
        {
            ArenaMemory memory(cpu_device, plan, arena, held);
            step();
        }
        const char* const first = static_cast<char*>(arena->data);
        CHECK(kept->bytes() == first + plan.offsets[3]);
        // the arena, and the older tensor that is held for a graph that may read it
        CHECK(memory_stats(cpu_device).allocated == allocated + 3072);
    }
    // the tensor holds its arena
    CHECK(memory_stats(cpu_device).allocated == allocated + 3072 - 1536);
    kept.fill_(1);
    kept = Tensor();
    CHECK(memory_stats(cpu_device).allocated == allocated - 1536);
    CHECK(live_objects().storages == before.storages - 1);
}

TEST_CASE("step memory: a step that allocates nothing holds what it releases") {
    Tensor outside = block();
    const std::size_t allocated = memory_stats(cpu_device).allocated;
    {
        HeldBlocks held;
        {
            ArenaMemory memory(cpu_device, {}, {}, held);
            outside = Tensor();
        }
        CHECK(memory_stats(cpu_device).allocated == allocated);
    }
    CHECK(memory_stats(cpu_device).allocated < allocated);
}

TEST_CASE("step memory: borrowed memory that is given up in a step is held for its graph") {
    static int given_back;
    given_back = 0;
    float values[4] = {};
    MemoryPlan plan;
    plan.offsets = {0};
    plan.sizes = {512};
    plan.bytes = 512;
    {
        const Ref<Storage> arena = allocate_storage(plan.bytes, cpu_device);
        HeldBlocks held;
        {
            ArenaMemory memory(cpu_device, plan, arena, held);
            borrowed_storage(
                values, sizeof values, cpu_device, [](void*) { ++given_back; }, nullptr);
        }
        CHECK(given_back == 0);
    }
    CHECK(given_back == 1);
}

TEST_CASE("step memory: a step that differs from its trace is refused") {
    MemoryPlan plan;
    {
        const MemoryTrace trace(cpu_device);
        { const Tensor a = block(); }
        { const Tensor b = block(); }
        plan = plan_memory(trace.lifetimes());
    }
    CHECK(plan.bytes == 512);
    const Ref<Storage> arena = allocate_storage(plan.bytes, cpu_device);
    HeldBlocks held;
    const auto kind_of = [&](const std::function<void()>& step) {
        ArenaMemory memory(cpu_device, plan, arena, held);
        try {
            step();
        } catch (const Error& error) {
            CHECK(std::string(error.what()).find("captured step: allocation") == 0);
            return error.kind();
        }
        return ErrorKind::io;
    };
    CHECK(kind_of([] { block(2); }) == ErrorKind::state);                     // another size
    CHECK(kind_of([] { (block(), block(), block()); }) == ErrorKind::state);  // one more
    CHECK(kind_of([] {
              const Tensor a = block(), b = block();  // the first lives longer
          }) == ErrorKind::state);
    CHECK(kind_of([] {
              { const Tensor a = block(); }
              const Tensor b = block();
          }) == ErrorKind::io);
}

TEST_CASE("captured step: on the CPU it runs the step") {
    int calls = 0;
    cuda::CapturedStep step(
        [&](const Tensors& in) {
            ++calls;
            return Tensors{in[0] * 2.0, Tensor()};
        },
        {.device = cpu_device});
    for (int i = 1; i <= 6; ++i) {
        const Tensors results = step({full({3}, i)});
        CHECK(results[0].to_vector<float>() == std::vector<float>(3, float(2 * i)));
        CHECK_FALSE(results[1].defined());
    }
    CHECK(calls == 6);
    CHECK(step.statistics().eager_runs == 6);
    CHECK(step.statistics().captures == 0);
}

TEST_CASE("captured step: results carry no history, inputs no gradient") {
    const Tensor w = ones({3}).set_requires_grad();
    cuda::CapturedStep step([&](const Tensors& in) { return Tensors{sum(in[0] * w)}; },
                            {.device = cpu_device});
    CHECK_FALSE(step({ones({3})})[0].requires_grad());
    CHECK_THROWS_WITH(step({w}), Catch::StartsWith("CapturedStep: input 0 requires grad"));
    CHECK_THROWS_WITH(step({Tensor()}), Catch::StartsWith("CapturedStep: input 0 is undefined"));
    const amp::Autocast scope;
    CHECK_THROWS_WITH(step({ones({3})}), Catch::StartsWith("CapturedStep: called inside an Autocast scope"));
}

TEST_CASE("captured step: bad options are refused") {
    const auto same = [](const Tensors& in) { return in; };
    CHECK_THROWS_WITH(cuda::CapturedStep(same, {.warmup = 0}),
                      Catch::StartsWith("CapturedStep: warmup is 0"));
    CHECK_THROWS_WITH(cuda::CapturedStep(same, {.max_graphs = 0}),
                      Catch::StartsWith("CapturedStep: max_graphs is 0"));
    CHECK_THROWS_AS(cuda::CapturedStep(same, {.device = Device(DeviceType::cuda, 77)}), Error);
}
