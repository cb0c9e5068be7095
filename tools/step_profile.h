// One training step as the device saw it.
#pragma once

#include <functional>
#include <string>

#include "mezzo/device.h"

// Runs `warmup` steps and `steps` more, and describes the one of median length as JSON: {"steps", "wall_us"
// (the host's median with the trace running), "work": [{"name", "begin_us", "us"}, ...]} in the order of
// time. Throws std::runtime_error where the device's work cannot be traced.
std::string profile_steps(const std::function<void()>& step, const mezzo::Device& device, int warmup,
                          int steps);
