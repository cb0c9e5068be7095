// Memory layout of an optimizer's moments, master weights and 16-bit copies: adjacent in memory, yet each
// with a storage of its own.
#include <catch2/catch.hpp>

#include "core/tensor_impl.h"
#include "mezzo/mezzo.h"
#include "optim/optimizer.h"
#include "tests/support/support.h"

namespace {

using namespace mezzo;

// Three sizes that are not multiples of 64 floats.
const std::vector<std::int64_t> sizes = {3, 100, 65};

Tensors parameters(Dtype dtype, Device device) {
    Tensors result;
    for (std::size_t i = 0; i < sizes.size(); ++i)
        result.push_back(test::tensor_of(test::random_values(sizes[i], 7 + i, test::Domain::any), {sizes[i]},
                                         dtype, device)
                             .set_requires_grad());
    return result;
}

void set_gradients(const Tensors& params, double value) {
    for (const Tensor& p : params)
        p.set_grad(full(p.shape(), value, {.dtype = p.dtype(), .device = p.device()}));
}

// Checks that tensors follow each other in memory, 256-byte aligned, each with a storage of its own.
void check_together(const Tensors& tensors) {
    const char* expected = static_cast<const char*>(raw(tensors[0]));
    for (const Tensor& x : tensors) {
        CHECK(static_cast<const void*>(raw(x)) == static_cast<const void*>(expected));
        CHECK(reinterpret_cast<std::uintptr_t>(raw(x)) % 256 == 0);
        CHECK(x->storage->refs.load() == 1);
        CHECK_FALSE(x.is_view());
        expected += (x->storage->bytes + 255) / 256 * 256;
    }
}

Tensors moments(const optim::Optimizer& optimizer, int which) {
    Tensors result;
    for (const optim::Slot& slot : optimizer.impl().slots) result.push_back(slot.state[std::size_t(which)]);
    return result;
}

std::vector<std::vector<double>> values(const Tensors& tensors) {
    std::vector<std::vector<double>> result;
    for (const Tensor& x : tensors) result.push_back(test::doubles(x));
    return result;
}

}  // namespace

TEST_CASE("owned state: moments and masters lie together", "[optim]") {
    for (const Device device : test::devices()) {
        const std::size_t at_start = memory_stats(device).allocated;
        const LiveObjects objects = live_objects();
        {
            const Tensors params = parameters(float16, device);
            optim::AdamW optimizer(params, {.lr = 0.1});
            optimizer.use_master_weights();
            set_gradients(params, 0.5);
            const std::size_t before = memory_stats(device).allocated;
            optimizer.step();
            check_together(moments(optimizer, 0));
            check_together(moments(optimizer, 1));
            Tensors masters;
            for (const optim::Slot& slot : optimizer.impl().slots) masters.push_back(slot.master);
            check_together(masters);
            // two blocks of moments, of 256 + 512 + 512 bytes each, the step counts and the state
            CHECK(memory_stats(device).allocated - before == 2 * 1536 + 2 * 512);
            const std::uint64_t version = masters[1].version();
            masters[0].zero_();
            CHECK(masters[1].version() == version);
            CHECK(test::doubles(masters[1])[0] != 0);
        }
        CHECK(memory_stats(device).allocated == at_start);
        CHECK(live_objects().storages == objects.storages);
    }
}

TEST_CASE("owned state: 16-bit copies lie together, and one that a graph holds is replaced alone",
          "[optim]") {
    for (const Device device : test::devices()) {
        const Tensors params = parameters(float32, device);
        optim::SGD optimizer(params, {.lr = 0.1, .momentum = 0.9});
        for (const Tensor& p : params) p->grads().copy16.wanted = bfloat16;
        Tensors copies;
        const auto step = [&] {
            set_gradients(params, 0.5);
            optimizer.step();
            copies.clear();
            for (const Tensor& p : params) copies.push_back(p->grad_meta->copy16.value);
            for (std::size_t i = 0; i < params.size(); ++i)
                CHECK(test::doubles(copies[i]) == test::doubles(params[i].detach().to(bfloat16)));
        };
        step();
        check_together(copies);
        check_together(moments(optimizer, 0));
        const void* const second = raw(copies[1]);
        const Tensor kept = copies[0];
        const std::vector<double> old = test::doubles(kept);
        copies.clear();
        step();
        CHECK(test::doubles(kept) == old);
        CHECK(raw(copies[0]) != raw(kept));
        CHECK(raw(copies[1]) == second);
    }
}

TEST_CASE("owned state: late gradients, loading and moving", "[optim]") {
    std::vector<std::vector<double>> undisturbed;
    for (const bool disturbed : {false, true})
        for (const Device device : test::devices()) {
            manual_seed(2);
            nn::Sequential model{nn::Linear(5, 3), nn::Linear(3, 7)};
            const Tensors params = model.parameters();
            optim::Adam optimizer(std::vector<optim::AdamGroup>{
                {.params = {params[0]}}, {.params = {params[1], params[2], params[3]}}});
            for (int i = 0; i < 5; ++i) {
                set_gradients(params, 0.1 * (i + 1));
                if (i < 2) params[2].set_grad({});  // gets its first gradient late
                optimizer.step();
                if (disturbed && i == 1) optimizer.load_state_dict(optimizer.state_dict());
                if (disturbed && i == 3) model.to(device);
            }
            if (undisturbed.empty()) undisturbed = values(params);
            const std::vector<std::vector<double>> seen = values(params);
            for (std::size_t i = 0; i < seen.size(); ++i)
                CHECK(test::difference(seen[i], undisturbed[i], {1e-6, 1e-7}) == "");
        }
}
