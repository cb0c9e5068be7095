// Runs a collective call on the memory of tensors, on a device or in host memory.
#pragma once

#include <algorithm>
#include <vector>

#include "core/step_recorder.h"
#include "core/tensor_impl.h"
#include "distributed/call_record.h"
#include "distributed/group_impl.h"
#include "distributed/rank_checks.h"
#include "mezzo/autograd.h"
#include "mezzo/ops.h"

namespace mezzo::distributed {

inline bool all_on_devices(const std::vector<Record>& records) {
    return std::all_of(records.begin(), records.end(), [](const Record& r) { return r.flag; });
}

// Runs the call on the device engine in a step that is being captured. The ranks have agreed to capture it
// before.
template <class OnDevice> void capture_call(const Group& handle, const OnDevice& on_device) {
    GroupImpl& group = handle.impl();
    const auto engine = group.devices().connected();  // sendable() in group.cpp has checked it
    const auto passage = group.devices().make_passage();
    passage->ready();
    group.issue([&] {
        passage->begin();
        on_device(*engine);
        passage->end();
    });
    passage->receive();
    StepRecorder& graph = *thread_state.recorder;
    graph.require([handle, engine] { return engine->alive(); });  // a graph is destroyed before its engine
    graph.after_launch([engine] { engine->watch_compute(); });
}

// Runs a collective call on contiguous memory, which is in host memory or on the rank's own CUDA device. If
// the memory of all ranks is on their devices and they are connected, on_device(engine) queues the operation;
// otherwise on_host(engine) runs it on copies in host memory.
template <class OnHost, class OnDevice> void perform(const Group& handle, const char* op, Record record,
                                                     const Tensors& memory, const OnHost& on_host,
                                                     const OnDevice& on_device) {
    GroupImpl& group = handle.impl();
    if (handle.size() > 1) {
        StepScope::join(op, consensus_of(handle));
        if (thread_state.recorder != nullptr) return capture_call(handle, on_device);
    }
    record.flag = memory[0].device() != cpu_device;
    const auto passage = record.flag ? group.devices().make_passage() : nullptr;
    if (passage != nullptr) passage->ready();
    bool queued = false;
    const auto work = [&](Collectives& host) {
        const bool direct = all_on_devices(agree(host, group, record));
        const auto engine = direct ? group.devices().connect(host) : nullptr;
        if (engine == nullptr) return on_host(host);
        queued = true;
        group.on_device([&] {
            passage->begin();
            on_device(*engine);
            passage->end();
        });
    };
    try {
        group.run(work);
        if (queued) passage->receive();
    } catch (...) {
        if (queued) group.devices().keep(memory);
        throw;
    }
}

// Calls use() with the values in host memory, and copies them back to their device afterwards.
template <class F> void in_host_memory(const Tensor& values, const F& use) {
    const NoGrad no_grad;
    const Tensor host = values.to(cpu_device);
    use(host);
    if (host.impl() != values.impl()) values.copy_(host);
}

// All-gathers `mine`, of so many bytes, into `all`: piece r is the data of rank r.
inline void gather(const Group& group, const char* op, const Record& record, const Tensor& mine,
                   const Tensor& all, std::size_t bytes) {
    perform(
        group, op, record, {mine, all},
        [&](Collectives& engine) {
            if (bytes == 0) return;
            const Tensor sent = mine.to(cpu_device);
            in_host_memory(all, [&](const Tensor& host) { engine.all_gather(raw(sent), raw(host), bytes); });
        },
        [&](DeviceCollectives& engine) {
            if (bytes != 0) engine.all_gather(raw(mine), raw(all), bytes);
        });
}

}  // namespace mezzo::distributed
