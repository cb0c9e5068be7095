// Captures refuse some calls, and the device stays usable afterwards. On the emulated device only, because on
// a GPU a forbidden call could invalidate a capture and so disturb the tests after it.
#include <catch2/catch.hpp>
#include <thread>
#include <vector>

#include "core/step_recorder.h"
#include "cuda/gemm/gemm.h"
#include "cuda/runtime/runtime.h"
#include "mezzo/mezzo.h"
#include "tests/cuda/device_array.h"
#include "tests/support/support.h"

namespace {

using namespace mezzo;

const Device gpu{DeviceType::cuda};

// y = x w, trained by SGD; `extra` runs between backward and update.
struct Regression {
    Tensor w = full({4, 4}, 0.5, {.device = gpu}).set_requires_grad();
    optim::SGD optimizer{{w}, {.lr = 0.1}};
    optim::ExponentialLR schedule{optimizer, 0.9};
    autograd::Callback<void(const Tensor&)> extra = [](const Tensor&) {};

    Tensors operator()(const Tensors& in) {
        const Tensor loss = mean(square(matmul(in[0], w) - 1.0));
        loss.backward();
        extra(loss);
        optimizer.step();
        optimizer.zero_grad();
        return {loss};
    }
};

struct Forbidden {
    const char* text;  // what the error begins with
    autograd::Callback<void(const Tensor& loss, Regression& r)> action;
};

const std::vector<Forbidden>& forbidden() {
    static const std::vector<Forbidden> list{
        {"item: a captured step cannot read values on the host",
         [](const Tensor& loss, Regression&) { loss.item<float>(); }},
        {"to_vector: a captured step cannot read values on the host",
         [](const Tensor& loss, Regression&) { loss.to_vector<float>(); }},
        {"to_string: a captured step cannot read values on the host",
         [](const Tensor& loss, Regression&) { loss.to_string(); }},
        {"to: a captured step cannot copy to the host",
         [](const Tensor& loss, Regression&) { loss.detach().to(cpu_device); }},
        {"to: a captured step cannot copy from the host",
         [](const Tensor&, Regression&) { ones({4}).to(gpu); }},
        {"from: a captured step cannot take values from the host",
         [](const Tensor&, Regression&) {
             const float values[] = {1, 2};
             Tensor::from<float>(values, {2}, {.device = gpu});
         }},
        {"synchronize: a captured step cannot wait", [](const Tensor&, Regression&) { synchronize(gpu); }},
        {"empty_cache: a captured step cannot give memory back",
         [](const Tensor&, Regression&) { empty_cache(gpu); }},
        {"Scheduler.step: a captured step cannot change the learning rate",
         [](const Tensor&, Regression& r) { r.schedule.step(); }},
        {"SGD.set_lr: a captured step cannot change the learning rate",
         [](const Tensor&, Regression& r) { r.optimizer.set_lr(0.2); }},
        {"set_random_state: a captured step cannot start a random stream",
         [](const Tensor&, Regression&) { manual_seed(random_state().seed + 1); }},
        {"gemm: a captured step cannot meet a product for the first time",
         [](const Tensor&, Regression&) {
             if (thread_state.recorder != nullptr) cuda::clear_gemm_plans();
             matmul(ones({4, 4}, {.device = gpu}), ones({4, 4}, {.device = gpu}));
         }},
        {"captured step: allocation",
         [](const Tensor&, Regression&) {
             if (thread_state.recorder != nullptr) empty({1000}, {.device = gpu});
         }},
        {"cuda: device_malloc: a captured step cannot take memory",
         [](const Tensor&, Regression&) { cuda::device_free(cuda::device_malloc(64)); }},
        {"cuda: copy_to_host: a captured step cannot copy to the host",
         [](const Tensor& loss, Regression&) {
             float value;
             cuda::copy_to_host(&value, raw(loss), sizeof value);
         }},
        {"cuda: elapsed_ms: a captured step cannot wait",
         [](const Tensor&, Regression&) {
             cuda::Event event;
             event.record();
             event.elapsed_ms(event);
         }},
    };
    return list;
}

}  // namespace

TEST_CASE("capture: forbidden actions are named, and the step goes on without them", "[cuda][emulation]") {
    const Tensor x = full({4, 4}, 0.25, {.device = gpu});
    for (const Forbidden& f : forbidden()) {
        CAPTURE(f.text);
        const LiveObjects objects = live_objects();
        {
            Regression captured, eager;
            cuda::CapturedStep step([&](const Tensors& in) { return captured(in); },
                                    {.warmup = 2, .device = gpu});
            captured.extra = [&](const Tensor& loss) { f.action(loss, captured); };
            eager.extra = [&](const Tensor& loss) { f.action(loss, eager); };
            for (int i = 0; i < 2; ++i) {
                step({x});
                eager({x});
            }
            try {
                step({x});
                FAIL_CHECK("no error was thrown");
            } catch (const Error& error) {
                CHECK(error.kind() == ErrorKind::state);
                CHECK_THAT(error.what(), Catch::StartsWith(f.text));
            }
            CHECK(thread_state.recorder == nullptr);
            // the work before the error has been done, as if the eager step had thrown there
            eager.extra = captured.extra = [](const Tensor&) {};
            mean(square(matmul(x, eager.w) - 1.0)).backward();
            CHECK(all_close(captured.w.grad(), eager.w.grad(), 0, 0));
            captured.optimizer.zero_grad();
            eager.optimizer.zero_grad();
            for (int i = 0; i < 6; ++i) {
                const Tensor loss = step({x})[0];
                CHECK(all_close(loss, eager({x})[0], 0, 0));
            }
            CHECK(all_close(captured.w.detach(), eager.w.detach(), 0, 0));
            CHECK(step.statistics().captures == 1);
            CHECK(step.statistics().replays == 3);
            CHECK(captured.optimizer.applied_steps() == 8);
        }
        CHECK(live_objects().storages == objects.storages);
        CHECK(live_objects().tensors == objects.tensors);
    }
}

TEST_CASE("capture: an exception of the step's own ends it", "[cuda][emulation]") {
    bool fails = true;
    cuda::CapturedStep step(
        [&](const Tensors& in) {
            const Tensor y = in[0] + 1.0;
            if (fails && thread_state.recorder != nullptr) throw 42;
            return Tensors{y};
        },
        {.warmup = 1, .device = gpu});
    const Tensor x = ones({5}, {.device = gpu});
    step({x});
    CHECK_THROWS_AS(step({x}), int);
    fails = false;
    for (int i = 0; i < 4; ++i) CHECK(step({x})[0].to_vector<float>() == std::vector<float>(5, 2));
    CHECK(step.statistics().captures == 1);
}

TEST_CASE("capture: nothing runs before the graph is launched", "[cuda][emulation]") {
    const test::DeviceArray<float> a(std::vector<float>{1, 2, 3}), b(3);
    cuda::fill_zero(b.data(), 12);
    cuda::begin_capture();
    cuda::copy_on_device(b.data(), a.data(), 12);
    cuda::fill_zero(a.data(), 12);
    void* const graph = cuda::end_capture();
    CHECK(b.host() == std::vector<float>{0, 0, 0});
    cuda::launch_graph(graph);
    CHECK(b.host() == std::vector<float>{1, 2, 3});
    cuda::launch_graph(graph);
    CHECK(b.host() == std::vector<float>{0, 0, 0});
    cuda::destroy_graph(graph);
    CHECK_THROWS_AS(cuda::end_capture(), Error);
}

TEST_CASE("capture: a captured step inside another is a part of it", "[cuda][emulation]") {
    cuda::CapturedStep inner([](const Tensors& in) { return Tensors{in[0] * 3.0}; },
                             {.warmup = 1, .device = gpu});
    cuda::CapturedStep outer([&](const Tensors& in) { return Tensors{inner({in[0] + 1.0})[0] - 1.0}; },
                             {.warmup = 3, .device = gpu});
    for (int i = 0; i < 6; ++i)
        CHECK(outer({full({2}, i)})[0].to_vector<float>() == std::vector<float>(2, float(3 * i + 2)));
    CHECK(outer.statistics().replays == 2);
}

TEST_CASE("capture: another thread's work on the device is refused while a step is captured",
          "[cuda][emulation]") {
    const Tensor x = full({4, 4}, 0.5, {.device = gpu});
    std::string refused;
    cuda::CapturedStep step(
        [&](const Tensors& in) -> Tensors {
            if (thread_state.recorder != nullptr) {
                std::thread([&] {
                    try {
                        static_cast<void>(x + x);
                    } catch (const Error& error) {
                        refused = error.kind() == ErrorKind::state ? error.what() : "another kind";
                    }
                }).join();
            }
            return {in[0] * 2};
        },
        {.warmup = 1, .device = gpu});
    for (int i = 0; i < 3; ++i) CHECK(all_close(step({x})[0], full({4, 4}, 1, {.device = gpu}), 0, 0));
    CHECK_THAT(refused, Catch::StartsWith("cuda:0: another thread is capturing a step on this device"));
    std::thread([&] { CHECK_NOTHROW(static_cast<void>(x + x)); }).join();
}
