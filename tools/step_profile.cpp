#include "tools/step_profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <stdexcept>
#include <vector>

#include "tools/gpu_trace.h"

namespace {

using mezzo::DeviceWork;

double now_us() {
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

std::int64_t length(const std::vector<DeviceWork>& work) {
    std::int64_t end = 0;
    for (const DeviceWork& w : work) end = std::max(end, w.end);
    return end - work.front().begin;
}

std::string quoted(const std::string& text) {
    std::string result = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') result += '\\';
        result += c;
    }
    return result + '"';
}

std::string json(const std::vector<DeviceWork>& work) {
    std::string result;
    for (const DeviceWork& w : work)
        result += fmt::format("{}{{\"name\": {}, \"begin_us\": {:.3f}, \"us\": {:.3f}}}",
                              result.empty() ? "" : ", ", quoted(w.name),
                              1e-3 * double(w.begin - work.front().begin), 1e-3 * double(w.end - w.begin));
    return result;
}

}  // namespace

std::string profile_steps(const std::function<void()>& step, const mezzo::Device& device, int warmup,
                          int steps) {
    start_gpu_trace();
    for (int i = 0; i < warmup; ++i) step();
    mezzo::synchronize(device);
    take_gpu_trace();
    std::vector<std::vector<DeviceWork>> traced;
    std::vector<double> wall;
    for (int i = 0; i < steps; ++i) {
        const double begin = now_us();
        step();
        mezzo::synchronize(device);
        wall.push_back(now_us() - begin);
        traced.push_back(take_gpu_trace());
        if (traced.back().empty()) throw std::runtime_error("gpu trace: a step without work on the device");
    }
    std::sort(wall.begin(), wall.end());
    std::sort(traced.begin(), traced.end(),
              [](const auto& a, const auto& b) { return length(a) < length(b); });
    const auto middle = static_cast<std::size_t>(steps / 2);
    return fmt::format("{{\"steps\": {}, \"wall_us\": {:.3f}, \"work\": [{}]}}", steps, wall[middle],
                       json(traced[middle]));
}
