// Self-checks of fast paths: when they run, what they leave unchanged, and which results the next process
// reads.
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <thread>

#include "core/tensor_impl.h"
#include "cuda/gemm/gemm.h"
#include "cuda/runtime/runtime.h"
#include "kernels/choice_file.h"
#include "kernels/self_check.h"
#include "mezzo/capture.h"
#include "mezzo/ops.h"
#include "tests/emulation/engine.h"
#include "tests/emulation/self_check_scope.h"

namespace {

using namespace mezzo;
using Catch::Matchers::Contains;
using test::SelfCheckScope;

const Device gpu{DeviceType::cuda};

bool ask() { return passes_self_check(FastPathId::bias_gradients, gpu, float32); }
std::uint64_t launches_of_asking() {
    const std::uint64_t before = cuda::counters().launches;
    CHECK(ask());
    return cuda::counters().launches - before;
}
std::string check_result_file(const SelfCheckScope& scope) {
    for (const auto& entry : std::filesystem::directory_iterator(scope.folder.path))
        if (entry.path().extension() == ".txt") return entry.path().filename().string();
    return "";
}

}  // namespace

TEST_CASE("self-check: leaves the program's numbers, memory and statistics alone", "[cuda][emulation]") {
    const SelfCheckScope scope;
    const Tensor held = ones({7}, {.device = gpu});
    const RandomState random = random_state();
    const LiveObjects objects = live_objects();
    const MemoryStats before = memory_stats(gpu);
    const std::size_t workspace = cuda::workspace_bytes();
    run_self_checks(gpu);
    CHECK(scope.log.size() == check_results_of(gpu).size());
    for (const ListedCheckResult& listed : check_results_of(gpu)) {
        CAPTURE(text_of(listed.self_check), listed.result.reason);
        CHECK(listed.result.state == CheckResult::good);
    }
    const MemoryStats after = memory_stats(gpu);
    CHECK(after.allocated == before.allocated);
    CHECK(after.max_allocated == before.max_allocated);
    CHECK(after.allocations == before.allocations);
    CHECK(after.reserved == before.reserved);
    CHECK(after.max_reserved == before.max_reserved);
    CHECK(after.system_allocations == before.system_allocations);
    CHECK(cuda::workspace_bytes() == workspace);
    CHECK(random_state().seed == random.seed);
    CHECK(random_state().offset == random.offset);
    CHECK(live_objects().tensors == objects.tensors);
    CHECK(live_objects().storages == objects.storages);
    CHECK(held.to_vector<float>() == std::vector<float>(7, 1));
}

TEST_CASE("self-check: Tensor Cores before compute capability 8.0 multiply float16 alone",
          "[cuda][emulation]") {
    const SelfCheckScope scope;
    const emulation::Options old = emulation::options;
    emulation::options.capability = 75;
    const Tensor half = randn({1, 5, 2, 64}, {.device = gpu}).to(float16), brain = half.to(bfloat16);
    scaled_dot_product_attention(half, half, half);
    const Tensor y = scaled_dot_product_attention(brain, brain, brain);
    CHECK(scope.told("flash_attention float16 64") == std::vector<std::string>{"passed"});
    CHECK(scope.told("flash_attention bfloat16 64").empty());
    run_self_checks(gpu);
    CHECK_THAT(scope.told("flash_attention bfloat16 64").at(0), Contains("not used"));
    emulation::options = old;
    set_flash_attention(false);
    CHECK(y.to_vector<float>() == scaled_dot_product_attention(brain, brain, brain).to_vector<float>());
}

TEST_CASE("self-check: the next process starts at once", "[cuda][emulation]") {
    SelfCheckScope scope;
    CHECK(launches_of_asking() > 0);
    CHECK(launches_of_asking() == 0);
    scope.next_process();
    CHECK(launches_of_asking() == 0);
    CHECK(scope.log.empty());
    SECTION("not with another driver") {
        emulation::driver_version = 14000;
        scope.next_process();
        CHECK(launches_of_asking() > 0);
        emulation::driver_version = 13010;
        scope.next_process();
        CHECK(launches_of_asking() == 0);
    }
    SECTION("not on another GPU") {
        const emulation::Options old = emulation::options;
        emulation::options.device_name = "another GPU";
        scope.next_process();
        CHECK(launches_of_asking() > 0);
        emulation::options = old;
    }
    SECTION("not with a damaged file") {
        const std::string name = check_result_file(scope), text = scope.folder.read(name);
        REQUIRE_THAT(text, Contains("bias_gradients float32: passed\n"));
        for (std::size_t at = 0; at < text.size(); at += 7) {
            std::string damaged = text;
            damaged[at] = char(damaged[at] ^ 1);
            scope.folder.write(name, damaged);
            scope.next_process();
            CAPTURE(at);
            CHECK(launches_of_asking() > 0);
        }
        for (const std::string& damaged :
             {std::string(), text.substr(0, text.size() / 2), std::string(3000, '\0'), text + text}) {
            scope.folder.write(name, damaged);
            scope.next_process();
            CHECK(launches_of_asking() > 0);
        }
    }
    SECTION("not without a folder") {
        setenv("MEZZO_CACHE", "off", 1);
        scope.next_process();
        CHECK(launches_of_asking() > 0);
        CHECK(launches_of_asking() == 0);
    }
}

TEST_CASE("self-check: a refusal is known to the next process, with its reason", "[cuda][emulation]") {
    SelfCheckScope scope;
    ChoiceFile("fast-paths", scope.folder.path).save("x", "not used; none");  // of another device
    emulation::on_work = [](const emulation::Work&) { throw std::runtime_error("two\nlines"); };
    CHECK_FALSE(ask());
    emulation::on_work = nullptr;
    CHECK_FALSE(ask());
    REQUIRE(scope.log.size() == 1);
    scope.next_process();
    const std::uint64_t before = cuda::counters().launches;
    CHECK_FALSE(ask());
    CHECK_FALSE(ask());
    CHECK(cuda::counters().launches == before);
    CHECK(scope.log ==
          std::vector<std::string>{"fast path bias_gradients float32 on cuda:0: not used; two lines"});
    run_self_checks(gpu);  // the device has been mended
    CHECK(ask());
    scope.next_process();
    CHECK(launches_of_asking() == 0);
}

TEST_CASE("self-check: a process that dies in a self_check is the last that tries it", "[cuda][emulation]") {
    SelfCheckScope scope;
    // Its file is known by what it has.
    CHECK(ask());
    std::string identity = scope.folder.read(check_result_file(scope));
    identity.resize(identity.find('\n'));
    scope.restart();
    const pid_t child = fork();
    if (child == 0) {
        static const ChoiceFile::Mark mark(ChoiceFile("fast-paths", identity), "bias_gradients float32");
        _exit(3);  // without a destructor
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    const std::uint64_t before = cuda::counters().launches;
    CHECK_FALSE(ask());
    CHECK(cuda::counters().launches == before);
    REQUIRE(scope.log.size() == 1);
    CHECK_THAT(scope.log[0], Contains("an earlier process ended in this check"));
    scope.next_process();
    CHECK_FALSE(ask());
    CHECK(passes_self_check(FastPathId::bias_gradients, gpu, float64));
}

TEST_CASE("self-check: two processes at once", "[cuda][emulation]") {
    SelfCheckScope scope;
    CHECK(ask());
    std::string identity = scope.folder.read(check_result_file(scope));
    identity.resize(identity.find('\n'));
    scope.restart();
    const ChoiceFile file("fast-paths", identity);
    SECTION("the same self_check") {
        const ChoiceFile::Mark running(file,
                                       "bias_gradients float32");  // its lock is that of another process
        CHECK_FALSE(running.found());
        CHECK(ask());
    }
    SECTION("results of both are kept") {
        std::vector<std::thread> threads;
        for (int t = 0; t < 4; ++t)
            threads.emplace_back([&, t] {
                for (int i = 0; i < 10; ++i)
                    file.save(std::to_string(t) + " " + std::to_string(i), "not used; reason");
            });
        for (std::thread& thread : threads) thread.join();
        CHECK(file.load().size() == 40);
    }
}

TEST_CASE("self-check: threads that ask at once get one self_check", "[cuda][emulation]") {
    SelfCheckScope scope;
    std::vector<std::thread> threads;
    std::atomic<int> good = 0;
    for (int i = 0; i < 4; ++i) threads.emplace_back([&] { good += ask(); });
    for (std::thread& thread : threads) thread.join();
    CHECK(good == 4);
    CHECK(scope.log.size() == 1);
}

TEST_CASE("self-check: not in a capture, but before it", "[cuda][emulation]") {
    SelfCheckScope scope;
    const Tensor x = ones({8, 8}, {.device = gpu});
    int asked = 0;
    std::vector<bool> answers;
    cuda::CapturedStep step(
        [&](const Tensors&) -> Tensors {
            if (asked++ != 0) answers.push_back(ask());
            for (int i = 0; i < 5; ++i)
                if (answers.size() == 1) CHECK_FALSE(ask());  // no attempt at all
            return {x + x};
        },
        {.warmup = 1, .device = gpu});
    step({});
    step({});  // the first time that anybody asks is in the capture
    CHECK(answers == std::vector<bool>{false});
    CHECK(scope.log.empty());
    CHECK(step.statistics().captures == 1);
    CHECK(ask());
    // In the traced run before a capture a self-check is no part of the plan of the memory.
    scope.restart();
    step.clear();
    step({});
    CHECK(answers == std::vector<bool>{false, true});
    step({});
    CHECK(step.statistics().captures == 2);
    CHECK(answers == std::vector<bool>{false, true, true});
}

TEST_CASE("self-check: without memory there is none yet", "[cuda][emulation]") {
    SelfCheckScope scope;
    set_memory_limit(gpu, memory_stats(gpu).reserved + 1);
    CHECK_FALSE(ask());
    CHECK_FALSE(ask());
    CHECK(scope.log.empty());
    set_memory_limit(gpu, 0);
    CHECK(ask());
    scope.restart();
    set_memory_limit(gpu, memory_stats(gpu).reserved + 1);
    for (int i = 0; i < 5; ++i) CHECK_FALSE(ask());
    set_memory_limit(gpu, 0);
    CHECK_FALSE(ask());  // not tried for ever
    REQUIRE(scope.log.size() == 1);
    CHECK_THAT(scope.log[0], Contains("gave no result in this process") && Contains("memory limit"));
    CHECK(check_result_file(scope).empty());
    scope.next_process();
    CHECK(ask());
}

TEST_CASE("self-check: a device that fails for good is named", "[cuda][emulation]") {
    SelfCheckScope scope;
    emulation::on_work = [](const emulation::Work&) {
        emulation::stuck = true;
        fail(ErrorKind::backend, "cuda: kernel launch failed with cudaErrorIllegalAddress (700)");
    };
    CHECK_FALSE(ask());
    emulation::stuck = false;
    emulation::on_work = nullptr;
    REQUIRE(scope.log.size() == 1);
    CHECK_THAT(scope.log[0], Contains("cudaErrorIllegalAddress") &&
                                 Contains("since then the device does nothing for this process any more"));
    scope.next_process();
    CHECK_FALSE(ask());
}

TEST_CASE("self-check: what failed before it is not blamed on the fast path", "[cuda][emulation]") {
    SelfCheckScope scope;
    emulation::stuck = true;  // by a kernel of the program that nobody has waited for
    CHECK_FALSE(ask());
    emulation::stuck = false;
    scope.next_process();
    CHECK(ask());
}

TEST_CASE("self-check: what a sink throws, and no sink", "[cuda][emulation]") {
    SelfCheckScope scope;
    set_log_sink([](std::string_view) { throw std::runtime_error("from the sink"); });
    CHECK(ask());
    set_log_sink(nullptr);
    CHECK(passes_self_check(FastPathId::bias_gradients, gpu, float64));
    CHECK(scope.log.empty());
    CHECK_FALSE(passes_self_check(FastPathId::bias_gradients, gpu, int32));
    CHECK_FALSE(passes_self_check(FastPathId::bias_gradients, gpu, float32, 48));
    CHECK_FALSE(passes_self_check(FastPathId::flash_attention, gpu, float32, 64));
    CHECK_FALSE(passes_self_check(FastPathId::layers, cpu_device));
    CHECK(check_results_of(cpu_device).empty());
}
