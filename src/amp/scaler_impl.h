// What a GradScaler holds, and captured steps with it: it stays at one address wherever the scaler is moved,
// and they may be replayed when the scaler is gone.
#pragma once

#include <atomic>
#include <optional>
#include <vector>

#include "mezzo/grad_scaler.h"
#include "optim/optimizer.h"

namespace mezzo::amp {

struct ScalerImpl {
    enum class Stage : std::uint8_t { ready, unscaled, stepped };
    struct PerOptimizer {
        std::uint64_t optimizer;  // its id
        Stage stage = Stage::ready;
        bool checked = false;  // some gradient was looked at
    };
    explicit ScalerImpl(const GradScalerOptions& given);

    PerOptimizer& of(const optim::Optimizer& optimizer);
    bool any_checked() const;
    void require_scaled(const char* op) const;
    // The device state, made at the first use. It may follow the model to another device between iterations.
    Tensor& state_on(Device device);
    // The same for writing to. A graph of this iteration that has not run backward yet reads the scale it was
    // made with: it keeps the old state.
    void writable_state(Device device);
    // Statistics over all gradients, the scaler's state after update() among them. scaled: the gradients are
    // to be divided by the scale.
    void measure(optim::OptimizerImpl& optimizer, const optim::GradientList& list, const Tensor& norm,
                 bool scaled, PerOptimizer& progress);
    void set_scale(const Tensor& new_scale);
    void set_state(float new_scale, float tracker, float hysteresis);
    // Scale, growth tracker, hysteresis left and found_inf, as they are until update(). Waits for the device.
    std::vector<float> read_state() const;
    void check_floor() const;

    std::atomic<std::uint32_t> refs{0};
    GradScalerOptions options;
    float scale, growth_tracker = 0, hysteresis_left;  // until the first use tells the device
    bool has_scaled = false;  // scale() was called, or the state of a scaler loaded: gradients hold the scale
    Tensor state;             // ScalerState
    std::vector<PerOptimizer> per_optimizer;  // since the last update()
    // With what the device has computed the state after update(); none: update() has to compute it.
    std::optional<GradScalerOptions> advanced_with;
};

inline void dispose(ScalerImpl* scaler) noexcept { delete scaler; }

// Throws for options that no scaler can have.
void check_options(const GradScalerOptions& options);
void check_factors(double growth, double backoff, double interval);
void check_scale(const char* what, double scale);

}  // namespace mezzo::amp
