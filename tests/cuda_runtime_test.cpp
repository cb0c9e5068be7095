// cuda/runtime.cpp over a CUDA runtime that fails where a test says so.
#include "cuda/runtime.h"

#include <catch2/catch.hpp>
#include <string>

#include "mezzo/error.h"
#include "tests/fake_cudart.h"

using namespace mezzo;
using Catch::Matchers::Contains;

namespace {

// The named call fails inside the scope.
struct Failing {
    Failing(const std::string& call, cudaError_t error) { fake_cudart::state().answers[call] = error; }
    ~Failing() { fake_cudart::state() = {}; }
};

}  // namespace

// First, because the devices are counted once per process.
TEST_CASE("cuda runtime: a driver that is too old is no device, and the reason is kept") {
    const Failing scope("cudaGetDeviceCount", cudaErrorInsufficientDriver);
    CHECK(cuda::device_count() == 0);
    CHECK_THAT(cuda::device_absence(), Contains("cudaErrorInsufficientDriver: driver too old"));
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
