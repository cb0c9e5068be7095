// The dynamic loss scaler: multiplies the loss so that 16-bit gradients stay in range, and skips steps that
// overflowed.
//
//   optimizer.zero_grad();
//   scaler.scale(loss).backward();
//   scaler.step(optimizer);  // skipped if a gradient is inf or NaN
//   scaler.update();
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mezzo/module.h"
#include "mezzo/optim.h"

#pragma GCC visibility push(default)

namespace mezzo::amp {

struct [[gnu::visibility("hidden")]] ScalerImpl;  // src/amp/scaler_impl.h

// Action on an overflow if the scale is already at min_scale.
enum class AtFloor : std::uint8_t {
    clamp,  // the scale stays; a log line (mezzo/log.h) reports it if it is known without waiting
    fail,   // update() throws; costs a wait for the device at each update()
};

struct GradScalerOptions {
    double init_scale = 65536;
    double growth_factor = 2;             // > 1
    double backoff_factor = 0.5;          // in (0, 1)
    std::int64_t growth_interval = 2000;  // > 0: steps in a row without overflow before the scale grows
    bool enabled = true;                  // false: every call forwards or does nothing
    bool dynamic = true;   // false: the scale never changes; steps that overflow are skipped all the same
    double min_scale = 1;  // backing off stops here; 0 for none (PyTorch)
    double max_scale = 3.4028234663852886e38;  // growing stops here; the default is the largest float32
    std::int64_t hysteresis = 1;               // overflows before the scale backs off
    bool refill_every_clean_step = false;      // when the count of overflows starts anew: after every clean
                                               // step, or only when the scale grows
    AtFloor at_floor = AtFloor::clamp;
    bool recheck = false;  // step() checks gradients again that changed after unscale_()
    // false: step() without unscale_() leaves .grad scaled, which saves a pass of writes
    bool unscale_in_step = true;
    // step() of an optimizer without gradients does nothing instead of throwing
    bool allow_no_gradients = false;
};
// GradScalerOptions(init_scale=65536, …).
std::ostream& operator<<(std::ostream& out, const GradScalerOptions& options);

// Result of a step: whether it was applied. stepped() and skipped() wait for the device. They may be called
// until the optimizer's next step or unscale_, and throw Error(state) after that.
class StepResult {
public:
    [[nodiscard]] bool stepped() const;
    [[nodiscard]] bool skipped() const;
    // Whether no parameter had a gradient (needs GradScalerOptions::allow_no_gradients).
    [[nodiscard]] bool nothing_to_do() const { return kind_ == Outcome::nothing; }

private:
    friend class GradScaler;
    enum class Outcome : std::uint8_t { stepped, nothing, on_device };
    StepResult(Outcome kind, const Tensor& state);
    Outcome kind_;
    Tensor state_;  // the optimizer's StepState
    std::uint64_t version_ = 0;
};

// Scales losses and skips steps with inf or NaN gradients. Calls per iteration: scale(loss).backward();
// optionally unscale_(optimizer); step(optimizer); update(). Scale, growth tracker and overflow flags are
// stored on the device; only getters wait for it.
class GradScaler {
public:
    // Error(value) for options outside of the ranges above, or scales that do not fit together.
    explicit GradScaler(const GradScalerOptions& options = {});
    // A scaler can be moved, but not copied: two would share the state on the device. A moved-from scaler can
    // only be destroyed and assigned to; every other call throws Error(state).
    GradScaler(const GradScaler&) = delete;
    GradScaler& operator=(const GradScaler&) = delete;
    GradScaler(GradScaler&& other) noexcept;
    GradScaler& operator=(GradScaler&& other) noexcept;
    ~GradScaler();

    // Returns outputs * scale, float32 or wider; the same tensor when disabled. Error(dtype) unless floating,
    // and Error(device) for outputs on another device than those of earlier steps since the last update().
    [[nodiscard]] Tensor scale(const Tensor& outputs);
    [[nodiscard]] Tensors scale(const Tensors& outputs);

    // Divides the gradients of the optimizer's parameters by the scale, in place, and records inf and NaN.
    // This call only checks the gradients; the division is deferred until a gradient is read, or to the
    // update. Throws Error(state) when called twice between updates or after step(), before the first scale()
    // or load_state_dict(), and for a gradient that still has unscaled parts from before the backward;
    // Error(dtype) for float16 gradients without float32 master weights (the text names the parameters).
    void unscale_(optim::Optimizer& optimizer);
    // Unscales unless unscale_ has, and updates the parameters unless a gradient is inf or NaN, which is
    // decided on the device. Throws Error(state) when called twice between updates, before the first scale()
    // or load_state_dict(), when no parameter has a gradient, and when a backward of a scaled output has
    // added to a gradient that was unscaled before (the text names the parameter); a plain backward may do
    // so.
    StepResult step(optim::Optimizer& optimizer);
    // Adjusts the scale, and allows unscale_() and step() of all optimizers again. Call it after the last
    // step of an iteration. If the scaler is dynamic, unscale_ and step throw Error(state) for gradients that
    // were scaled before the update(), because the earlier scale is only on the device and is not read back.
    // The same holds for update(x), load_state_dict() and gradients that another scaler has scaled. Throws
    // Error(state) without an earlier unscale_ or step, and Error(value) with AtFloor::fail.
    void update();
    // Sets the scale; the growth tracker is unchanged. Throws Error(value) unless it is a positive float32.
    void update(double new_scale);
    void update(const Tensor& new_scale);

    [[nodiscard]] double get_scale() const;  // 1 when disabled
    [[nodiscard]] std::int64_t get_growth_tracker() const;
    [[nodiscard]] double get_growth_factor() const;
    [[nodiscard]] double get_backoff_factor() const;
    [[nodiscard]] std::int64_t get_growth_interval() const;
    // Error(value) for what the constructor refuses.
    void set_growth_factor(double factor);
    void set_backoff_factor(double factor);
    void set_growth_interval(std::int64_t interval);
    [[nodiscard]] bool is_enabled() const;
    [[nodiscard]] const GradScalerOptions& options() const;

    // Whether any gradient was inf or NaN since the last update(); waits for the device.
    [[nodiscard]] bool found_inf() const;
    // The names (or indices) of the optimizer's parameters whose gradients currently hold inf or NaN; waits
    // for the device. Under DataParallel it reduces gradients that are not reduced yet; then all ranks must
    // call it.
    [[nodiscard]] std::vector<std::string> overflowed_parameters(const optim::Optimizer& optimizer) const;

    // scale, growth_factor, backoff_factor, growth_interval, _growth_tracker, hysteresis as 0-dim tensors;
    // empty when disabled.
    [[nodiscard]] StateDict state_dict() const;
    // Throws, with nothing changed, when a key is missing (hysteresis may be) or unknown, or a value is one
    // that the constructor refuses. Does nothing when disabled.
    void load_state_dict(const StateDict& state);

private:
    ScalerImpl& impl() const;
    ScalerImpl* impl_;  // null: moved from
};

}  // namespace mezzo::amp

#pragma GCC visibility pop
