// Prefetch on a device that works as late, or copies as early, as the order of the streams allows, so that a
// missing wait gives wrong values.
#include <catch2/catch.hpp>
#include <utility>
#include <vector>

#include "core/memory/staging.h"
#include "core/step_recorder.h"
#include "cuda/runtime/runtime.h"
#include "mezzo/data/prefetch.h"
#include "mezzo/mezzo.h"
#include "tests/emulation/engine.h"
#include "tests/emulation/streams.h"

namespace {

using namespace mezzo;
using emulation::options;
using emulation::Streams;

const Device gpu{DeviceType::cuda};

// In its scope the device is as slow as the flags say; at its end all is done.
struct Slow {
    Slow(bool late_work, bool early_copies) {
        options.late_work = late_work;
        options.early_copies = early_copies;
    }
    ~Slow() {
        options.late_work = options.early_copies = false;
        Streams::get().finish_all();
    }
};

std::vector<Tensor> numbered(int count, std::int64_t elements = 64) {
    std::vector<Tensor> batches;
    for (int i = 1; i <= count; ++i) batches.push_back(full({elements}, i));
    return batches;
}

// The last element of the sum of i times batch i; no value is read before the end.
float folded(const std::vector<Tensor>& batches, int ahead) {
    Tensor sum = zeros({batches[0].numel()}, {.device = gpu});
    int i = 0;
    for (const Tensor& x : data::prefetch(batches, {.device = gpu, .ahead = ahead}))
        sum = sum + x * double(++i);
    return sum.to_vector<float>().back();
}

// More batches than earlier cases can have left pinned buffers, so that each buffer is used again.
constexpr int many = 150;

}  // namespace

TEST_CASE("late copies: the device's work waits for them, and they for it", "[cuda][emulation]") {
    const std::vector<Tensor> batches = numbered(many);
    const float expected = folded(batches, 0);
    for (const bool late_work : {false, true})
        for (const bool early_copies : {false, true})
            for (const int ahead : {1, 2, 4, 40}) {
                CAPTURE(late_work, early_copies, ahead);
                const Slow scope(late_work, early_copies);
                CHECK(folded(batches, ahead) == expected);
            }
}

TEST_CASE("late copies: the host waits only ahead + 2 steps before the device", "[cuda][emulation]") {
    const std::vector<Tensor> batches = numbered(20);
    const auto syncs = [&](int ahead) {
        const std::uint64_t before = cuda::counters().host_syncs;
        Tensors held;  // memory that goes back to the device, as it does under ASan, waits for it
        for (const Tensor& x : data::prefetch(batches, {.device = gpu, .ahead = ahead}))
            held.insert(held.end(), {x, x * 2.0});
        return cuda::counters().host_syncs - before;
    };
    CHECK(syncs(2) == 0);
    for (const int ahead : {1, 2, 4}) {
        CAPTURE(ahead);
        const Slow scope(true, false);
        // of 20 batches the first needs no pinned buffer, ahead + 2 get one at once
        CHECK(syncs(ahead) == std::uint64_t(20 - 1 - (ahead + 2)));
    }
}

TEST_CASE("late copies: copies that nobody reads spare the next owner of their memory", "[cuda][emulation]") {
    // of a size that no earlier case has left buffers of
    const std::int64_t elements = 20000;
    const std::vector<Tensor> batches = numbered(5, elements), others(7, full({elements}, 50));
    enum { destroyed, skipped, replaced };
    for (const bool late_work : {false, true})
        for (const int way : {destroyed, skipped, replaced}) {
            CAPTURE(late_work, way);
            const Slow scope(late_work, false);
            Tensor first;
            Tensors owners;
            {
                auto range = data::prefetch(batches, {.device = gpu, .ahead = 3});
                auto it = range.begin();
                *it;
                first = *++it;  // the one before it was not sent ahead
                if (way == skipped)
                    for (int i = 0; i < 3; ++i) ++it;
                if (way == replaced) it = range.begin();
                if (way == destroyed) const auto gone = std::move(it);
                for (int i = 0; i < 6; ++i) owners.push_back(full({elements}, 100 + i, {.device = gpu}));
            }
            folded(others, 2);
            Streams::get().finish_all();
            CHECK(first.to_vector<float>().back() == 2);
            for (int i = 0; i < 6; ++i)
                CHECK(owners[std::size_t(i)].to_vector<float>().back() == float(100 + i));
        }
}

TEST_CASE("late copies: memory is not free before its copy", "[cuda][emulation]") {
    data::detail::Transfers transfers(gpu, 2);
    Tensor x = ones({64});
    Tensor* const batch[] = {&x};
    REQUIRE(transfers.start(batch));
    x = Tensor();
    const Tensor owner = full({64}, 5, {.device = gpu});
    transfers.finish();
    CHECK(owner.to_vector<float>() == std::vector<float>(64, 5));
}

TEST_CASE("late copies: a step that copies of its own accord is not captured", "[cuda][emulation]") {
    const std::vector<Tensor> batches = numbered(6);
    auto range = data::prefetch(batches, {.device = gpu, .ahead = 2});
    auto it = range.begin();
    *it;
    bool take = false, drop = false;
    std::uint64_t waits = 0;
    const auto take_and_drop = [&](const Tensors& in) {
        const bool capturing = thread_state.recorder != nullptr;
        const Tensor y = in[0] * 2.0;
        if (capturing && take) *++it;
        if (capturing && drop) {
            waits = cuda::counters().host_syncs;
            const auto gone = std::move(it);
        }
        return Tensors{y};
    };
    cuda::CapturedStep step(take_and_drop, {.warmup = 1, .device = gpu});
    const Tensor x = ones({3}, {.device = gpu});
    step({x});
    take = true;
    try {
        step({x});
        FAIL_CHECK("no error was thrown");
    } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::state);
        CHECK_THAT(error.what(), Catch::StartsWith("prefetch: a captured step cannot take a batch"));
    }
    take = false;
    CHECK((*it).to_vector<float>() == std::vector<float>(64, 2));  // the batch that was asked for
    ++it;
    CHECK((*it).to_vector<float>() == std::vector<float>(64, 3));
    step({x});
    drop = true;
    // its two copies are under way: the host waits for them, for a graph cannot
    CHECK(step({x})[0].to_vector<float>() == std::vector<float>(3, 2));
    CHECK(cuda::counters().host_syncs == waits + 2 + 1);
    drop = false;
    CHECK(step({x})[0].to_vector<float>() == std::vector<float>(3, 2));
    CHECK(step.statistics().replays == 1);
}

TEST_CASE("late copies: without pinned memory batches are copied in time", "[cuda][emulation]") {
    const std::vector<Tensor> batches = numbered(6, 1 << 20);  // larger than any buffer there may be
    const float expected = folded(batches, 0);
    const std::size_t blocks = std::exchange(options.pinned_blocks, 0);
    const cuda::Counters before = cuda::counters();
    CHECK(folded(batches, 3) == expected);
    CHECK(cuda::counters().copies == before.copies + 6 + 1);
    // and where there is some again, none of it is used while a step is captured
    auto range = data::prefetch(batches, {.device = gpu, .ahead = 3});
    auto it = range.begin();
    *it;
    const auto added = [&](const Tensors& in) {
        return Tensors{*it + in[0]};  // of the size that a batch ahead would take
    };
    cuda::CapturedStep step(added, {.warmup = 1, .device = gpu});
    step({ones({1}, {.device = gpu})});
    options.pinned_blocks = blocks;
    folded(batches, 1);  // leaves a buffer
    for (int i = 0; i < 2; ++i) CHECK(step({ones({1}, {.device = gpu})})[0].to_vector<float>().back() == 2);
    CHECK(step.statistics().replays == 1);
}

TEST_CASE("late copies: pinned buffers are used again, and grow with the batches", "[cuda][emulation]") {
    const std::vector<Tensor> small = numbered(12), large = numbered(12, 100000);
    folded(small, 2);
    const std::size_t blocks = emulation::pinned_blocks();
    for (int i = 0; i < 3; ++i) folded(small, 2);
    CHECK(emulation::pinned_blocks() == blocks);
    folded(large, 2);
    const std::size_t grown = emulation::pinned_blocks();
    CHECK(grown <= blocks + 4);
    for (int i = 0; i < 3; ++i) {
        folded(small, 2);
        folded(large, 2);
    }
    CHECK(emulation::pinned_blocks() == grown);
}

TEST_CASE(
    "late copies: a larger pinned buffer leaves the smaller ones, which the driver would wait to give back",
    "[cuda][emulation]") {
    const int devices = std::exchange(options.device_count, 64);
    const Device other{DeviceType::cuda, 63};  // the last one: no other case has left buffers there
    const auto use = [&](std::size_t bytes) {
        std::unique_ptr<StagingBuffer> buffer = take_staging(other, bytes);
        const std::size_t size = buffer->bytes();
        give_staging(other, std::move(buffer));
        return size;
    };
    constexpr std::size_t mib = 1 << 20;
    CHECK(use(mib) == mib);
    const std::size_t blocks = emulation::pinned_blocks();
    CHECK(use(4 * mib) == 4 * mib);
    CHECK(emulation::pinned_blocks() == blocks + 1);
    CHECK(use(mib) == mib);  // still there
    CHECK(use(200 * mib) == 256 * mib);
    CHECK(emulation::pinned_blocks() == blocks + 1);  // beyond 128 MiB it replaces one
    CHECK(use(3 * mib) == 256 * mib);
    CHECK(emulation::pinned_blocks() == blocks + 1);
    options.device_count = devices;
}
