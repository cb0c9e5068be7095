// A parameter, an optimizer and a loss scaler for the scaler tests.
#pragma once

#include <catch2/catch.hpp>
#include <limits>

#include "core/tensor_impl.h"
#include "mezzo/amp.h"
#include "mezzo/log.h"
#include "mezzo/nn.h"
#include "mezzo/ops.h"
#include "tests/support/support.h"

using namespace mezzo;
using amp::GradScaler;
using amp::GradScalerOptions;
using Catch::Matchers::Contains;
using optim::SGD;

namespace scaler_bench {

constexpr float inf = std::numeric_limits<float>::infinity(),
                quiet_nan = std::numeric_limits<float>::quiet_NaN();

inline std::vector<float> floats(const Tensor& x) { return x.to_vector<float>(); }
inline Tensor leaf(std::initializer_list<float> values, Device device = {}) {
    return Tensor::from(values).to(device).detach().set_requires_grad();
}
inline void set_grad(const Tensor& w, std::initializer_list<float> values) {
    w.set_grad(Tensor::from(values, w.shape()).to(w.device()));
}
inline void poke(const Tensor& w, std::int64_t at, float value) {
    NoGrad plain;
    w.grad().slice(0, at, at + 1).fill_(value);
}

// A scaler for gradients that a case sets itself: a scaler that has never scaled would refuse them.
inline GradScaler scaler_in_use(const GradScalerOptions& options) {
    GradScaler scaler(options);
    scaler.scale(scalar(1));
    return scaler;
}

// One parameter, an optimizer and a scaler: loss = slope * w.
struct Bench {
    explicit Bench(const GradScalerOptions& options, double lr = 0.5, float slope_ = 3, Device device = {})
        : w(leaf({1}, device)), optimizer({w}, {.lr = lr}), scaler(options), slope(slope_) {}
    void backward() {
        optimizer.zero_grad();
        scaler.scale(sum(w * double(slope))).backward();
    }
    amp::StepResult step(bool overflow = false, float bad = inf) {
        backward();
        if (overflow) poke(w, 0, bad);
        const amp::StepResult result = scaler.step(optimizer);
        return result;
    }
    // The scale after each of "oio…": o a clean step, i an overflow.
    std::vector<double> scales(const char* events) {
        std::vector<double> result;
        for (; *events; ++events) {
            step(*events == 'i');
            scaler.update();
            result.push_back(scaler.get_scale());
        }
        return result;
    }
    Tensor w;
    SGD optimizer;
    GradScaler scaler;
    float slope;
};

using Scales = std::vector<double>;

}  // namespace scaler_bench

using namespace scaler_bench;
