// Insight into mixed precision: which op, parameter or module left the range of its dtype, and in which step.
// docs/insight.md shows it at work.
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

// What lies in a floating tensor.
struct Range {
    double max_abs = 0;  // of the finite elements; 0 if there are none
    std::int64_t infs = 0, nans = 0, zeros = 0, elements = 0;
    [[nodiscard]] bool finite() const { return infs == 0 && nans == 0; }
};
// Waits for the device. Error(dtype) unless x is floating, Error(value) if it is undefined.
[[nodiscard]] Range range_of(const Tensor& x);

// A parameter's gradient.
struct GradientRange {
    std::string name;  // as in named_parameters()
    Dtype dtype = Dtype::float32;
    Range range;
};
// The gradients of a model that hold inf or NaN, in the order of named_parameters(): to be asked after a
// skipped step, before zero_grad(). Waits for the device once.
[[nodiscard]] std::vector<GradientRange> overflowed_gradients(const nn::Module& model);

enum class Pass : std::uint8_t { forward, backward };

// A result of an op, or the gradient of one of its inputs.
struct OpRange {
    Pass pass = Pass::forward;
    std::string module;     // the path of the module, such as "encoder.layers.3"; "" outside of all
    std::string op;         // "linear"; "gradients of add" where gradients of an op's result have met
    int index = 0;          // of the result; in backward of the input
    std::string parameter;  // in backward: the name of the parameter whose gradient it is, or ""
    Shape shape;
    Dtype dtype = Dtype::float32;
    Range range;
    // It is not finite although everything that it was computed from is.
    bool origin = false;
};

// Why a step left the range.
struct OverflowReport {
    std::int64_t step = -1;  // -1: not told
    // The first op of each pass whose result left the range: in forward the first of those that the loss
    // comes from, or from which the first bad gradient comes. Ops whose infinities end before both, such as
    // masks, are none.
    std::optional<OpRange> forward = {}, backward = {};
    // What was not finite before any op ran, such as "parameter fc.weight" or "an input of linear in fc".
    std::vector<std::string> bad_inputs = {};
    std::vector<GradientRange> gradients = {};  // that are not finite at the end

    [[nodiscard]] bool found() const {
        return forward || backward || !bad_inputs.empty() || !gradients.empty();
    }
    // A line for each finding.
    [[nodiscard]] std::string to_string() const;
};

struct [[gnu::visibility("hidden")]] TraceImpl;  // src/insight/range_trace.h

// While alive, notes the range of every floating result of this thread's ops and of every gradient, on the
// device and without waiting for it. It must end in the thread that made it. Reports may be made when the
// model is gone: they look at the parameters that it had at the beginning. Ops inside of it cost a pass over
// each result more; without one, nothing. A captured step inside of it throws Error(state).
class [[nodiscard]] RangeTrace {
public:
    [[nodiscard]] explicit RangeTrace(const nn::Module& model);
    ~RangeTrace();
    RangeTrace(const RangeTrace&) = delete;
    RangeTrace& operator=(const RangeTrace&) = delete;

    // What has been noted since the beginning or clear(), in order. Waits for the device.
    [[nodiscard]] std::vector<OpRange> ops() const;
    // The same as a report; `step` is for its text.
    [[nodiscard]] OverflowReport report(std::int64_t step = -1) const;
    // The largest power of two, at most `limit`, by which a loss may be multiplied so that no 16-bit gradient
    // exceeds 1 / headroom of its dtype's largest number, if they are as noted. `scale` is the loss scale
    // that was in use. At most half of it if one has left the range, because how far is unknown; ask again at
    // a scale that fits. 0 if no 16-bit gradient other than zeros was noted. Waits for the device.
    [[nodiscard]] double fitting_scale(double scale, double headroom = 2, double limit = 0x1p127) const;
    // Forgets what has been noted.
    void clear();

private:
    TraceImpl* impl_;
};

struct ReplayOptions {
    std::int64_t step = -1;  // for the report
    std::optional<RandomState> random =
        {};  // random_state() at the beginning of the step, for the same dropout
};
// Runs a step's forward and backward again under a RangeTrace and returns its report. Afterwards gradients,
// buffers and the random stream are as before, also if `forward_backward` throws, which passes through. Call
// it after a skipped step() and before update(), so that the scale is that of the step; with synchronised
// batch norms on all ranks, as they exchange here, too:
//     if (scaler.step(optimizer).skipped())
//         report = insight::replay(model, [&] { scaler.scale(loss(batch)).backward(); }, {.step = i});
[[nodiscard]] OverflowReport replay(const nn::Module& model, autograd::Callback<void()> forward_backward,
                                    const ReplayOptions& options = {});

struct AnomalyOptions {
    const nn::Module* model = nullptr;  // to name modules; must outlive the scope
    bool forward = true;                // look at results, too, not only at gradients
    bool infinities = false;  // stop at inf as well as at NaN: not for a loss scaler, which tries them
};
// While alive, the first op of this thread whose result or gradient is NaN throws Error(value), which names
// it. Waits for the device at each op: for debugging. As torch.autograd.detect_anomaly(), with the forward
// pass.
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
