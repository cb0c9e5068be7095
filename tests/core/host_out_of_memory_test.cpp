// Out of host memory: releasing tensors needs no memory, and a failure leaves every object usable.
#include <catch2/catch.hpp>
#include <functional>
#include <new>

#include "core/tensor_impl.h"
#include "mezzo/autograd.h"
#include "mezzo/nn.h"
#include "mezzo/optim.h"
#include "tools/heap.h"

using namespace mezzo;

TEST_CASE("short of memory: a graph is dropped without any", "[memory]") {
    const LiveObjects before = live_objects();
    {
        const Tensor x = ones({8}).set_requires_grad();
        Tensor y = x;
        for (int i = 0; i < 5000; ++i) y = y * 1.0 + x;  // nodes with two edges each
        const HeapLimit none(0);
        y = Tensor();
    }
    CHECK(live_objects().nodes == before.nodes);
    CHECK(live_objects().tensors == before.tensors);
}

TEST_CASE("short of memory: tensors of every size are dropped without any", "[memory]") {
    empty_cache(cpu_device);
    const std::size_t allocated = memory_stats(cpu_device).allocated;
    {
        Tensors tensors;
        for (int i = 0; i < 600; ++i) tensors.push_back(empty({std::int64_t(1) << i % 22}));
        const HeapLimit none(0);
        for (std::size_t i = 0; i < tensors.size(); i += 2) tensors[i] = Tensor();  // between live neighbours
        for (std::size_t i = 1; i < tensors.size(); i += 2)
            tensors[i] = Tensor();  // which are joined with them
    }
    CHECK(memory_stats(cpu_device).allocated == allocated);
    empty_cache(cpu_device);
    CHECK(memory_stats(cpu_device).largest_free < memory_stats(cpu_device).reserved + 1);
    CHECK(ones({1 << 20})[5].item<float>() == 1);
}

TEST_CASE("short of memory: what fails draws no random numbers", "[memory]") {
    // An op on small tensors may need no memory from the heap; x is larger than the segments that other
    // tensors share.
    const Tensor x = ones({7 << 10, 1 << 10}), rows = ones({1 << 11, 1 << 12}).t(), q = ones({1, 1, 4, 8});
    const std::vector<std::pair<const char*, std::function<void()>>> draws = {
        {"dropout", [&] { static_cast<void>(dropout(x, 0.5)); }},
        {"uniform_", [&] { rows.uniform_(0, 1); }},
        {"dropout_add_layer_norm",
         [&] { static_cast<void>(dropout_add_layer_norm(x, {}, x, {}, {}, {.p = 0.5})); }},
        {"scaled_dot_product_attention",
         [&] { static_cast<void>(scaled_dot_product_attention(q, q, q, {.dropout_p = 0.5})); }},
        {"randperm", [&] { static_cast<void>(randperm(100)); }}};
    for (const auto& [name, draw] : draws) {
        CAPTURE(name);
        const std::uint64_t before = random_state().offset;
        int failed = 0;
        for (long allocations = 0; random_state().offset == before; ++allocations) {
            empty_cache(cpu_device);
            try {
                const HeapLimit some(allocations);
                draw();
            } catch (const std::bad_alloc&) {
                CHECK(random_state().offset == before);
                ++failed;
            } catch (const Error& error) {
                CHECK(error.kind() == ErrorKind::memory);
                CHECK(random_state().offset == before);
                ++failed;
            }
            if (random_state().offset != before) break;
        }
        CHECK(failed > 0);
    }
}

TEST_CASE("short of memory: a step that fails at any allocation can be repeated", "[memory]") {
    manual_seed(4);
    nn::Sequential net(nn::Linear(6, 5), nn::ReLU(), nn::Linear(5, 2));
    const Tensor x = randn({3, 6});
    const auto gradients = [&] { return autograd::grad({sum(square(net(x)))}, net.parameters()); };
    const Tensors wanted = gradients();
    empty_cache(cpu_device);
    const std::size_t reserved = memory_stats(cpu_device).reserved;
    long allocations = 0;
    for (bool done = false; !done; ++allocations) {
        const LiveObjects before = live_objects();
        try {
            Tensors found;
            {
                const HeapLimit some(allocations);
                found = gradients();
            }
            for (std::size_t i = 0; i < wanted.size(); ++i) CHECK(all_close(found[i], wanted[i]));
            done = true;
        } catch (const std::bad_alloc&) {
        } catch (const Error& error) {
            CHECK(error.kind() == ErrorKind::memory);
        }
        CAPTURE(allocations);
        empty_cache(cpu_device);
        CHECK(memory_stats(cpu_device).reserved == reserved);
        CHECK(live_objects().nodes == before.nodes);
        CHECK(live_objects().tensors == before.tensors);
        CHECK(live_objects().storages == before.storages);
    }
    CHECK(allocations > 50);
}
