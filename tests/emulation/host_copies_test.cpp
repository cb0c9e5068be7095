// Copies of plain to() and from(): batches go through pinned memory, and the host does not wait for the
// device's work.
#include <catch2/catch.hpp>
#include <cstdint>
#include <vector>

#include "cuda/elementwise/copies.h"
#include "cuda/runtime/runtime.h"
#include "mezzo/interchange/dlpack.h"
#include "mezzo/mezzo.h"
#include "tests/emulation/engine.h"
#include "tests/emulation/streams.h"

namespace {

using namespace mezzo;
using cuda::host_copies;
using emulation::options;
using emulation::Streams;

const Device gpu{DeviceType::cuda};

// In its scope work on the device starts when the host waits for it; at its end all is done.
struct Late {
    Late() { options.late_work = true; }
    ~Late() {
        options.late_work = false;
        Streams::get().finish_all();
    }
};

constexpr std::int64_t batch = 40'000;  // floats: more than drivers take over at once

}  // namespace

TEST_CASE("host copies: a batch goes through pinned memory, and the host does not wait",
          "[cuda][emulation]") {
    const Tensor host = full({batch}, 1);
    static_cast<void>(host.to(gpu));  // makes a buffer
    const Late scope;
    const cuda::HostCopies before = host_copies();
    const std::uint64_t waits = cuda::counters().host_syncs;
    Tensors sums;
    for (int i = 1; i <= 3; ++i) {
        host.fill_(i);
        sums.push_back(host.to(gpu) * 10.0);
    }
    const Tensor made = Tensor::from<float>(std::vector<float>(batch, 7), {batch}, {.device = gpu});
    host.fill_(-1);  // the host's memory is free as soon as to() returns
    const cuda::HostCopies after = host_copies();
    CHECK(cuda::counters().host_syncs == waits);
    CHECK(after.pinned.count - before.pinned.count == 4);
    CHECK(after.pinned.bytes - before.pinned.bytes == 4 * batch * sizeof(float));
    CHECK(after.pageable.count == before.pageable.count);
    for (int i = 1; i <= 3; ++i) {
        const std::vector<float> values = sums[std::size_t(i - 1)].to_vector<float>();
        CHECK(values == std::vector<float>(batch, 10.f * float(i)));
    }
    CHECK(made.to_vector<float>() == std::vector<float>(batch, 7));
}

TEST_CASE("host copies: what is small is left to the driver, which does not wait either",
          "[cuda][emulation]") {
    const Late scope;
    const cuda::HostCopies before = host_copies();
    const std::uint64_t waits = cuda::counters().host_syncs;
    const Tensor labels = arange(512).to(gpu);
    CHECK(cuda::counters().host_syncs == waits);
    CHECK(host_copies().pinned.count == before.pinned.count);
    CHECK(host_copies().pageable.count - before.pageable.count == 1);
    CHECK(host_copies().pageable.bytes - before.pageable.bytes == 512 * sizeof(std::int64_t));
    CHECK(labels.to_vector<std::int64_t>()[511] == 511);
}

TEST_CASE("host copies: large tensors go in pieces", "[cuda][emulation]") {
    const std::int64_t count = (40 << 20) / 8 + 3;  // int64: 16 MiB, 16 MiB and the rest
    const Tensor host = arange(count);
    const std::uint64_t before = host_copies().pinned.count;
    const Tensor there = host.to(gpu);
    CHECK(host_copies().pinned.count - before == 3);
    CHECK(all_close(there, host, 0, 0));
}

TEST_CASE("host copies: the host waits instead of pinning ever more memory", "[cuda][emulation]") {
    const Tensor host = full({3 << 20}, 1);  // 12 MiB, in buffers of 16 MiB
    const Late scope;
    const std::size_t buffers = emulation::pinned_blocks();
    const std::uint64_t waits = cuda::counters().host_syncs;
    Tensors there;
    for (int i = 0; i < 20; ++i) {
        host.fill_(i);
        there.push_back(host.to(gpu));
    }
    CHECK(emulation::pinned_blocks() - buffers <= 8);  // of 128 MiB
    const std::uint64_t waited = cuda::counters().host_syncs - waits;
    CHECK(waited > 0);
    CHECK(waited <= 20);
    for (int i = 0; i < 20; ++i) CHECK(there[std::size_t(i)].slice(0, -1, 3 << 20).item<float>() == float(i));
}

TEST_CASE("host copies: without pinned memory the host waits", "[cuda][emulation]") {
    const Tensor host = full({9 << 20}, 3);  // 36 MiB
    struct Nothing {
        std::size_t before = options.pinned_blocks;
        Nothing() { options.pinned_blocks = 0; }
        ~Nothing() { options.pinned_blocks = before; }
    };
    Tensors there;
    {
        const Late scope;
        const Nothing none;
        const std::uint64_t waits = cuda::counters().host_syncs;
        for (int i = 0; i < 6; ++i) there.push_back(host.to(gpu));  // more than earlier cases may have left
        CHECK(cuda::counters().host_syncs > waits);
    }
    for (const Tensor& x : there) CHECK(x.slice(0, -1, 9 << 20).item<float>() == 3);
}

TEST_CASE("dlpack: devices have CUDA's numbers, which count GPUs that are left out",
          "[cuda][emulation][dlpack]") {
    emulation::left_out = 2;
    const Tensor x = Tensor::from({1, 2, 3}).to(gpu);
    dlpack::DLManagedTensorVersioned* lent = dlpack::to_dlpack_versioned(x);
    CHECK(lent->dl_tensor.device.device_id == 2);
    {
        const Tensor back = dlpack::from_dlpack(lent);
        CHECK(back.device() == gpu);
        CHECK(back.to_vector<float>() == std::vector<float>{1, 2, 3});
    }
    lent = dlpack::to_dlpack_versioned(x);
    lent->dl_tensor.device.device_id = 0;  // one that is left out
    CHECK_THROWS_WITH(dlpack::from_dlpack(lent),
                      Catch::Matchers::Equals("from_dlpack: there is no cuda device 0"));
    emulation::left_out = 0;
}
