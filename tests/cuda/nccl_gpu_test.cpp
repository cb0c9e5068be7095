// NCCL itself with one rank, on a machine that has a GPU and the library. tests/distributed/nccl_test.cpp
// runs the same over the stand-in.
#include "tests/cuda/nccl_alone.h"

using namespace mezzo;

TEST_CASE("nccl gpu: one rank loads, connects, exchanges, captures and aborts") {
    if (cuda_device_count() == 0 || cuda::nccl::library.refused()) {
        WARN("no CUDA device, or NCCL is switched off: skipped");
        return;
    }
    try {
        cuda::nccl::library.open();
    } catch (const Error& error) {
        WARN(error.what() << ": skipped");
        return;
    }
    test::check_nccl_alone();
}
