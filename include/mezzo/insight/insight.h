// Diagnosis of mixed precision: finds the op, parameter or module whose values overflowed, and the step.
// docs/guide/debugging.md has examples.
//
//   const auto backward = [&] { scaler.scale(cross_entropy(net(x), labels)).backward(); };
//   backward();
//   if (scaler.step(optimizer).skipped()) std::cout << insight::replay(net, backward).to_string();
//   scaler.update();
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "mezzo/callback.h"
#include "mezzo/device.h"
#include "mezzo/module.h"

#pragma GCC visibility push(default)

namespace mezzo::insight {

// Largest magnitude of a floating tensor, and its counts of inf, NaN and zero.
struct Range {
    double max_abs = 0;  // of the finite elements; 0 if there are none
    std::int64_t infs = 0, nans = 0, zeros = 0, elements = 0;
    [[nodiscard]] bool finite() const { return infs == 0 && nans == 0; }
};
// Computes the Range of x. Waits for the device. Throws Error(dtype) unless x is floating, Error(value) if it
// is undefined.
[[nodiscard]] Range range_of(const Tensor& x);

// The Range of a parameter's gradient.
struct GradientRange {
    std::string name;  // as in named_parameters()
    Dtype dtype = Dtype::float32;
    Range range;
};
// The gradients of a model that hold inf or NaN, in the order of named_parameters(). Call it after a skipped
// step, before zero_grad(). Waits for the device once.
[[nodiscard]] std::vector<GradientRange> overflowed_gradients(const nn::Module& model);

enum class Pass : std::uint8_t { forward, backward };

// The Range of a result of an op, or of the gradient of one of its inputs.
struct OpRange {
    Pass pass = Pass::forward;
    std::string module;     // the path of the module, such as "encoder.layers.3"; "" outside of modules
    std::string op;         // "linear"; "gradients of add" for the sum of the gradients of an op's result
    int index = 0;          // of the result; in backward of the input
    std::string parameter;  // in backward: the name of the parameter whose gradient it is, or ""
    Shape shape;
    Dtype dtype = Dtype::float32;
    Range range;
    // True if it is not finite although all inputs of the computation are.
    bool origin = false;
};

// The cause of a step's overflow.
struct OverflowReport {
    std::int64_t step = -1;  // -1: not known
    // The first op of each pass whose result is not finite. In forward only ops count from which the loss or
    // the first non-finite gradient is computed, so infinities that reach neither, as in masks, do not count.
    std::optional<OpRange> forward = {}, backward = {};
    // Tensors that were not finite before any op ran, such as "parameter fc.weight" or "an input of linear in
    // fc".
    std::vector<std::string> bad_inputs = {};
    std::vector<GradientRange> gradients = {};  // gradients that are not finite at the end

    [[nodiscard]] bool found() const {
        return forward || backward || !bad_inputs.empty() || !gradients.empty();
    }
    // The report as text, a line for each finding.
    [[nodiscard]] std::string to_string() const;
};

struct [[gnu::visibility("hidden")]] TraceImpl;  // src/insight/range_trace.h

// While alive, records the Range of every floating result of this thread's ops and of every gradient, on the
// device and without waiting for it. It must be destroyed in the thread that made it. Reports may be made
// after the model is destroyed: the trace holds the parameters that it had at the beginning. Each op costs an
// additional pass over its results; without a trace there is no cost. A captured step inside of it throws
// Error(state).
class [[nodiscard]] RangeTrace {
public:
    [[nodiscard]] explicit RangeTrace(const nn::Module& model);
    ~RangeTrace();
    RangeTrace(const RangeTrace&) = delete;
    RangeTrace& operator=(const RangeTrace&) = delete;

    // The ranges recorded since the beginning or clear(), in order. Waits for the device.
    [[nodiscard]] std::vector<OpRange> ops() const;
    // The same as a report; `step` is copied into it.
    [[nodiscard]] OverflowReport report(std::int64_t step = -1) const;
    // The largest loss scale, a power of two and at most `limit`, with which no recorded 16-bit gradient
    // exceeds 1 / headroom of its dtype's largest number. `scale` is the loss scale of the recorded step. If
    // a gradient overflowed, its size is unknown and the result is at most scale / 2; record a step at that
    // scale and call again. 0 if no 16-bit gradient with values other than 0 was recorded. Waits for the
    // device.
    [[nodiscard]] double fitting_scale(double scale, double headroom = 2, double limit = 0x1p127) const;
    // Removes the recorded ranges.
    void clear();

private:
    TraceImpl* impl_;
};

struct ReplayOptions {
    std::int64_t step = -1;  // for the report
    // random_state() at the beginning of the step, for the same dropout
    std::optional<RandomState> random = {};
};
// Runs a step's forward and backward again under a RangeTrace and returns its report. Restores gradients,
// buffers and the random stream afterwards, also if `forward_backward` throws; its exception is rethrown.
// Call it after a skipped step() and before update(), so that the scale is that of the step. With
// synchronised batch norms all ranks must call it, because they exchange statistics here, too.
[[nodiscard]] OverflowReport replay(const nn::Module& model, autograd::Callback<void()> forward_backward,
                                    const ReplayOptions& options = {});

struct AnomalyOptions {
    const nn::Module* model = nullptr;  // to name modules; must outlive the scope
    bool forward = true;                // check results, too, not only gradients
    // throw for inf as well as NaN; not with a loss scaler, whose growth produces inf
    bool infinities = false;
};
// While alive, the first op of this thread whose result or gradient is NaN throws Error(value) with its name.
// For debugging, because it waits for the device at each op. Like torch.autograd.detect_anomaly(), but also
// for the forward pass.
class [[nodiscard]] DetectAnomaly {
public:
    [[nodiscard]] explicit DetectAnomaly(const AnomalyOptions& options = {});
    ~DetectAnomaly();
    DetectAnomaly(const DetectAnomaly&) = delete;
    DetectAnomaly& operator=(const DetectAnomaly&) = delete;

private:
    struct [[gnu::visibility("hidden")]] Impl;
    Impl* impl_;
};

}  // namespace mezzo::insight

#pragma GCC visibility pop
