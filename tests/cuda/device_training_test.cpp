// Training on the CUDA device, real or emulated: the same numbers as on the CPU, no waiting for the device,
// and every object usable after an error.
#include <catch2/catch.hpp>
#include <memory>

#include "autograd/autocast_state.h"
#include "cuda/runtime/runtime.h"
#include "mezzo/mezzo.h"
#include "mezzo/train/trainer.h"
#include "tests/support/support.h"

#if defined(__SANITIZE_ADDRESS__)
#define MEZZO_TEST_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MEZZO_TEST_ASAN 1
#endif
#endif

namespace {

using namespace mezzo;
using test::Domain;

const Device gpu{DeviceType::cuda};
constexpr std::int64_t batch = 6, width = 12;

// Linear-ReLU-Linear-ReLU-Linear, with dropout before the last layer. The initial values come from the seed
// on the CPU, whatever the device.
class Mlp : public nn::Module {
public:
    explicit Mlp(std::int64_t outputs = width, double p = 0)
        : first(width, width), second(width, width), third(width, outputs), drop(p) {}
    Tensor operator()(const Tensor& x) const { return third(drop(relu(second(relu(first(x)))))); }

    nn::Linear first, second, third;
    nn::Dropout drop;
    MEZZO_MODULE(Mlp, first, second, third, drop)
};

enum class Loss { mse, cross_entropy, bce_with_logits };
enum class Method { sgd, adam, adamw };

struct Recipe {
    Dtype compute = float32;  // 16 bit: under Autocast
    Method method = Method::sgd;
    Loss loss = Loss::mse;
    bool scaled = false, clip = false;
    double dropout = 0;
    int micro_batches = 1, steps = 6;
    int overflow_at = -1;  // in this step the gradients become inf
};

std::unique_ptr<optim::Optimizer> make_optimizer(Method method, const Tensors& parameters) {
    switch (method) {
        case Method::adam:
            return std::make_unique<optim::Adam>(parameters, optim::AdamOptions{.lr = 0.01});
        case Method::adamw:
            return std::make_unique<optim::AdamW>(parameters,
                                                  optim::AdamWOptions{.lr = 0.01, .weight_decay = 0.1});
        default:
            return std::make_unique<optim::SGD>(parameters, optim::SGDOptions{.lr = 0.2, .momentum = 0.9});
    }
}

std::int64_t outputs_of(Loss loss) { return loss == Loss::cross_entropy ? 5 : width; }

Tensor input_at(int step, Device where) {
    const std::vector<double> values =
        test::random_values(batch * width, std::uint64_t(100 + step), Domain::any);
    return test::tensor_of(values, {batch, width}, float32, where);
}

Tensor target_at(int step, Loss loss, Device where) {
    if (loss == Loss::cross_entropy) {
        std::vector<double> classes;
        for (int i = 0; i < batch; ++i) classes.push_back(double((3 * i + step) % 5));
        return test::tensor_of(classes, {batch}, int64, where);
    }
    const std::vector<double> values =
        test::random_values(batch * width, std::uint64_t(200 + step), Domain::unit);
    return test::tensor_of(values, {batch, width}, float32, where);
}

Tensor loss_of(Loss loss, const Tensor& y, const Tensor& target) {
    if (loss == Loss::cross_entropy) return cross_entropy(y, target);
    if (loss == Loss::bce_with_logits) return binary_cross_entropy_with_logits(y, target);
    return mse_loss(y, target);
}

// Results of a training run. Losses and norms are read after the run.
struct Outcome {
    Tensors losses, norms, parameters;
    std::vector<double> scales;
    std::int64_t applied = 0, skipped = 0;
};

// One model with optimizer and scaler, trained step by step on the device of its parameters.
struct Trainer {
    Recipe recipe;
    Mlp model;
    std::unique_ptr<optim::Optimizer> optimizer;
    amp::GradScaler scaler;
    Outcome seen;

    Trainer(const Recipe& r, Device where)
        : recipe(r),
          model((manual_seed(11), Mlp(outputs_of(r.loss), r.dropout))),
          optimizer(make_optimizer(r.method, model.parameters())),
          scaler({.init_scale = 1024, .growth_interval = 4, .enabled = r.scaled}) {
        model.to(where);
    }
    Device device() const { return model.first.weight.device(); }

    void backward(int step, const Tensor& x, const Tensor& target) {
        Tensor loss;
        {
            const amp::Autocast scope({.device = device().type(),
                                       .dtype = is_16bit(recipe.compute) ? recipe.compute : float16,
                                       .enabled = is_16bit(recipe.compute)});
            loss = loss_of(recipe.loss, model(x), target) * (1.0 / recipe.micro_batches);
        }
        seen.losses.push_back(loss.detach());
        // d(objective)/d(loss) is 1e38 times the scale: inf in float32
        scaler.scale(step == recipe.overflow_at ? loss * 1e38 : loss).backward();
    }
    void apply() {
        if (recipe.clip) {
            scaler.unscale_(*optimizer);
            seen.norms.push_back(nn::clip_grad_norm_(model.parameters(), 0.2));
        }
        scaler.step(*optimizer);
        if (recipe.scaled) scaler.update();
        optimizer->zero_grad();
    }
    void train(int step) {
        for (int m = 0; m < recipe.micro_batches; ++m) {
            const int sample = step * recipe.micro_batches + m;
            backward(step, input_at(sample, device()), target_at(sample, recipe.loss, device()));
        }
        apply();
        seen.scales.push_back(scaler.get_scale());
    }
    Outcome run() {
        for (int step = 0; step < recipe.steps; ++step) train(step);
        seen.parameters = model.parameters();
        seen.applied = optimizer->applied_steps();
        seen.skipped = optimizer->skipped_steps();
        return seen;
    }
};

// 16 bit: sums in another order round some activations and gradients the other way.
test::Tolerance training_tolerance(Dtype compute) {
    if (compute == bfloat16) return {4e-3, 2e-3};
    if (compute == float16) return {5e-4, 4e-4};
    return {2e-5, 4e-6};
}

void check_same(const Tensors& actual, const Tensors& expected, test::Tolerance allowed) {
    REQUIRE(actual.size() == expected.size());
    for (std::size_t i = 0; i < actual.size(); ++i) {
        CAPTURE(i);
        CHECK(actual[i].shape() == expected[i].shape());
        CHECK(test::difference(test::doubles(actual[i]), test::doubles(expected[i]), allowed) == "");
    }
}

void check_same(const Outcome& actual, const Outcome& expected, test::Tolerance allowed) {
    check_same(actual.losses, expected.losses, allowed);
    check_same(actual.norms, expected.norms, allowed);
    check_same(actual.parameters, expected.parameters, allowed);
    CHECK(actual.scales == expected.scales);
    CHECK(actual.applied == expected.applied);
    CHECK(actual.skipped == expected.skipped);
}

// Trains on both devices and compares; the parameters must have moved far beyond the tolerance.
Outcome train_on_both(const Recipe& recipe) {
    CAPTURE(name(recipe.compute), int(recipe.method), int(recipe.loss), recipe.clip, recipe.dropout,
            recipe.micro_batches);
    const test::Tolerance allowed = training_tolerance(recipe.compute);
    manual_seed(11);
    const Tensors start = Mlp(outputs_of(recipe.loss)).parameters();
    const Outcome host = Trainer(recipe, cpu_device).run(), device = Trainer(recipe, gpu).run();
    for (const Tensor& p : device.parameters) CHECK(p.device() == gpu);
    check_same(device, host, allowed);
    for (std::size_t i = 0; i < start.size(); ++i)
        CHECK_FALSE(all_close(host.parameters[i].detach(), start[i].detach(), 4 * allowed.relative,
                              4 * allowed.absolute));
    return device;
}

std::string text_of(ErrorKind kind, const autograd::Callback<void()>& action) {
    try {
        action();
    } catch (const Error& error) {
        CHECK(error.kind() == kind);
        return error.what();
    }
    FAIL_CHECK("no error was thrown");
    return {};
}

}  // namespace

TEST_CASE("device training: the CPU's losses and parameters", "[cuda]") {
    if (test::no_device()) return;
    for (Dtype compute : {float32, bfloat16, float16})
        for (Method method : {Method::sgd, Method::adam, Method::adamw}) {
            const bool low = is_16bit(compute);
            train_on_both({.compute = compute, .method = method, .scaled = low});
            train_on_both({.compute = compute,
                           .method = method,
                           .scaled = low,
                           .clip = true,
                           .dropout = 0.25,
                           .micro_batches = 2});
        }
}

TEST_CASE("device training: classification losses", "[cuda]") {
    if (test::no_device()) return;
    for (Loss loss : {Loss::cross_entropy, Loss::bce_with_logits})
        for (Dtype compute : {float32, bfloat16, float16})
            train_on_both(
                {.compute = compute, .method = Method::adam, .loss = loss, .scaled = compute == float16});
}

TEST_CASE("device training: one overflow is skipped and halves the scale", "[cuda]") {
    if (test::no_device()) return;
    for (bool clip : {false, true}) {
        const Outcome seen = train_on_both(
            {.compute = float16, .method = Method::adam, .scaled = true, .clip = clip, .overflow_at = 2});
        CHECK(seen.applied == 5);
        CHECK(seen.skipped == 1);
        CHECK(seen.scales == std::vector<double>{1024, 1024, 512, 512, 512, 512});
    }
}

TEST_CASE("device training: a skipped step leaves every parameter as it was", "[cuda]") {
    if (test::no_device()) return;
    Trainer trainer({.compute = float16, .method = Method::adamw, .scaled = true, .overflow_at = 1}, gpu);
    trainer.train(0);
    Tensors before;
    for (const Tensor& p : trainer.model.parameters()) before.push_back(p.detach().clone());
    trainer.train(1);
    check_same(trainer.model.parameters(), before, {0, 0});
    trainer.train(2);
    CHECK_FALSE(all_close(trainer.model.first.weight.detach(), before[0]));
}

TEST_CASE("device training: the steady state neither waits, copies nor allocates", "[cuda]") {
    if (test::no_device()) return;
    for (Dtype compute : {bfloat16, float16}) {
        Trainer trainer({.compute = compute,
                         .method = Method::adam,
                         .scaled = true,
                         .clip = true,
                         .dropout = 0.25,
                         .micro_batches = 2},
                        gpu);
        // in 16 bit already, so that autocast casts only weights in the products
        const Tensor x = input_at(0, gpu).to(compute), target = target_at(0, Loss::mse, gpu);
        const auto step = [&] {
            for (int m = 0; m < 2; ++m) trainer.backward(0, x, target);
            trainer.apply();
            trainer.seen = {};
        };
        for (int i = 0; i < 3; ++i) step();
        synchronize(gpu);

        const cuda::Counters counters = cuda::counters();
        const std::uint64_t system_allocations = memory_stats(gpu).system_allocations;
        const AutocastCounters casts = autocast_counters();
        amp::clear_autocast_report();
        amp::collect_autocast_report(true);
        for (int i = 0; i < 4; ++i) step();
        amp::collect_autocast_report(false);
        CHECK(cuda::counters().host_syncs == counters.host_syncs);
        CHECK(cuda::counters().copies == counters.copies);
        CHECK(cuda::counters().launches > counters.launches);
        // weight and bias of three layers, in each of two forwards of four steps
        CHECK(autocast_counters().copy16_hits - casts.copy16_hits == 4 * 2 * 6);
        CHECK(autocast_counters().cache_hits == casts.cache_hits);
        std::uint64_t products = 0;
        for (const amp::AutocastReportLine& line : amp::autocast_report()) {
            if (line.op != "linear") continue;
            products += line.calls;
            CHECK(line.casts == 0);
        }
        CHECK(products == 4 * 2 * 3);
#ifdef MEZZO_TEST_ASAN  // there every block comes from the system
        (void)system_allocations;
#else
        CHECK(memory_stats(gpu).system_allocations == system_allocations);
#endif
        CHECK(trainer.scaler.get_scale() >= 1024);
        CHECK(cuda::counters().host_syncs == counters.host_syncs + 1);
        CHECK(cuda::counters().copies == counters.copies + 1);
    }
}

TEST_CASE("device training: everything after backward is two kernels", "[cuda]") {
    if (test::no_device()) return;
    for (Method method : {Method::sgd, Method::adam, Method::adamw})
        for (bool clip : {false, true}) {
            CAPTURE(int(method), clip);
            Trainer trainer({.compute = float16, .method = method, .scaled = true, .clip = clip}, gpu);
            for (int i = 0; i < 2; ++i) trainer.train(i);
            trainer.backward(2, input_at(2, gpu), target_at(2, Loss::mse, gpu));
            const std::uint64_t before = cuda::counters().launches;
            trainer.apply();
            CHECK(cuda::counters().launches - before == 2);
        }
}

TEST_CASE("device training: a model that moves keeps its optimizer", "[cuda]") {
    if (test::no_device()) return;
    for (Dtype compute : {float32, bfloat16}) {
        const Recipe recipe{.compute = compute, .method = Method::adam, .scaled = true};
        const Outcome stayed = Trainer(recipe, cpu_device).run();
        Trainer mover(recipe, cpu_device);
        const Tensor handle = mover.model.second.weight;
        for (int step = 0; step < recipe.steps; ++step) {
            if (step == 2) mover.model.to(gpu);
            if (step == 4) mover.model.to(cpu_device);
            mover.train(step);
            CHECK(handle.impl() == mover.model.second.weight.impl());
            CHECK(handle.device() == (step == 2 || step == 3 ? gpu : cpu_device));
        }
        check_same(mover.model.parameters(), stayed.parameters, training_tolerance(compute));
        check_same(mover.seen.losses, stayed.losses, training_tolerance(compute));
        CHECK(mover.optimizer->applied_steps() == recipe.steps);
    }
}

TEST_CASE("device training: state_dict from one device continues on the other", "[cuda]") {
    if (test::no_device()) return;
    const Recipe recipe{.compute = float16, .method = Method::adamw, .scaled = true};
    for (Device from : {cpu_device, gpu}) {
        const Device to = from == gpu ? cpu_device : gpu;
        Trainer whole(recipe, from), first(recipe, from), second(recipe, to);
        for (int step = 0; step < 6; ++step) whole.train(step);
        for (int step = 0; step < 3; ++step) first.train(step);
        second.train(5);  // state that loading has to replace
        second.model.load_state_dict(first.model.state_dict());
        second.optimizer->load_state_dict(first.optimizer->state_dict());
        second.scaler.load_state_dict(first.scaler.state_dict());
        check_same(second.model.parameters(), first.model.parameters(), {0, 0});
        for (int step = 3; step < 6; ++step) second.train(step);
        CHECK(second.model.first.weight.device() == to);
        check_same(second.model.parameters(), whole.model.parameters(), training_tolerance(recipe.compute));
        CHECK(second.scaler.get_scale() == whole.scaler.get_scale());
        CHECK(second.optimizer->applied_steps() == 6);
    }
}

TEST_CASE("device training: running out of memory anywhere in a step, and going on", "[cuda]") {
    if (test::no_device()) return;
    const Recipe recipe{.compute = float16, .method = Method::adam, .scaled = true, .steps = 1};
    const Outcome host = Trainer(recipe, cpu_device).run();
    Trainer trainer(recipe, gpu);
    const Tensor x = input_at(0, gpu), target = target_at(0, Loss::mse, gpu);
    trainer.model(x);  // what products keep for good is there before the limit
    empty_cache(gpu);
    set_memory_limit(gpu, memory_stats(gpu).reserved + (std::size_t(1) << 18));

    Tensors ballast;
    const std::string text = text_of(ErrorKind::memory, [&] {
        for (;;) ballast.push_back(empty({128}, {.device = gpu}));
    });
    CHECK(text.find("out of memory on cuda") != std::string::npos);
    CHECK(text.find("requested 512 bytes") != std::string::npos);
    CHECK(text.find("limit") != std::string::npos);

    // With more and more memory the step gets further: into the forward, the backward, the update.
    int failures = 0;
    bool done = false;
    while (!done) {
        try {
            trainer.backward(0, x, target);
            trainer.apply();
            done = true;
        } catch (const Error& error) {
            CAPTURE(failures, error.what());
            CHECK(error.kind() == ErrorKind::memory);
            ++failures;
            trainer.optimizer->zero_grad();
            trainer.seen = {};
            if (error.kind() != ErrorKind::memory) break;
            if (ballast.empty()) set_memory_limit(gpu, 0);
            if (!ballast.empty()) ballast.pop_back();
        }
    }
    set_memory_limit(gpu, 0);
    CHECK(failures > 20);  // one for nearly every tensor of a step
    CHECK(trainer.optimizer->applied_steps() == 1);
    check_same(trainer.model.parameters(), host.parameters, training_tolerance(recipe.compute));
    trainer.train(1);
    CHECK(trainer.optimizer->applied_steps() == 2);
}

TEST_CASE("device training: tensors on two devices are refused in words", "[cuda]") {
    if (test::no_device()) return;
    const Tensor host = ones({2, 12}), device = ones({2, 12}, {.device = gpu});
    Mlp model;
    model.to(gpu);
    const auto names_both = [](const std::string& text, const std::string& op) {
        CAPTURE(text);
        CHECK(text.rfind(op, 0) == 0);
        CHECK(text.find("cpu") != std::string::npos);
        CHECK(text.find("cuda") != std::string::npos);
    };
    const auto refused = [&](const std::string& op, const autograd::Callback<void()>& action) {
        names_both(text_of(ErrorKind::device, action), op);
    };
    refused("add", [&] { host + device; });
    refused("linear", [&] { model(host); });
    refused("matmul", [&] { matmul(device, host.t()); });
    refused("where", [&] { where(gt(host, 0), device, device); });
    refused("mse_loss", [&] { mse_loss(device, host); });
    refused("cat", [&] { cat({host, device}); });
    refused("cross_entropy", [&] { cross_entropy(device, zeros({2}, {.dtype = int64})); });
    refused("binary_cross_entropy_with_logits", [&] { binary_cross_entropy_with_logits(device, host); });
    refused("set_grad", [&] { model.first.weight.set_grad(zeros({12, 12})); });
    refused("add_", [&] { device.clone().add_(host); });

    // the model that refused the input still trains
    optim::SGD optimizer(model.parameters(), {.lr = 0.1});
    sum(model(device)).backward();
    optimizer.step();

    Mlp stayed;
    Tensors mixed = model.parameters();
    mixed.push_back(stayed.first.weight);
    sum(stayed(host)).backward();
    optim::SGD two_devices(mixed, {.lr = 0.1});
    refused("SGD", [&] { two_devices.step(); });
    refused("clip_grad_norm_", [&] { nn::clip_grad_norm_(mixed, 1); });
    amp::GradScaler scaler;
    scaler.scale(sum(model(device))).backward();
    scaler.unscale_(optimizer);
    refused("GradScaler", [&] { scaler.scale(sum(host)); });
}
