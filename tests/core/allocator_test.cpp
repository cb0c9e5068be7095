#include "core/memory/allocator.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "core/tensor_impl.h"

using namespace mezzo;
using Catch::Matchers::Contains;

namespace {

constexpr std::size_t mebibyte = std::size_t(1) << 20;

int live_segments = 0;
Backend counting_backend() {
    Backend b{};
    b.device_count = [] { return 2; };
    b.allocate = [](int, std::size_t bytes) {
        ++live_segments;
        return std::aligned_alloc(256, bytes);
    };
    b.release = [](int, void* memory) {
        --live_segments;
        std::free(memory);
    };
    return b;
}

// An allocator of its own on a device that has no thread cache, so that every call reaches the pools.
struct Fresh {
    Backend backend = counting_backend();
    CachingAllocator allocator{backend, Device(DeviceType::cpu, 1)};
    Fresh() { live_segments = 0; }
    ~Fresh() { allocator.empty_cache(); }
};

ErrorKind kind_of_failure(CachingAllocator& allocator, std::size_t bytes) {
    try {
        allocator.release(allocator.allocate(bytes));
    } catch (const Error& error) {
        return error.kind();
    }
    return ErrorKind::value;  // no failure
}

}  // namespace

TEST_CASE("allocator: sizes are rounded to 512 bytes and counted") {
    Fresh fresh;
    Block* a = fresh.allocator.allocate(1);
    Block* b = fresh.allocator.allocate(513);
    MemoryStats stats = fresh.allocator.stats();
    CHECK(stats.allocated == 512 + 1024);
    CHECK(stats.reserved == 2 * mebibyte);
    CHECK(stats.largest_free == 2 * mebibyte - 1536);
    CHECK(stats.allocations == 2);
    CHECK(stats.system_allocations == 1);
    CHECK(reinterpret_cast<std::uintptr_t>(b->address) % 256 == 0);
    fresh.allocator.release(a);
    stats = fresh.allocator.stats();
    CHECK(stats.allocated == 1024);
    CHECK(stats.max_allocated == 1536);
    fresh.allocator.reset_peak();
    CHECK(fresh.allocator.stats().max_allocated == 1024);
    fresh.allocator.release(b);
    CHECK(fresh.allocator.stats().allocated == 0);
    fresh.allocator.empty_cache();
    CHECK(fresh.allocator.stats().reserved == 0);
    CHECK(fresh.allocator.stats().max_reserved == 2 * mebibyte);
    CHECK(live_segments == 0);
}

TEST_CASE("allocator: neighbours join again in whatever order they come back") {
    int order[] = {0, 1, 2, 3};
    do {
        Fresh fresh;
        Block* blocks[4];
        for (Block*& block : blocks) block = fresh.allocator.allocate(mebibyte / 2);
        CHECK(fresh.allocator.stats().largest_free == 0);
        for (const int i : order) fresh.allocator.release(blocks[i]);
        CHECK(fresh.allocator.stats().largest_free == 2 * mebibyte);
        CHECK(fresh.allocator.stats().system_allocations == 1);
    } while (std::next_permutation(std::begin(order), std::end(order)));
}

TEST_CASE("allocator: best fit takes the smallest hole that holds the request") {
    Fresh fresh;
    Block* holes[5];
    const std::size_t sizes[5] = {8192, 512, 2048, 512, 4096};  // the 512s keep the holes apart
    for (int i = 0; i < 5; ++i) holes[i] = fresh.allocator.allocate(sizes[i]);
    Block* last = fresh.allocator.allocate(512);
    char* middle = holes[2]->address;
    for (const int i : {0, 2, 4}) fresh.allocator.release(holes[i]);
    Block* found = fresh.allocator.allocate(1500);
    CHECK(found->address == middle);
    for (Block* block : {found, holes[1], holes[3], last}) fresh.allocator.release(block);
    CHECK(fresh.allocator.stats().largest_free == 2 * mebibyte);
}

TEST_CASE("allocator: large requests share 24 MiB segments, larger ones get multiples of 2 MiB") {
    Fresh fresh;
    Block* a = fresh.allocator.allocate(3 * mebibyte);
    Block* b = fresh.allocator.allocate(9 * mebibyte);
    CHECK(fresh.allocator.stats().reserved == 24 * mebibyte);
    CHECK(b->address == a->address + 3 * mebibyte);
    Block* c = fresh.allocator.allocate(31 * mebibyte);
    CHECK(fresh.allocator.stats().reserved == 56 * mebibyte);
    for (Block* block : {a, b, c}) fresh.allocator.release(block);
    CHECK(fresh.allocator.stats().largest_free == 32 * mebibyte);
    Block* again = fresh.allocator.allocate(30 * mebibyte);
    CHECK(fresh.allocator.stats().system_allocations == 2);
    fresh.allocator.release(again);
}

TEST_CASE("allocator: a limit is an error with the numbers, and everything works after it") {
    Fresh fresh;
    fresh.allocator.set_limit(30 * mebibyte);
    Block* kept = fresh.allocator.allocate(4 * mebibyte);
    std::memset(kept->address, 7, 4 * mebibyte);
    CHECK_THROWS_WITH(fresh.allocator.allocate(25 * mebibyte),
                      Contains("out of memory on cpu") && Contains("requested 26214400 bytes (25.0 MiB)") &&
                          Contains("allocated 4194304 bytes (4.0 MiB)") && Contains("peak 4194304") &&
                          Contains("reserved 25165824") && Contains("largest free block 20971520") &&
                          Contains("limit 31457280"));
    CHECK(kind_of_failure(fresh.allocator, 25 * mebibyte) == ErrorKind::memory);
    CHECK(kept->address[4 * mebibyte - 1] == 7);
    CHECK(fresh.allocator.stats().allocated == 4 * mebibyte);
    Block* fits = fresh.allocator.allocate(16 * mebibyte);
    fresh.allocator.release(fits);
    fresh.allocator.release(kept);
    CHECK(kind_of_failure(fresh.allocator, 25 * mebibyte) ==
          ErrorKind::value);  // the cached 24 MiB are given back first
    CHECK(fresh.allocator.stats().reserved <= 30 * mebibyte);
    fresh.allocator.set_limit(0);
    CHECK(kind_of_failure(fresh.allocator, 64 * mebibyte) == ErrorKind::value);
}

TEST_CASE("allocator: near the limit a segment has no spare room") {
    Fresh fresh;
    fresh.allocator.set_limit(3 * mebibyte);
    Block* a = fresh.allocator.allocate(mebibyte + mebibyte / 2);
    Block* b = fresh.allocator.allocate(mebibyte);
    CHECK(fresh.allocator.stats().reserved == 2 * mebibyte + mebibyte / 2);
    CHECK(kind_of_failure(fresh.allocator, mebibyte) == ErrorKind::memory);
    fresh.allocator.release(a);
    fresh.allocator.release(b);
}

TEST_CASE("allocator: impossible sizes") {
    CHECK(kind_of_failure(allocator(cpu_device), std::size_t(1) << 55) == ErrorKind::memory);
    CHECK(kind_of_failure(allocator(cpu_device), SIZE_MAX) == ErrorKind::memory);
    CHECK_THROWS_WITH(memory_stats(Device(DeviceType::cpu, 1)), Contains("no device cpu"));
    CHECK_THROWS_AS(memory_stats(Device(DeviceType::cuda, 99)), Error);
    CHECK_THROWS_AS(memory_stats(Device(DeviceType::cpu, -1)), Error);
}

TEST_CASE("allocator: random blocks never overlap and all memory comes back") {
    Fresh fresh;
    std::mt19937 random(5);
    struct Held {
        Block* block;
        std::size_t bytes;
        unsigned char mark;
    };
    std::vector<Held> held;
    bool intact = true;
    const auto drop = [&](std::size_t i) {
        const auto* p = reinterpret_cast<unsigned char*>(held[i].block->address);
        intact = intact && p[0] == held[i].mark && std::memcmp(p, p + 1, held[i].bytes - 1) == 0;
        fresh.allocator.release(held[i].block);
        held[i] = held.back();
        held.pop_back();
    };
    for (int i = 0; i < 3000; ++i) {
        if (held.size() > 40 || (!held.empty() && random() % 3 == 0)) drop(random() % held.size());
        const std::size_t bytes = 2 + random() % (random() % 50 == 0 ? 3 * mebibyte : 20000);
        held.push_back({fresh.allocator.allocate(bytes), bytes, static_cast<unsigned char>(i)});
        std::memset(held.back().block->address, held.back().mark, bytes);
    }
    while (!held.empty()) drop(0);
    CHECK(intact);
    CHECK(fresh.allocator.stats().allocated == 0);
    fresh.allocator.empty_cache();
    CHECK(fresh.allocator.stats().reserved == 0);
    CHECK(live_segments == 0);
}

TEST_CASE("allocator: storages count, start at version 0 and are reused") {
    const LiveObjects before = live_objects();
    const std::size_t allocated = memory_stats(cpu_device).allocated;
    void* address = nullptr;
    {
        const Ref<Storage> a = allocate_storage(1000, cpu_device);
        const Ref<Storage> none = allocate_storage(0, cpu_device);
        CHECK(none->data == nullptr);
        CHECK(none->device == cpu_device);
        CHECK(a->bytes == 1000);
        CHECK(memory_stats(cpu_device).allocated == allocated + 1024);
        CHECK(live_objects().storages == before.storages + 2);
        a->version = 5;
        address = a->data;
        std::memset(address, 1, 1000);
    }
    CHECK(live_objects().storages == before.storages);
    CHECK(memory_stats(cpu_device).allocated == allocated);
    for (int i = 0; i < 2; ++i) {
        const Ref<Storage> b = allocate_storage(900, cpu_device);
        CHECK(b->version == 0);
        b->version = 3;
    }
}

TEST_CASE("allocator: a repeated step takes nothing from the system") {
    const auto step = [] {
        std::vector<Ref<Storage>> live;
        for (std::size_t i = 1; i < 60; ++i) live.push_back(allocate_storage(i * i * 777, cpu_device));
    };
    step();
    step();
    const MemoryStats before = memory_stats(cpu_device);
    for (int i = 0; i < 20; ++i) step();
    const MemoryStats after = memory_stats(cpu_device);
    CHECK(after.system_allocations == before.system_allocations);
    CHECK(after.allocations == before.allocations + 20 * 59);
    CHECK(after.allocated == before.allocated);
}

TEST_CASE("allocator: threads") {
    empty_cache(cpu_device);
    const MemoryStats before = memory_stats(cpu_device);
    Ref<Storage> handed[4];
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 4; ++t)
        threads.emplace_back([t, &wrong, &handed] {
            std::mt19937 random(t);
            std::vector<Ref<Storage>> held(16);
            for (int i = 0; i < 2000; ++i) {
                Ref<Storage>& slot = held[random() % held.size()];
                if (slot && *static_cast<unsigned*>(slot->data) != t) ++wrong;
                slot = allocate_storage(4 + random() % 100000, cpu_device);
                *static_cast<unsigned*>(slot->data) = t;
            }
            handed[t] = held[0] ? held[0] : held[1];
        });
    for (std::thread& thread : threads) thread.join();
    CHECK(wrong == 0);
    for (Ref<Storage>& storage : handed) storage = nullptr;  // freed by another thread than it was made by
    empty_cache(cpu_device);
    const MemoryStats after = memory_stats(cpu_device);
    CHECK(after.allocated == before.allocated);
    CHECK(after.reserved == before.reserved);  // nothing is stuck in the caches of threads that ended
}
