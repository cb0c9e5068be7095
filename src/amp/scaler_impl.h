// State of a GradScaler. Captured steps share it, because they may be replayed after the scaler has been
// moved or destroyed.
#pragma once

#include <atomic>
#include <cstddef>
#include <optional>
#include <vector>

#include "core/gradient/scale_state.h"
#include "mezzo/grad_scaler.h"
#include "optim/optimizer.h"

namespace mezzo::amp {

// The scaler's state as update() will find it.
struct ScalerSnapshot {
    ScaleValues values;
    bool found_inf;
    // Whether update() lowers the scale.
    bool backs_off() const { return found_inf && values.hysteresis_left <= 1; }
};

// The index in the state tensor of the scale before this iteration's checks.
inline constexpr int previous_scale = offsetof(ScalerState, previous) / sizeof(float);

template <class T> T* state_of(const Tensor& tensor) { return static_cast<T*>(raw(tensor)); }

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
    // Returns the device state, allocated at the first use. It may follow the model to another device between
    // iterations.
    Tensor& state_on(Device device);
    // Makes `state` writable. If an autograd graph that has not run backward has saved the scale, the graph
    // keeps the old state and the scaler continues with a copy.
    void writable_state(Device device);
    // Runs `statistics` over all gradients, which also computes the scaler's state after update(). Returns
    // the factor that it leaves on the device next to found_inf: 1 / scale if the gradients are scaled, else
    // 1. norm: receives their norm; defined by unscale_(). Throws Error(dtype) before gradients would be
    // divided in float16.
    GradientFactor measure(optim::OptimizerImpl& optimizer, const optim::GradientList& list,
                           const Tensor& norm, bool scaled, PerOptimizer& progress);
    // Throws Error(state) if nothing has been scaled yet, or step() has been called since the last update().
    PerOptimizer& ready_to_step(const optim::Optimizer& optimizer);
    void set_scale(const Tensor& new_scale);
    void set_state(const ScaleValues& values);
    // Returns the id (core/gradient/scale_state.h) of the scale that scale() multiplies by. While a step is
    // captured, its graph follows the id: each replay uses the current one.
    ScaleState current_scale();
    // Gives the scale a new id, because it may have changed. Gradients with the old id are refused
    // afterwards.
    void renew_scale();
    // Waits for the device. Logs an overflow at min_scale.
    ScalerSnapshot snapshot() const;
    void check_floor() const;
    // Logs, once per stay at min_scale, that `now` is an overflow there.
    void report_floor(const ScalerSnapshot& now) const;

    std::atomic<std::uint32_t> refs{0};
    GradScalerOptions options;
    ScaleValues initial;      // of `state`
    ScaleState scale_id;      // in the scale states of gradients
    bool has_scaled = false;  // scale() was called, or the state of a scaler loaded: gradients hold the scale
    Tensor state;             // ScalerState
    mutable bool reported_floor = false;
    std::vector<PerOptimizer> per_optimizer;  // since the last update()
    // The options with which the device has computed the state after update(); empty if it has not.
    std::optional<GradScalerOptions> advanced_with;
};

inline void dispose(ScalerImpl* scaler) noexcept { delete scaler; }

// All throw Error(value) for values that no scaler can have.
void check_options(const GradScalerOptions& options);
void check_factors(double growth, double backoff, double interval);
void check_scale(const char* what, double scale);

}  // namespace mezzo::amp
