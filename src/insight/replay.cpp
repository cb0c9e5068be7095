// Re-runs a skipped step under a RangeTrace and restores gradients, buffers, generator and float8 histories.
#include "core/gradient/gradient_slot.h"
#include "core/tensor_impl.h"
#include "mezzo/amp.h"
#include "mezzo/autograd.h"
#include "mezzo/insight/insight.h"
#include "mezzo/ops.h"

namespace mezzo::insight {

namespace {

// Removes the gradients of a model and their hooks, and restores gradients, hooks, buffers and the generator.
// Without hooks DataParallel does not reduce the gradients of this step, which only this process runs.
class Restored {
public:
    explicit Restored(const nn::Module& model) : random_(random_state()), fp8_(model) {
        const NoGrad plain;
        for (const auto& [name, buffer] : model.named_buffers())
            buffers_.emplace_back(buffer, buffer.clone());
        histories_ = fp8_.state_dict();
        const Tensors parameters = model.parameters();
        gradients_.reserve(parameters.size());
        for (const Tensor& parameter : parameters)
            parameter->grads().gradient.read();  // the last call that may throw
        for (const Tensor& parameter : parameters) {
            GradientSlot& slot = parameter->grads().gradient;
            gradients_.push_back({parameter, slot.take(), slot.exchange_links({})});
        }
    }
    ~Restored() {
        for (Kept& kept : gradients_) {
            GradientSlot& slot = kept.parameter->grads().gradient;
            slot.drop();  // it is in no bucket
            slot.exchange_links(std::move(kept.links));
            slot.put(kept.gradient);
        }
        set_random_state(random_);
    }
    Restored(const Restored&) = delete;
    Restored& operator=(const Restored&) = delete;
    // A separate function, because it may throw.
    void put_back_state() {
        const NoGrad plain;
        for (const auto& [buffer, value] : buffers_) buffer.copy_(value);
        fp8_.load_state_dict(histories_);
    }

private:
    struct Kept {
        Tensor parameter;
        Gradient gradient;
        std::vector<GradientSlot::Link> links;
    };
    RandomState random_;
    amp::Fp8State fp8_;
    StateDict histories_;
    std::vector<std::pair<Tensor, Tensor>> buffers_;
    std::vector<Kept> gradients_;
};

}  // namespace

OverflowReport replay(const nn::Module& model, autograd::Callback<void()> forward_backward,
                      const ReplayOptions& options) {
    Restored before(model);
    if (options.random) set_random_state(*options.random);
    OverflowReport report;
    try {
        const RangeTrace trace(model);
        forward_backward();
        report = trace.report(options.step);
    } catch (...) {
        before.put_back_state();
        throw;
    }
    before.put_back_state();
    return report;
}

}  // namespace mezzo::insight
