// Checks NCCL with a communicator of one rank, which is all that one GPU allows.
#pragma once

#include <catch2/catch.hpp>

#include "capture/step_graph.h"
#include "core/tensor_impl.h"
#include "cuda/nccl/nccl.h"
#include "mezzo/mezzo.h"

namespace mezzo::test {

// Loads the library and queues every operation, also as a part of a graph; then releases the communicator.
inline void check_nccl_alone() {
    using cuda::nccl::library;
    CHECK(library.open().find("NCCL 2.") == 0);
    const Device device{DeviceType::cuda};
    const auto engine = library.connect({.device = 0, .id = library.new_id(), .connect_timeout = 60});
    const auto passage = library.make_passage(0);
    const auto on_device = [&](auto&& operation) {
        passage->ready();
        passage->begin();
        operation();
        passage->end();
        passage->receive();
    };
    const Tensor x = arange(256).to(float32).to(device), all = zeros({256}, {.device = device});
    const std::vector<float> expected = x.to_vector<float>();
    for (const DeviceReduction op : {DeviceReduction::sum, DeviceReduction::mean, DeviceReduction::max})
        on_device([&] { engine->all_reduce(raw(x), 256, float32, op); });
    on_device([&] { engine->broadcast(raw(x), 1024, 0); });
    on_device([&] { engine->all_gather(raw(x), raw(all), 1024); });
    const Tensor scratch =
        empty({std::int64_t(ordered_mean_scratch(256, 1, float32))}, {.dtype = uint8, .device = device});
    on_device([&] { engine->ordered_mean(raw(x), 256, float32, bfloat16, raw(scratch)); });
    CHECK(x.to_vector<float>() == expected);  // all of them are numbers that bfloat16 has
    CHECK(all.to_vector<float>() == expected);
    {
        StepGraph graph(device, {});
        graph.capture([&] {
            x.add_(all);
            on_device([&] { engine->all_reduce(raw(x), 256, float32, DeviceReduction::sum); });
            x.mul_(2.0);
        });
        graph.replay();
        engine->watch_compute();
        CHECK(x.to_vector<float>()[3] == ((3 + 3) * 2 + 3) * 2);
    }
    CHECK(engine->alive());
    engine->abort();
    CHECK_FALSE(engine->alive());
    CHECK_THROWS_AS(engine->all_reduce(raw(x), 256, float32, DeviceReduction::sum), Error);
}

}  // namespace mezzo::test
