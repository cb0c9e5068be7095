// Data that a Profiler records while steps run, and the observer that records it.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "autograd/op_observer.h"
#include "insight/device_times.h"
#include "insight/memory_peak.h"
#include "mezzo/insight/profiler.h"
#include "nn/module_paths.h"

namespace mezzo::insight {

// An event in compact form: names and modules are indices.
struct NotedEvent {
    int name, place, parent;
    ProfileKind kind;
    std::int64_t step, begin = 0, end = -1;  // end: -1 while the event runs
    double bytes = 0, flops = 0;
    int tensors = -1;  // its index in `tensors`, or -1

    // Duration until `now` for an event that still runs.
    std::int64_t duration(std::int64_t now) const { return (end < 0 ? now : end) - begin; }
};
struct NotedTensors {
    std::vector<ProfiledTensor> inputs, results;
};

struct ProfilerImpl final : OpObserver {
    explicit ProfilerImpl(const ProfilerOptions& given);
    ~ProfilerImpl() override;

    void called(const AnyOp& op, In given, In results) override;
    void viewed(const Tensor& given, const Tensor& view) override;
    void op_begins(const AnyOp& op, In given) noexcept override;
    void op_ends(const AnyOp& op, In given, In results) noexcept override;
    void node_begins(const Node& node) noexcept override;
    void node_ends() noexcept override { end(); }
    void range_begins(std::string_view range) noexcept override;
    void range_ends() noexcept override { end(); }

    void step();
    std::int64_t now() const;
    std::vector<std::int64_t> self_device_times()
        const;            // nanoseconds of each event; empty without device times
    bool noting() const;  // whether the running step is to be recorded
    std::string name_of(const NotedEvent& event) const;

    const ProfilerOptions options;
    nn::Places places;
    std::vector<NotedEvent> events;
    std::vector<NotedTensors> tensors;
    std::vector<ProfiledStep> steps;  // steps that have ended
    std::vector<const std::string*> names;
    std::int64_t dropped = 0;
    std::int64_t current_step = 0, step_begin = 0;
    bool elsewhere = false;  // whether an op's result was on another device than the CPU
    std::unique_ptr<MemoryPeakTrace> memory;
    std::unique_ptr<DeviceTimes> device;  // null unless requested

private:
    int number_of(std::string_view event_name);
    template <class Place>
    void begin(std::string_view event_name, ProfileKind kind, const Place& place) noexcept;
    NotedEvent* end() noexcept;
    const NotedEvent* innermost() const;
    void wait() const noexcept;
    void tell_memory() noexcept;

    const std::chrono::steady_clock::time_point start_;
    std::unordered_map<std::string, int> numbers_;
    std::vector<int> open_;    // running events, innermost last; -1: not recorded
    std::int64_t deeper_ = 0;  // running events beyond the capacity of open_
    int ended_place_ = -1;     // of the op that ended last; -1: not recorded
};

}  // namespace mezzo::insight
