// cuda/runtime/runtime.cpp over a CUDA runtime whose calls fail as a test plans.
#include "cuda/runtime/runtime.h"

#include <catch2/catch.hpp>
#include <string>

#include "mezzo/error.h"
#include "mezzo/log.h"
#include "tests/cuda/fake_cudart.h"

using namespace mezzo;
using Catch::Matchers::Contains;

namespace {

// Makes the named call fail inside the scope.
struct Failing {
    Failing(const std::string& call, cudaError_t error) { fake_cudart::state().answers[call] = error; }
    ~Failing() { fake_cudart::state() = {}; }
};

}  // namespace

// The first case, because devices are counted once per process.
TEST_CASE("cuda runtime: a driver that is too old is no device, and the reason is kept") {
    const Failing scope("cudaGetDeviceCount", cudaErrorInsufficientDriver);
    CHECK(cuda::device_count() == 0);
    CHECK_THAT(cuda::device_absence(),
               Contains("cudaErrorInsufficientDriver: driver too old; it supports CUDA "
                        "12.4, and this build uses CUDA 13.0"));
    CHECK(fake_cudart::state().last_error == cudaSuccess);
}

TEST_CASE("cuda runtime: what fails without a report leaves no error for the next launch") {
    const auto silent = [](const char* call, auto&& use) {
        CAPTURE(call);
        const Failing scope(call, cudaErrorInvalidValue);
        use();
        CHECK_NOTHROW(cuda::check_launch());
    };
    silent("cudaFree", [] { cuda::device_free(nullptr); });
    silent("cudaFreeHost", [] { cuda::pinned_free(nullptr); });
    silent("cudaGraphExecDestroy", [] { cuda::destroy_graph(nullptr); });
    silent("cudaEventDestroy", [] { const cuda::Event event; });
    silent("cudaEventDestroy", [] { const cuda::Marker marker; });
    silent("cudaThreadExchangeStreamCaptureMode", [] { cuda::Marker().passed(); });
}

TEST_CASE("cuda runtime: what is reported is not reported twice") {
    const Failing scope("cudaSetDevice", cudaErrorInvalidDevice);
    CHECK_THROWS_WITH(cuda::set_device(7), Contains("cudaSetDevice"));
    CHECK_NOTHROW(cuda::check_launch());
}

TEST_CASE("cuda runtime: a launch's own error is reported") {
    fake_cudart::state().last_error = cudaErrorLaunchOutOfResources;
    CHECK_THROWS_WITH(cuda::check_launch(), Contains("kernel launch"));
    CHECK_NOTHROW(cuda::check_launch());
}

// Hidden: each runs in a process of its own, because the devices are counted once per process.
TEST_CASE("cuda runtime: GPUs without kernels in this build are left out, and the reason is kept", "[.old]") {
    fake_cudart::state().capabilities = {70, 90, 61, 75};
    std::string logged;
    set_log_sink([&](std::string_view line) { logged += line; });
    CHECK(cuda::device_count() == 2);
    CHECK(cuda::device_count() == 2);
    set_log_sink(nullptr);
    const std::string reason =
        "GPU 0 (model 0) has compute capability 7.0, and this build has kernels for 7.5 and "
        "newer; GPU 2 (model 2) has compute capability 6.1, and this build has kernels for 7.5 "
        "and newer";
    CHECK(cuda::device_absence() == reason);
    CHECK(logged == "cuda: " + reason);

    CHECK(cuda::current_device() == -1);  // CUDA begins with its device 0
    CHECK_THROWS_WITH(cuda::grid_limit(32), Contains("no usable device"));
    for (const auto kind :
         {cuda::StreamKind::compute, cuda::StreamKind::copy, cuda::StreamKind::communication})
        CHECK_THROWS_AS(cuda::Marker().record(kind), Error);
    cuda::set_device(1);
    CHECK(fake_cudart::state().device == 3);
    CHECK(cuda::current_device() == 1);
    CHECK(std::string(cuda::device_info(0).name) == "model 1");

    CHECK(cuda::kernel_capability(0) == 80);  // 9.0 runs what was made from PTX for 8.0
    CHECK(cuda::kernel_capability(1) == 75);
    CHECK_THROWS_WITH(cuda::kernel_capability(2), Contains("no device 2"));
}

TEST_CASE("cuda runtime: only GPUs that are too old are no device", "[.only old]") {
    fake_cudart::state().capabilities = {70};
    CHECK(cuda::device_count() == 0);
    CHECK_THAT(cuda::device_absence(), Contains("7.0"));
}

TEST_CASE("cuda runtime: the grid that fills a device follows from its limits", "[.limits]") {
    fake_cudart::state().attributes = {{cudaDevAttrMultiProcessorCount, 10},
                                       {cudaDevAttrMaxThreadsPerMultiProcessor, 1536},
                                       {cudaDevAttrMaxBlocksPerMultiprocessor, 16}};
    CHECK(cuda::grid_limit(256) == 60);
    CHECK(cuda::grid_limit(32) == 160);
    CHECK(cuda::grid_limit(1024) == 10);
}
