// Profiles one training step on the device.
#pragma once

#include <functional>
#include <string>

#include "mezzo/device.h"

// Runs `warmup` steps and `steps` more, and describes the step of median length as JSON: {"steps", "wall_us"
// (the host's median while tracing), "work": [{"name", "begin_us", "us"}, ...]} in time order. Throws
// std::runtime_error if the device's work cannot be traced.
std::string profile_steps(const std::function<void()>& step, const mezzo::Device& device, int warmup,
                          int steps);
