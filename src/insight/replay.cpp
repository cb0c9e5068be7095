// A step run again, and everything put back.
#include "core/gradient_slot.h"
#include "core/gradient_watcher.h"
#include "core/tensor_impl.h"
#include "mezzo/autograd.h"
#include "mezzo/insight.h"
#include "mezzo/ops.h"

namespace mezzo::insight {

namespace {

// Takes the gradients of a model out of the way, and puts back gradients, buffers and the random stream. Nobody watches the gradients meanwhile: only this
// process runs the step again, so that DataParallel would reduce its gradients with those of other steps.
class Restored {
public:
    explicit Restored(const nn::Module& model) : random_(random_state()) {
        const NoGrad plain;
        for (const auto& [name, buffer] : model.named_buffers())
            buffers_.emplace_back(buffer, buffer.clone());
        const Tensors parameters = model.parameters();
        gradients_.reserve(parameters.size());
        for (const Tensor& parameter : parameters)
            parameter->grads().gradient.read();  // the last that may throw
        for (const Tensor& parameter : parameters) {
            GradientSlot& slot = parameter->grads().gradient;
            gradients_.push_back(
                {parameter, slot.take(), Ref<GradientWatcher>(slot.watcher()), slot.watched_as()});
            slot.watch({}, 0);
        }
    }
    ~Restored() {
        for (const Kept& kept : gradients_) {
            GradientSlot& slot = kept.parameter->grads().gradient;
            slot.drop();  // lies nowhere that the watcher knows
            slot.watch(kept.watcher, kept.place);
            slot.put(kept.gradient);
        }
        set_random_state(random_);
    }
    Restored(const Restored&) = delete;
    Restored& operator=(const Restored&) = delete;
    // Apart, because it may throw.
    void put_back_buffers() const {
        const NoGrad plain;
        for (const auto& [buffer, value] : buffers_) buffer.copy_(value);
    }

private:
    struct Kept {
        Tensor parameter;
        Gradient gradient;
        Ref<GradientWatcher> watcher;
        std::uint32_t place;
    };
    RandomState random_;
    std::vector<std::pair<Tensor, Tensor>> buffers_;
    std::vector<Kept> gradients_;
};

}  // namespace

OverflowReport replay(const nn::Module& model, autograd::Callback<void()> forward_backward,
                      const ReplayOptions& options) {
    const Restored before(model);
    if (options.random) set_random_state(*options.random);
    OverflowReport report;
    try {
        const RangeTrace trace(model);
        forward_backward();
        report = trace.report(options.step);
    } catch (...) {
        before.put_back_buffers();
        throw;
    }
    before.put_back_buffers();
    return report;
}

}  // namespace mezzo::insight
