// Steps captured as graphs on the CUDA device, real or emulated: the same bits as in eager calls, with one
// launch per call.
#include <catch2/catch.hpp>
#include <memory>

#include "autograd/autocast_state.h"
#include "cuda/gemm/gemm.h"
#include "cuda/runtime/runtime.h"
#include "mezzo/mezzo.h"
#include "tests/support/support.h"

namespace {

using namespace mezzo;

const Device gpu{DeviceType::cuda};
constexpr std::int64_t width = 8;

// Allocated bytes without the workspace of the GEMM library, which the device keeps from the first product
// on.
std::size_t allocated() { return memory_stats(gpu).allocated - cuda::workspace_bytes(); }

struct Recipe {
    Dtype compute = float16;
    bool adam = true;
    bool zero_first = false, clip = true, checkpoint = false;
    double dropout = 0.25;
    int micro_batches = 1;
};

Tensor values(std::int64_t rows, int seed, double factor = 1) {
    Tensor x = test::tensor_of(test::random_values(rows * width, std::uint64_t(seed), test::Domain::any),
                               {rows, width}, float32, gpu);
    return factor == 1 ? x : x * factor;
}

// A model with every object that a training step may have; the schedule runs after the step.
struct Training {
    Recipe recipe;
    nn::Sequential model;
    std::unique_ptr<optim::Optimizer> optimizer;
    amp::GradScaler scaler;
    std::unique_ptr<optim::Scheduler> schedule;
    autograd::Callback<void()> extra = [] {};  // in the middle of the step

    explicit Training(const Recipe& r = {})
        : recipe(r),
          model{nn::Linear(width, 2 * width), nn::ReLU(), nn::Dropout(r.dropout),
                nn::Linear(2 * width, width)},
          scaler({.init_scale = 1024, .growth_interval = 3, .enabled = r.compute == float16}) {
        manual_seed(3);
        for (const Tensor& p : model.parameters()) {
            NoGrad plain;
            p.normal_(0, 0.3);
        }
        model.to(gpu);
        const Tensors p = model.parameters();
        if (r.adam)
            optimizer = std::make_unique<optim::AdamW>(std::vector<optim::AdamWGroup>{
                {.params = {p[0], p[2]}, .options = {.lr = 0.02}},
                {.params = {p[1], p[3]}, .options = {.lr = 0.01, .weight_decay = 0}}});
        else
            optimizer = std::make_unique<optim::SGD>(p, optim::SGDOptions{.lr = 0.05, .momentum = 0.9});
        schedule = std::make_unique<optim::CosineAnnealingLR>(*optimizer,
                                                              optim::CosineAnnealingLROptions{.t_max = 20});
    }

    Tensor forward(const Tensor& x) {
        if (!recipe.checkpoint) return model(x);
        return autograd::checkpoint([&](const Tensors& in) { return Tensors{model(in[0])}; }, {x})[0];
    }
    Tensors step(const Tensors& in) {
        if (recipe.zero_first) optimizer->zero_grad();
        Tensor loss;
        for (int m = 0; m < recipe.micro_batches; ++m) {
            const amp::Autocast scope({.device = DeviceType::cuda,
                                       .dtype = is_16bit(recipe.compute) ? recipe.compute : float16,
                                       .enabled = is_16bit(recipe.compute)});
            loss = mse_loss(forward(in[0]), in[1]);
            scaler.scale(loss).backward();
        }
        extra();
        scaler.unscale_(*optimizer);
        const Tensor norm = recipe.clip ? nn::clip_grad_norm_(model.parameters(), 0.5) : Tensor();
        scaler.step(*optimizer);
        scaler.update();
        if (!recipe.zero_first) optimizer->zero_grad();
        return {loss, norm};
    }
    cuda::StepFunction function() {
        return [this](const Tensors& in) { return step(in); };
    }
};

// Results by which two runs are compared.
struct Seen {
    std::vector<std::vector<double>> results, parameters;
    std::vector<double> scales, rates;
    std::int64_t applied = 0, skipped = 0;
    std::uint64_t drawn = 0;
};

// Makes one call and does the work that a training loop does after it. In step `overflow_at` the loss is not
// finite.
void train(Training& t, cuda::CapturedStep* captured, int i, Seen& seen, std::int64_t rows = 4,
           int overflow_at = -1) {
    const Tensors in{values(rows, i, i == overflow_at ? 1e30 : 1), values(rows, i + 1000)};
    const Tensors out = captured != nullptr ? (*captured)(in) : t.step(in);
    for (const Tensor& y : out)
        if (y.defined()) seen.results.push_back(test::doubles(y));
    seen.scales.push_back(t.scaler.get_scale());
    t.schedule->step();
    seen.rates.push_back(t.optimizer->lr(0));
}

Seen finish(Training& t, Seen seen) {
    for (const Tensor& p : t.model.parameters()) seen.parameters.push_back(test::doubles(p));
    for (const auto& [name, x] : t.optimizer->state_dict()) seen.parameters.push_back(test::doubles(x));
    seen.applied = t.optimizer->applied_steps();
    seen.skipped = t.optimizer->skipped_steps();
    seen.drawn = random_state().offset;
    return seen;
}

void check_same(const Seen& a, const Seen& b) {
    const auto same = [](const auto& x, const auto& y) {
        REQUIRE(x.size() == y.size());
        for (std::size_t i = 0; i < x.size(); ++i) {
            CAPTURE(i);
            CHECK(test::difference(x[i], y[i], {0, 0}) == "");
        }
    };
    same(a.results, b.results);
    same(a.parameters, b.parameters);
    CHECK(a.scales == b.scales);
    CHECK(a.rates == b.rates);
    CHECK(a.applied == b.applied);
    CHECK(a.skipped == b.skipped);
    CHECK(a.drawn == b.drawn);
}

struct Schedule {
    int steps = 10, overflow_at = 6;
    bool two_shapes = false;
    // Runs between two calls.
    autograd::Callback<void(Training&, int)> between = [](Training&, int) {};
};

Seen run(const Recipe& recipe, const Schedule& plan, cuda::CaptureStatistics* statistics,
         const cuda::CaptureOptions& options = {.device = gpu}) {
    Training t(recipe);
    std::unique_ptr<cuda::CapturedStep> captured;
    if (statistics != nullptr) captured = std::make_unique<cuda::CapturedStep>(t.function(), options);
    manual_seed(5);
    Seen seen;
    for (int i = 0; i < plan.steps; ++i) {
        train(t, captured.get(), i, seen, plan.two_shapes && i % 3 == 2 ? 6 : 4, plan.overflow_at);
        plan.between(t, i);
    }
    if (statistics != nullptr) *statistics = captured->statistics();
    return finish(t, seen);
}

cuda::CaptureStatistics compare(const Recipe& recipe, const Schedule& plan = {},
                                const cuda::CaptureOptions& options = {.device = gpu}) {
    CAPTURE(name(recipe.compute), recipe.adam, recipe.zero_first, recipe.micro_batches, recipe.checkpoint);
    cuda::CaptureStatistics statistics;
    const Seen eager = run(recipe, plan, nullptr);
    check_same(run(recipe, plan, &statistics, options), eager);
    return statistics;
}

}  // namespace

TEST_CASE("captured step: training is bitwise that of eager calls", "[cuda]") {
    if (test::no_device()) return;
    for (Dtype compute : {float32, bfloat16, float16})
        for (bool adam : {false, true}) {
            const bool low = compute == float16;
            const cuda::CaptureStatistics seen =
                compare({.compute = compute, .adam = adam}, {.steps = 10, .overflow_at = low ? 6 : -1});
            CHECK(seen.eager_runs == 3);
            CHECK(seen.captures == 1);
            CHECK(seen.replays == 6);
        }
}

TEST_CASE("captured step: a transformer layer with dropout everywhere", "[cuda]") {
    if (test::no_device()) return;
    const auto train_layer = [](bool capture, Dtype compute) {
        manual_seed(8);
        nn::TransformerEncoderLayer layer(16, 2, {.dim_feedforward = 16, .dropout = 0.3});
        layer.to(gpu);
        optim::AdamW optimizer(layer.parameters(), {.lr = 0.01});
        const auto step = [&](const Tensors& in) {
            Tensor loss;
            {
                const amp::Autocast scope({.device = DeviceType::cuda,
                                           .dtype = is_16bit(compute) ? compute : float16,
                                           .enabled = is_16bit(compute)});
                loss = mean(square(layer(in[0]) - 1.0));
            }
            loss.backward();
            optimizer.step();
            optimizer.zero_grad();
            return Tensors{loss};
        };
        cuda::CapturedStep captured(step, {.device = gpu});
        std::vector<std::vector<double>> seen;
        for (int i = 0; i < 7; ++i) {
            const Tensors in{values(2 * 5 * 2, i).reshape({2, 5, 16})};
            seen.push_back(test::doubles(capture ? captured(in)[0] : step(in)[0]));
        }
        CHECK(captured.statistics().replays == (capture ? 3u : 0u));
        for (const Tensor& p : layer.parameters()) seen.push_back(test::doubles(p));
        return seen;
    };
    for (Dtype compute : {float32, bfloat16})
        CHECK((train_layer(true, compute) == train_layer(false, compute)));
}

TEST_CASE("captured step: zero_grad first, micro-batches, checkpoints", "[cuda]") {
    if (test::no_device()) return;
    CHECK(compare({.zero_first = true}).replays == 6);
    CHECK(compare({.zero_first = true, .micro_batches = 2}).replays == 6);
    CHECK(compare({.micro_batches = 2}).replays == 6);
    CHECK(compare({.checkpoint = true}).replays == 6);
    CHECK(compare({.clip = false}).replays == 6);
}

TEST_CASE("captured step: an overflow in a replay is skipped", "[cuda]") {
    if (test::no_device()) return;
    cuda::CaptureStatistics statistics;
    const Seen seen = run({}, {.steps = 10, .overflow_at = 7}, &statistics);
    CHECK(statistics.replays == 6);
    CHECK(seen.applied == 9);
    CHECK(seen.skipped == 1);
    CHECK(seen.scales[7] == seen.scales[6] / 2);
}

TEST_CASE("captured step: each shape has its graph", "[cuda]") {
    if (test::no_device()) return;
    const Schedule plan{.steps = 18, .two_shapes = true};
    const cuda::CaptureStatistics both = compare({}, plan);
    CHECK(both.captures == 2);
    CHECK(both.graphs == 2);
    CHECK(both.replays == 18 - 2 * 4);
    // with room for one graph, every change of shape captures again
    const cuda::CaptureStatistics one = compare({}, plan, {.warmup = 2, .max_graphs = 1, .device = gpu});
    CHECK(one.graphs <= 1);
    CHECK(one.replays == 0);
    CHECK(one.eager_runs + one.captures == 18);
}

TEST_CASE("captured step: the least recently used graph goes", "[cuda]") {
    if (test::no_device()) return;
    cuda::CapturedStep captured([](const Tensors& in) { return Tensors{in[0] + 1.0}; },
                                {.warmup = 1, .max_graphs = 2, .device = gpu});
    const auto replays = [&](std::int64_t n) {
        const std::uint64_t before = captured.statistics().replays;
        CHECK(captured({full({n}, n)})[0].to_vector<float>() ==
              std::vector<float>(std::size_t(n), float(n + 1)));
        return captured.statistics().replays - before;
    };
    for (int i = 0; i < 2; ++i)
        for (std::int64_t n : {1, 2}) replays(n);
    CHECK(replays(2) == 1);
    CHECK(replays(1) == 1);
    replays(3);  // evicts 2
    CHECK(replays(1) == 1);
    CHECK(replays(2) == 0);
    CHECK(captured.statistics().graphs == 1);
}

TEST_CASE("captured step: random numbers drawn between calls", "[cuda]") {
    if (test::no_device()) return;
    const cuda::CaptureStatistics seen = compare({}, {.between = [](Training&, int i) {
                                                     if (i % 2 == 0) rand({10});
                                                     if (i == 7) manual_seed(99);
                                                 }});
    CHECK(seen.replays == 6);
}

TEST_CASE("captured step: what changes between calls is noticed", "[cuda]") {
    if (test::no_device()) return;
    const auto check_restart = [](const autograd::Callback<void(Training&)>& change) {
        const cuda::CaptureStatistics seen =
            compare({}, {.steps = 13, .between = [change](Training& t, int i) {
                             if (i == 5) change(t);
                         }});
        CHECK(seen.captures == 2);
        CHECK(seen.eager_runs == 6);
        CHECK(seen.replays == 13 - 2 - 6);
    };
    check_restart([](Training& t) {  // new moments
        const StateDict state = t.optimizer->state_dict();
        t.optimizer->load_state_dict(state);
    });
    check_restart([](Training& t) {  // the 16-bit copy is no longer current
        NoGrad plain;
        t.model.parameters()[0].mul_(0.5);
    });
    check_restart([](Training& t) { t.scaler.set_growth_interval(2); });
    check_restart([](Training& t) {  // the next step would add to it
        t.model.parameters()[0].set_grad(full({2 * width, width}, 0.25, {.device = gpu}));
    });
    // a new rate and a new scale are not baked in
    const cuda::CaptureStatistics seen = compare({}, {.between = [](Training& t, int i) {
                                                     if (i == 5) t.optimizer->set_lr(0.003);
                                                     if (i == 6)
                                                         t.scaler.load_state_dict(t.scaler.state_dict());
                                                 }});
    CHECK(seen.captures == 1);
}

TEST_CASE("captured step: gradients that are summed over calls stay right", "[cuda]") {
    if (test::no_device()) return;
    Tensors sums;
    for (bool capture : {false, true}) {
        const Tensor w = test::tensor_of(test::random_values(width * width, 1, test::Domain::any),
                                         {width, width}, float32, gpu)
                             .set_requires_grad();
        cuda::CapturedStep captured([&](const Tensors& in) {
            const Tensor loss = mean(square(matmul(in[0], w)));
            loss.backward();
            return Tensors{loss};
        });
        for (int i = 0; i < 12; ++i) {
            const Tensor x = values(4, i);
            if (capture)
                captured({x});
            else
                mean(square(matmul(x, w))).backward();
            if (i % 4 != 3) continue;
            sums.push_back(w.grad().clone());
            w.set_grad({});
        }
    }
    for (std::size_t i = 0; i < 3; ++i) CHECK(all_close(sums[i], sums[i + 3], 0, 0));
}

TEST_CASE("captured step: a replay is one launch, and neither waits nor allocates", "[cuda]") {
    if (test::no_device()) return;
    Training t;
    cuda::CapturedStep captured(t.function(), {.device = gpu});
    const Tensors in{values(4, 1), values(4, 2)};
    const cuda::Counters at_start = cuda::counters();
    for (int i = 0; i < 5; ++i) captured(in);
    CHECK(cuda::counters().host_syncs == at_start.host_syncs);

    const cuda::Counters before = cuda::counters();
    const MemoryStats memory = memory_stats(gpu);
    for (int i = 0; i < 4; ++i) captured(in);
    CHECK(cuda::counters().host_syncs == before.host_syncs);
    CHECK(cuda::counters().launches == before.launches + 4);
    CHECK(cuda::counters().copies == before.copies + 4 * 3);  // two inputs and the arguments
    CHECK(memory_stats(gpu).allocations == memory.allocations);
    CHECK(captured.statistics().replays == 5);
}

TEST_CASE("captured step: the planned peak is the peak", "[cuda]") {
    if (test::no_device()) return;
    const LiveObjects objects = live_objects();
    const std::size_t at_start = allocated();
    {
        Training t;
        const Tensors in{values(64, 1), values(64, 2)};
        cuda::CapturedStep captured(t.function(), {.device = gpu});
        for (int i = 0; i < 2; ++i) captured(in);
        const std::size_t eager = memory_stats(gpu).allocated;
        reset_peak(gpu);
        captured(in);
        const std::size_t eager_peak = memory_stats(gpu).max_allocated - eager;
        CHECK(memory_stats(gpu).allocated == eager);
        reset_peak(gpu);
        captured(in);
        const cuda::CaptureStatistics seen = captured.statistics();
        CHECK(seen.captures == 1);
        CHECK(seen.live_peak_bytes == eager_peak);
        CHECK(seen.planned_bytes >= seen.live_peak_bytes);
        CHECK(seen.planned_bytes <= seen.live_peak_bytes + seen.live_peak_bytes / 4);
        const std::size_t arguments = 2048;  // 254 numbers and a random state
        CHECK(memory_stats(gpu).allocated == eager + seen.planned_bytes + arguments);
        CHECK(memory_stats(gpu).max_allocated == memory_stats(gpu).allocated);
        for (int i = 0; i < 3; ++i) captured(in);
        CHECK(memory_stats(gpu).max_allocated == eager + seen.planned_bytes + arguments);
        captured.clear();
        CHECK(memory_stats(gpu).allocated < eager);  // its inputs are gone too
        CHECK(captured.statistics().graphs == 0);
    }
    CHECK(allocated() == at_start);
    CHECK(live_objects().tensors == objects.tensors);
    CHECK(live_objects().storages == objects.storages);
    CHECK(live_objects().nodes == objects.nodes);
}

TEST_CASE("captured step: results are overwritten by the next call, and outlive the graph", "[cuda]") {
    if (test::no_device()) return;
    Tensor last;
    {
        cuda::CapturedStep captured(
            [](const Tensors& in) {
                return Tensors{in[0] * 2.0, in[0]};
            },
            {.warmup = 1, .device = gpu});
        captured({full({3}, 1, {.device = gpu})});
        const Tensor first = captured({full({3}, 2, {.device = gpu})})[0];
        const Tensor kept = first.clone();
        const std::uint64_t version = first.version();
        const Tensors both = captured({full({3}, 3)});  // from the CPU
        CHECK(first.to_vector<float>() == std::vector<float>(3, 6));
        CHECK(kept.to_vector<float>() == std::vector<float>(3, 4));
        CHECK(first.version() > version);
        CHECK(both[1].to_vector<float>() == std::vector<float>(3, 3));
        last = both[0];
    }
    CHECK(last.to_vector<float>() == std::vector<float>(3, 6));
}

TEST_CASE("captured step: gradients of tensors that the step makes", "[cuda]") {
    if (test::no_device()) return;
    cuda::CapturedStep captured(
        [](const Tensors& in) {
            in[0].set_requires_grad();
            const Tensor y = (in[0] * 3.0).detach().set_requires_grad();
            sum(square(in[0]) * y).backward();
            return Tensors{in[0].grad(), y.grad()};
        },
        {.device = gpu});
    for (int i = 0; i < 7; ++i) {
        const Tensors grads = captured({full({4}, i)});
        CHECK(grads[0].to_vector<float>() == std::vector<float>(4, float(6 * i * i)));
        CHECK(grads[1].to_vector<float>() == std::vector<float>(4, float(i * i)));
    }
    CHECK(captured.statistics().replays == 3);
}

TEST_CASE("captured step: inference sees weights that were loaded since", "[cuda]") {
    if (test::no_device()) return;
    Training t({.dropout = 0});
    t.step({values(4, 1), values(4, 2)});
    t.step({values(4, 1), values(4, 2)});  // the optimizer keeps 16-bit copies now
    const auto predict = [&](const Tensors& in) {
        const amp::Autocast scope({.device = DeviceType::cuda});
        return Tensors{t.model(in[0])};
    };
    cuda::CapturedStep captured(predict, {.warmup = 1, .device = gpu});
    const NoGrad plain;
    const Tensor x = values(4, 3);
    for (int i = 0; i < 8; ++i) {
        if (i == 4) t.model.parameters()[0].mul_(2);
        CHECK(all_close(captured({x})[0], predict({x})[0], 0, 0));
    }
    CHECK(captured.statistics().captures == 2);
}
