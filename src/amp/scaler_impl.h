// The state of a GradScaler. Captured steps hold it, too, because they may be replayed when the scaler has
// been moved or destroyed.
#pragma once

#include <atomic>
#include <optional>
#include <vector>

#include "core/scale_parts.h"
#include "mezzo/grad_scaler.h"
#include "optim/optimizer.h"

namespace mezzo::amp {

struct ScalerImpl {
    enum class Stage : std::uint8_t { ready, unscaled, stepped };
    struct PerOptimizer {
        std::uint64_t optimizer;  // its id
        Stage stage = Stage::ready;
        bool checked = false;  // `statistics` has looked for inf and NaN in its gradients
    };
    explicit ScalerImpl(const GradScalerOptions& given);

    PerOptimizer& of(const optim::Optimizer& optimizer);
    bool any_checked() const;
    void require_scaled(const char* op) const;
    // The device state, made at the first use. It may follow the model to another device between iterations.
    Tensor& state_on(Device device);
    // Makes `state` ready to be written. A graph of autograd that has saved the scale and has not run
    // backward yet keeps the old state: the scaler goes on with a copy.
    void writable_state(Device device);
    // Runs `statistics` over all gradients, which also computes the scaler's state as update() will leave it.
    // scaled: the gradients are to be divided by the scale.
    void measure(optim::OptimizerImpl& optimizer, const optim::GradientList& list, const Tensor& norm,
                 bool scaled, PerOptimizer& progress);
    void set_scale(const Tensor& new_scale);
    void set_state(float new_scale, float tracker, float hysteresis);
    // The id (core/scale_parts.h) of the scale that scale() multiplies by. A captured step follows it from
    // now on.
    ScaleParts current_scale();
    // Gives the scale a new id, because it may have changed. Gradients under the old one are refused from
    // now on.
    void renew_scale();
    // Scale, growth tracker, hysteresis left and found_inf, as they are until update(). Waits for the device.
    std::vector<float> read_state() const;
    void check_floor() const;
    // Tells the log, once per stay at min_scale, if `now` (read_state()) is an overflow there.
    void note_floor(const std::vector<float>& now) const;

    std::atomic<std::uint32_t> refs{0};
    GradScalerOptions options;
    float scale, growth_tracker = 0, hysteresis_left;  // what `state` begins with
    ScaleParts scale_id;                               // in the scale parts of gradients
    bool has_scaled = false;  // scale() was called, or the state of a scaler loaded: gradients hold the scale
    Tensor state;             // ScalerState
    mutable bool told_floor = false;
    std::vector<PerOptimizer> per_optimizer;  // since the last update()
    // The options with which the device has computed the state after update(); empty: not computed yet.
    std::optional<GradScalerOptions> advanced_with;
};

inline void dispose(ScalerImpl* scaler) noexcept { delete scaler; }

// Throw Error(value) for what no scaler can have.
void check_options(const GradScalerOptions& options);
void check_factors(double growth, double backoff, double interval);
void check_scale(const char* what, double scale);

}  // namespace mezzo::amp
