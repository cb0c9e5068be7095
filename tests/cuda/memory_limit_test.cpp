// Running out of device memory, on the CUDA device or its emulation: a program can catch the error, free
// memory or ask for less, and go on. The trained state is unchanged.
#include <catch2/catch.hpp>
#include <memory>
#include <string>

#include "mezzo/mezzo.h"
#include "tests/support/support.h"

namespace {

using namespace mezzo;

const Device gpu{DeviceType::cuda};
constexpr std::int64_t width = 64, small_batch = 16, large_batch = 8192;

Tensor values(std::int64_t rows, std::uint64_t seed) {
    return test::tensor_of(test::random_values(rows * width, seed, test::Domain::any), {rows, width}, float32,
                           gpu);
}

// A model with every stateful object, and a step that records its phase in `phase`.
struct Training {
    nn::Sequential model{nn::Linear(width, width), nn::ReLU(), nn::Linear(width, width)};
    std::unique_ptr<optim::Adam> optimizer;
    amp::GradScaler scaler{{.init_scale = 1024, .growth_interval = 2}};
    std::string phase;

    Training() {
        for (const Tensor& p : model.parameters()) {
            const NoGrad plain;
            p.copy_(Tensor::from(test_values(p.numel()), {p.numel()}).reshape(p.shape()));
        }
        model.to(gpu);
        optimizer = std::make_unique<optim::Adam>(model.parameters(), optim::AdamOptions{.lr = 0.01});
    }
    static std::vector<float> test_values(std::int64_t count) {
        const std::vector<double> wide = test::random_values(count, 5, test::Domain::unit);
        std::vector<float> result;
        for (const double v : wide) result.push_back(float(v - 0.5) / 4);
        return result;
    }
    Tensors operator()(const Tensors& in) {
        Tensor loss;
        phase = "forward";
        {
            const amp::Autocast scope({.device = gpu.type(), .dtype = float16});
            loss = mse_loss(model(in[0]), in[1]);
        }
        phase = "backward";
        scaler.scale(loss).backward();
        phase = "step";
        scaler.step(*optimizer);
        scaler.update();
        optimizer->zero_grad();
        phase = "end";
        return {loss.detach()};
    }
    cuda::StepFunction function() {
        return [this](const Tensors& in) { return (*this)(in); };
    }
};

using Run = autograd::Callback<Tensors(const Tensors&)>;

// Allocates all memory in blocks of `bytes`, so that every further allocation fails.
Tensors take_all(std::int64_t bytes = 512) {
    Tensors ballast;
    try {
        for (;;) ballast.push_back(empty({bytes / 4}, {.device = gpu}));
    } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::memory);
    }
    return ballast;
}

// Runs one step with more and more memory until it succeeds. Returns the phases in which it failed, each
// once.
std::string squeeze(Training& training, const Run& run, const Tensors& in, std::int64_t piece) {
    Tensors ballast = take_all(piece);
    std::string phases;
    for (;;) {
        training.phase = "before";
        try {
            run(in);
            return phases;
        } catch (const Error& error) {
            CAPTURE(error.what());
            CHECK(error.kind() == ErrorKind::memory);
            training.optimizer->zero_grad();
            if (phases.find(training.phase) == std::string::npos) phases += training.phase + " ";
            REQUIRE(!ballast.empty());
            ballast.pop_back();
        }
    }
}

void check_same_state(const Training& a, const Training& b) {
    const auto same = [](const StateDict& x, const StateDict& y) {
        REQUIRE(x.size() == y.size());
        for (std::size_t i = 0; i < x.size(); ++i) {
            CAPTURE(x[i].first);
            CHECK(test::doubles(x[i].second) == test::doubles(y[i].second));
        }
    };
    same(a.model.state_dict(), b.model.state_dict());
    same(a.optimizer->state_dict(), b.optimizer->state_dict());
    same(a.scaler.state_dict(), b.scaler.state_dict());
    CHECK(a.optimizer->applied_steps() == b.optimizer->applied_steps());
}

}  // namespace

TEST_CASE("memory limit: a step that fails anywhere changes nothing", "[cuda]") {
    if (test::no_device()) return;
    const Tensors in{values(small_batch, 1), values(small_batch, 2)};
    Training squeezed, twin;
    twin(in);  // products keep what they need for good before the limit
    empty_cache(gpu);
    set_memory_limit(gpu, memory_stats(gpu).reserved + (std::size_t(1) << 20));
    const std::string phases = squeeze(squeezed, squeezed.function(), in, 512);
    set_memory_limit(gpu, 0);
    CHECK(phases == "forward backward step ");
    check_same_state(squeezed, twin);
    squeezed(in);
    twin(in);
    check_same_state(squeezed, twin);
}

TEST_CASE("memory limit: warm-up, capture and replay", "[cuda]") {
    if (test::no_device()) return;
    const Tensors in{values(small_batch, 1), values(small_batch, 2)};
    Training captured, twin;
    cuda::CapturedStep step(captured.function(), {.warmup = 2, .device = gpu});
    twin(in);
    for (int i = 1; i <= 4; ++i) {
        CAPTURE(i);
        empty_cache(gpu);
        // the capture needs room for all of the step's memory at once
        set_memory_limit(gpu, memory_stats(gpu).reserved + (std::size_t(4) << 20));
        const std::string phases = squeeze(
            captured, [&](const Tensors& x) { return step(x); }, in, 4096);
        set_memory_limit(gpu, 0);
        CAPTURE(phases);
        if (i == 1) CHECK(phases == "before forward backward step ");  // before: the step's own inputs
        if (i == 2) CHECK(phases.find("backward ") != std::string::npos);
        if (i == 3) CHECK(phases == "before ");
        if (i == 4) CHECK(phases == "");  // a replay allocates nothing
        check_same_state(captured, twin);
        twin(in);
    }
    CHECK(step.statistics().captures == 1);
    CHECK(step.statistics().replays == 1);
}

TEST_CASE("memory limit: a smaller batch fits", "[cuda]") {
    if (test::no_device()) return;
    const Tensors small{values(small_batch, 1), values(small_batch, 2)},
        large{values(large_batch, 3), values(large_batch, 4)};
    for (const bool capture : {false, true}) {
        CAPTURE(capture);
        Training training, twin;
        cuda::CapturedStep step(training.function(), {.warmup = 2, .device = gpu});
        const auto run = [&](const Tensors& in) { return capture ? step(in) : training(in); };
        for (int i = 0; i < 2; ++i) twin(small);
        run(small);
        empty_cache(gpu);
        const std::size_t before = memory_stats(gpu).reserved;
        set_memory_limit(gpu, before);
        const Tensors pages = take_all(2 << 20), pieces = take_all(1 << 18);  // room for small tensors only
        set_memory_limit(gpu, before + (std::size_t(2) << 20));
        std::string text;
        try {
            run(large);
        } catch (const Error& error) {
            CHECK(error.kind() == ErrorKind::memory);
            text = error.what();
        }
        for (const char* part : {"out of memory on cuda", "requested ", "allocated ", "peak ", "reserved ",
                                 "largest free block ", "limit "}) {
            CAPTURE(part, text);
            CHECK(text.find(part) != std::string::npos);
        }
        training.optimizer->zero_grad();
        run(small);
        CHECK(memory_stats(gpu).reserved <= before + (std::size_t(2) << 20));
        check_same_state(training, twin);
        set_memory_limit(gpu, 0);
        run(large);
        twin(large);
        check_same_state(training, twin);
    }
}
