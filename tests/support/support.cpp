#include "tests/support/support.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>
#include <random>

#include "autograd/op.h"
#include "core/thread_state.h"

namespace mezzo::test {

std::vector<Device> devices() {
    std::vector<Device> all{cpu_device};
    if (cuda_device_count() > 0) all.push_back(Device(DeviceType::cuda));
    return all;
}

std::string error_message(const std::function<void()>& f, ErrorKind kind) {
    try {
        f();
    } catch (const Error& e) {
        CHECK(e.kind() == kind);
        return e.what();
    }
    return "no error";
}

bool no_device() {
    if (cuda_device_count() > 0) return false;
    WARN("no CUDA device: skipped");
    return true;
}

Tolerance tolerance(Dtype dtype) {
    switch (dtype) {
        case float64:
            return {1e-11, 1e-11};
        case float32:
            return {2e-5, 4e-6};
        case float16:
            return {2e-3, 1e-3};
        case bfloat16:
            return {1.6e-2, 8e-3};
        default:
            return {0, 0};
    }
}

namespace {

double away_from_kinks(double x) {
    const double nearest = std::round(2 * x) / 2, gap = x - nearest;
    return std::abs(gap) < 0.1 ? nearest + std::copysign(0.1, gap == 0 ? 1 : gap) : x;
}

}  // namespace

std::vector<double> random_values(std::int64_t count, std::uint64_t seed, Domain domain) {
    std::mt19937_64 engine(seed * 2654435761u + 12345);
    std::vector<double> values(std::size_t(count), 0.0);
    if (domain == Domain::distinct) {
        std::vector<int> order(values.size());
        std::iota(order.begin(), order.end(), 0);
        std::shuffle(order.begin(), order.end(), engine);
        for (std::size_t i = 0; i < values.size(); ++i)
            values[i] = 0.03125 * (order[i] - int(values.size()) / 2) + 0.01;
        return values;
    }
    const double low = domain == Domain::positive ? 0.3 : domain == Domain::unit ? 0.1 : -2;
    const double high = domain == Domain::unit ? 0.9 : 2;
    std::uniform_real_distribution<double> uniform(low, high);
    for (double& v : values) v = domain == Domain::any ? away_from_kinks(uniform(engine)) : uniform(engine);
    return values;
}

Tensor tensor_of(const std::vector<double>& values, const Shape& shape, Dtype dtype, Device device) {
    return Tensor::from<double>(std::span<const double>(values), shape, {.dtype = float64})
        .to(dtype)
        .to(device);
}

std::string difference(std::span<const double> actual, std::span<const double> expected, Tolerance allowed) {
    if (actual.size() != expected.size())
        return std::to_string(actual.size()) + " values instead of " + std::to_string(expected.size());
    for (std::size_t i = 0; i < actual.size(); ++i) {
        const double a = actual[i], b = expected[i];
        if (a == b || (std::isnan(a) && std::isnan(b))) continue;
        if (std::abs(a - b) <= allowed.absolute + allowed.relative * std::abs(b)) continue;
        return "element " + std::to_string(i) + " is " + std::to_string(a) + " instead of " +
               std::to_string(b) + " (off by " + std::to_string((a - b) * 1e6) + "e-6)";
    }
    return {};
}

ByDecomposition::ByDecomposition() { thread_state.prefer_decomposition = true; }
ByDecomposition::~ByDecomposition() { thread_state.prefer_decomposition = false; }

}  // namespace mezzo::test
